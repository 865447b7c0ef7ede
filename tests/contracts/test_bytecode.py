"""Processes of tests find modules compiled, whatever the environment says."""

import importlib
import os
import sys

from millrace.stages.comm.base import Group
from millrace.tests.contracts import bytecode
from millrace.tests.contracts.process_ranks import run_ranks


def writes(group: Group) -> bool:
    return not sys.dont_write_bytecode and "PYTHONDONTWRITEBYTECODE" not in os.environ


def test_this_process_and_what_it_starts_write_bytecode(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    importlib.reload(bytecode)
    assert not sys.dont_write_bytecode and "PYTHONDONTWRITEBYTECODE" not in os.environ


def test_what_is_forked_writes_bytecode():
    assert run_ranks(writes, 1) == [True]
