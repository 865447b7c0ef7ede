"""Ranks that are processes start with what they need already imported."""

import sys

from millrace.stages.comm.base import Group
from millrace.tests.contracts.process_ranks import run_ranks


def preloaded(group: Group) -> bool:
    return "millrace.tests.contracts.preloaded" in sys.modules


def test_the_fork_server_could_import_everything():
    assert run_ranks(preloaded, 2) == [True, True]
