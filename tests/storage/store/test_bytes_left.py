"""Bytes left: the least of host, control groups of both versions, and limits of the process."""

import resource

import pytest

from millrace.storage.store import bytes_left as module
from millrace.storage.store.bytes_left import bytes_at_most, bytes_left, fits_in_memory

MIB = 1 << 20


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A process in `tmp_path`, on a host with 8 GiB left of 16, in no group and without limits."""
    (tmp_path / "proc/self").mkdir(parents=True)
    monkeypatch.setattr(module, "PROC", tmp_path / "proc")
    monkeypatch.setattr(module, "GROUPS", tmp_path / "groups")

    class Memory:
        available, total = 8192 * MIB, 16384 * MIB

    monkeypatch.setattr(module.psutil, "virtual_memory", Memory)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return tmp_path


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_host_decides_without_limits(host):
    assert (bytes_left(), bytes_at_most()) == (8192 * MIB, 16384 * MIB)
    assert fits_in_memory(4096 * MIB)
    assert not fits_in_memory(4096 * MIB + 1)


def test_a_group_of_version_1_leaves_its_limit_less_what_cannot_be_taken_back(host):
    write(host / "proc/self", cgroup="9:cpu:/a\n5:memory:/a/b")
    stat = f"cache {900 * MIB}\ntotal_inactive_file {300 * MIB}\ntotal_active_file {200 * MIB}"
    write(host / "groups/memory/a/b", memory__limit_in_bytes=1 << 63, memory__usage_in_bytes=0)
    group = {"memory__limit_in_bytes": 2048 * MIB, "memory__usage_in_bytes": 1500 * MIB, "memory__stat": stat}
    write(host / "groups/memory/a", **group)
    assert (bytes_left(), bytes_at_most()) == ((2048 - 1000) * MIB, 2048 * MIB)
    assert not fits_in_memory(600 * MIB), "as the host alone would say"
    # In a container the path is the host's, and the group is where it is mounted.
    write(host / "proc/self", cgroup="5:memory:/docker/abc")
    assert bytes_left() == 8192 * MIB
    write(host / "groups/memory", **group)
    assert bytes_left() == (2048 - 1000) * MIB


def test_groups_of_version_2_are_all_asked(host):
    write(host / "proc/self", cgroup="0::/slice/job")
    write(host / "groups/slice/job", memory__max="max", memory__current=100 * MIB)
    write(host / "groups/slice", memory__max=1024 * MIB, memory__current=1000 * MIB)
    assert bytes_left() == 24 * MIB
    stat = f"inactive_file {600 * MIB}\nactive_file {300 * MIB}\nanon 1"
    write(host / "groups/slice", memory__stat=stat)
    assert (bytes_left(), bytes_at_most()) == (924 * MIB, 1024 * MIB)
    write(host / "groups/slice/job", memory__max=99 * MIB)
    assert bytes_left() == 0, "never less than nothing"


@pytest.mark.parametrize(("kind", "used"), [(resource.RLIMIT_AS, 100), (resource.RLIMIT_DATA, 40)])
def test_limits_of_the_process_count(host, monkeypatch, kind, used):
    write(host / "proc/self", statm="100 50 10 5 0 40 0")
    limits = {kind: 1024 * MIB}
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda k: (limits.get(k, unlimited), unlimited))
    assert bytes_left() == 1024 * MIB - used * resource.getpagesize()
    # A share of the host is less than the limit of each process, or more.
    assert (bytes_at_most(32), bytes_at_most(2)) == (512 * MIB, 1024 * MIB)


def test_this_process_has_some_left():
    assert 0 < bytes_left() <= bytes_at_most()
