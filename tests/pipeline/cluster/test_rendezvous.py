"""Ranks meet on the driver's machine in files that only their user can open."""

import os
from pathlib import Path

import pytest
import torch.distributed as dist

from millrace.pipeline.cluster.rendezvous import Meeting, connect
from millrace.pipeline.config.schema import ClusterOptions


@pytest.mark.parametrize("scheduler", [None, "tcp://127.0.0.1:8786"])
def test_both_ends_see_the_same_and_generations_do_not_meet(scheduler):
    meeting = Meeting(ClusterOptions(scheduler=scheduler))
    driver, rank = meeting.store(0), connect(meeting.address(0))
    assert not rank.check(["0/order"])
    driver.set("0/order", "stop")
    # A server takes in what one connection sets at its own time; `get` waits for that.
    assert rank.get("0/order") == b"stop" and rank.check(["0/order"])
    dist.PrefixStore("0/gloo", rank).set("here", "1")
    assert driver.get("0/gloo/here") == b"1"
    assert not connect(meeting.address(1)).check(["1/order"])
    meeting.close()


def test_files_are_their_owners_and_go_with_the_run():
    meeting = Meeting(ClusterOptions())
    (place,) = meeting.address(0)
    meeting.store(0).set("0/order", "stop")
    folder = Path(place).parent
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == os.geteuid()
    meeting.close()
    assert not folder.exists()


def test_what_a_killed_rank_left_half_written_does_not_reach_the_next_generation():
    meeting = Meeting(ClusterOptions())
    meeting.store(0).set("0/order", "abort")
    with Path(meeting.address(0)[0]).open("ab") as file:
        file.write(b"\x09\x00\x00\x00\x00\x00\x00\x00half")
    after = meeting.store(1)
    after.set("1/order", "stop")
    assert connect(meeting.address(1)).get("1/order") == b"stop"
    meeting.close()
