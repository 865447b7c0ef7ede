"""Groups of ranks: what the collectives compute, what they count, and how they fail."""

import hashlib
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from millrace.stages.comm import gloo
from millrace.stages.comm.gloo import Contact, Gloo, broadcast_sends, ring_bytes
from millrace.stages.comm.solo import Solo
from millrace.storage.errors import InputError, PeerLostError
from millrace.storage.ledger import Ledger
from millrace.tests.contracts.collectives import compute, network, swap_in_rounds
from millrace.tests.contracts.process_ranks import RankFailedError, run_ranks

SOON_S = 60.0
"""Half as long as ranks wait for each other here, and far more than a busy machine takes."""


@pytest.mark.parametrize("size", [2, 3, 4])
def test_collectives_compute_what_they_say(size: int) -> None:
    results = run_ranks(compute, size)
    assert [r["wrong"] for r in results] == [[]] * size
    assert len({r["reduced"][0] for r in results}) == 1, "ranks differ in the bits of a sum"


@pytest.mark.parametrize("size", [2, 3, 5])
def test_swaps_bring_what_was_sent_and_count_it(size: int) -> None:
    assert run_ranks(swap_in_rounds, size) == [[]] * size


def sums_of_two(group: Gloo) -> list[Any]:
    """Gradients of two sizes and types in turn, now one rank late and now the other, with other collectives in
    between."""
    wrong, seen = [], hashlib.sha256()
    for n in range(40):
        size, dtype = ((1, torch.float32), (300_000, torch.float32), (300_000, torch.float64), (7, torch.float32))[
            n % 4
        ]
        parts = [torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(2 * n + r)) for r in range(2)]
        if n % 5 == 0:
            parts[n % 2][0] = float("nan")
        if n % 3 == group.rank:
            time.sleep(0.01)
        flat = parts[group.rank].clone()
        group.all_reduce(flat, "gradients")
        if n % 2:
            group.any(False)
            group.all_reduce(torch.ones(300_000), "control")
        if not torch.equal(torch.nan_to_num(flat), torch.nan_to_num(parts[0] + parts[1])):
            wrong.append(n)
        seen.update(flat.numpy().tobytes())
    return [wrong, seen.hexdigest(), group._ledger.get("network", "gradients")]


def test_two_ranks_sum_gradients_of_any_size_to_the_same_bits() -> None:
    (wrong, first, bytes_), other = run_ranks(sums_of_two, 2)
    assert wrong == [] and other == [[], first, bytes_]
    assert bytes_ == 10 * (4 + 300_000 * 4 + 300_000 * 8 + 7 * 4)


def sum_with_a_stopped_peer(group: Gloo) -> list[float]:
    """Rank 0 comes first, and is stopped, all its threads, until rank 1 has its sum."""
    flat = torch.full((200_000,), 1.0 + group.rank)
    group.all_reduce(flat.clone(), "gradients")
    if group.rank == 0:
        call = threading.Thread(target=group.all_reduce, args=(flat, "gradients"))
        call.start()
        time.sleep(2.0)  # by then it is on its way, also on a busy machine
        group._store.set("pid", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        call.join()
    else:
        pid = int(group._store.get("pid"))
        while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.01)
        group.all_reduce(flat, "gradients")
        os.kill(pid, signal.SIGCONT)
    return flat.unique().tolist()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the state of a process as Linux tells it")
def test_the_later_of_two_ranks_waits_for_no_answer() -> None:
    assert run_ranks(sum_with_a_stopped_peer, 2, timeout_s=60, group_timeout_s=20) == [[3.0], [3.0]]


def count_by_channel(group: Gloo) -> tuple[dict[str, dict[str, int]], ...]:
    other = 1 - group.rank

    def talk() -> None:
        into = torch.empty(5)
        swap = group.swap(torch.ones(5), other, into, other, 0, "activations")
        swap.received("")
        swap.sent("")
        group.all_to_all([torch.ones(2)] * 2, "features")
        group.any(True)
        group.all_reduce(torch.ones(4), "gradients")
        group.broadcast(torch.ones(6), 0, "graph")

    with group.counting("evaluation"):
        talk()
        with pytest.raises(ValueError), group.counting("network"):
            raise ValueError
        talk()
    in_evaluation = group._ledger.as_record()
    talk()
    return in_evaluation, group._ledger.as_record()


def test_bytes_are_counted_under_the_channel_of_the_day() -> None:
    for rank, (before, after) in enumerate(run_ranks(count_by_channel, 2)):
        once = {"graph": 24 * (rank == 0), "features": 8, "activations": 20, "gradients": 16, "control": 1 + 8}
        assert before["evaluation"] == after["evaluation"] == {k: 2 * n for k, n in once.items()}
        assert set(before["network"].values()) == {0}
        assert after["network"] == once


def sent_by_sockets() -> int:
    """Bytes that the kernel has sent, or holds to send, on this process's TCP connections."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if not os.readlink(link).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as s:
                if s.family not in (socket.AF_INET, socket.AF_INET6) or s.type != socket.SOCK_STREAM:
                    continue
                info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue
        # struct tcp_info: u32 tcpi_notsent_bytes at 144, u64 tcpi_bytes_sent at 200, u64 tcpi_bytes_retrans at 208.
        notsent, sent, retrans = struct.unpack_from("=I", info, 144) + struct.unpack_from("=QQ", info, 200)
        total += notsent + sent - retrans
    return total


HEADER_BYTES = 48
"""Headers of a message by gloo: announced, asked for by its receiver, and sent."""


def measure(group: Gloo) -> list[tuple[str, int, int, int]]:
    """(what, payload bytes by the ledger, bytes by the sockets, headers that this rank sends at most) of each
    collective."""
    rank, size = group.rank, group.size
    results = []

    def measured(what: str, call: Callable[[], object], sent: int, received: int) -> None:
        counted, before = sum(network(group).values()), sent_by_sockets()
        call()
        # Only when all have said so is everybody done.
        group.any(False)
        results.append(
            (
                what,
                sum(network(group).values()) - counted,
                sent_by_sockets() - before,
                2 * sent + received + 3 * (size - 1),
            )
        )

    for n in (1, 1000, 1_000_003):
        for dtype in (torch.float32, torch.float64):
            segments = 2 * (size - 1) * max(2, -(-n * dtype.itemsize // (size << 20)))
            ones = torch.ones(n, dtype=dtype)
            measured(
                f"all_reduce of {n} {dtype}", lambda ones=ones: group.all_reduce(ones, "gradients"), segments, segments
            )
    for source in range(size):
        sends = broadcast_sends(rank, size, source)
        ones = torch.ones(100_000)
        measured(
            f"broadcast from {source}",
            lambda s=source, ones=ones: group.broadcast(ones, s, "control"),
            sends,
            int(rank != source),
        )
    for rows in (0, 3, 20_000):
        parts = [torch.ones(rows * (rank + r), 4) for r in range(size)]
        measured(
            f"all_to_all of {rows}",
            lambda parts=parts: group.all_to_all(parts, "features"),
            2 * (size - 1),
            2 * (size - 1),
        )
    for rows in (1, 50_000):
        to, source = (rank + 1) % size, (rank - 1) % size

        def once(rows=rows, to=to, source=source) -> None:
            swap = group.swap(torch.ones(rows, 4), to, torch.empty(rows, 4), source, 3, "activations")
            swap.received("")
            swap.sent("")

        measured(f"swap of {rows}", once, 2, 2)
    # A rank that ends closes its connections, whose counters others may still read.
    group.any(False)
    return results


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads the kernel's counters of TCP connections, as Linux has them"
)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_ledger_agrees_with_the_kernels_counters(size: int) -> None:
    for rank, measurements in enumerate(run_ranks(measure, size)):
        for what, counted, sent, headers in measurements:
            assert counted <= sent <= counted + HEADER_BYTES * headers, (
                f"rank {rank}: {what}: {counted} bytes counted, {sent} sent"
            )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13])
def test_bytes_of_all_ranks_add_up(size: int) -> None:
    for numel in (1, 2, 5, 1000, 1_000_003, 9_999_999):
        for itemsize in (4, 8):
            sent = [ring_bytes(numel, itemsize, rank, size) for rank in range(size)]
            assert sum(sent) == 2 * (size - 1) * numel * itemsize
            if numel > 1000:
                assert max(sent) <= 1.01 * min(sent), "every rank sends the same"
    for source in range(size):
        assert sum(broadcast_sends(rank, size, source) for rank in range(size)) == size - 1


@pytest.mark.parametrize("make", [Solo, lambda: Gloo(dist.HashStore(), 0, 1, Ledger(), Contact("127.0.0.1"))])
def test_a_group_of_one(make: Callable[[], Any]) -> None:
    group = make()
    flat = torch.arange(4.0)
    group.all_reduce(flat, "gradients")
    group.broadcast(flat, 0, "control")
    assert (group.rank, group.size, flat.tolist()) == (0, 1, [0.0, 1.0, 2.0, 3.0])
    assert group.any(True) is True and group.any(False) is False
    part = torch.ones(3, 2)
    assert group.all_to_all([part], "features")[0] is part
    assert group.all_to_all([part], "features", [part[:0]])[0] is part
    swap = group.swap(part[:0], 0, part[:0], 0, 0, "activations")
    swap.received("nothing")
    swap.sent("nothing")
    with group.counting("evaluation"):
        group.all_reduce(flat, "gradients")
    if isinstance(group, Gloo):
        assert set(group._ledger.counts()) == {0}
        group.close()
        group.close()


def outlive(group: Gloo) -> list[str]:
    if group.rank == 1:
        os._exit(9)
    calls: list[Callable[[], object]] = [
        lambda: group.all_reduce(torch.ones(10), "gradients"),
        lambda: group.any(True),
        lambda: group.broadcast(torch.ones(10), 1, "control"),
        lambda: group.all_to_all([torch.ones(2)] * 2, "features"),
    ]
    sentences = []
    for call in calls:
        start = time.monotonic()
        with pytest.raises(PeerLostError) as e:
            call()
        assert time.monotonic() - start < SOON_S
        sentences.append(str(e.value))
    return sentences


def test_a_dead_peer_is_an_error_not_a_wait() -> None:
    sentences, _ = run_ranks(outlive, 2, mortal=(1,))
    for name, sentence in zip(["all_reduce", "any", "broadcast", "all_to_all"], sentences):
        assert f"rank 0 of 2 could not finish {name}: a peer is gone" in sentence


def lose_in_swap(group: Gloo, dies: str) -> list[str]:
    """Messages about rows to be received, rows to be sent, and a swap begun when all is known."""
    if group.rank == 1:
        if dies == "before":
            os._exit(9)
        time.sleep(0.5)
        os._exit(9)
    if dies == "before":
        time.sleep(0.5)
    sentences = []
    start = time.monotonic()
    with pytest.raises(PeerLostError) as e:
        group.swap(torch.ones(2, 3), 1, torch.empty(2, 3), 1, 5, "activations").received(
            "layer 1, forward, round 1 of 1: rows of rank 1"
        )
    sentences.append(str(e.value))
    with pytest.raises(PeerLostError) as e:
        group.swap(torch.ones(1 << 22), 1, torch.empty(0), 1, 6, "activations").sent(
            "layer 1, backward: gradients to rank 1"
        )
    sentences.append(str(e.value))
    assert time.monotonic() - start < SOON_S
    return sentences


@pytest.mark.parametrize("dies", ["before", "meanwhile"])
def test_a_peer_that_dies_during_a_swap_is_an_error_that_names_the_round(dies: str) -> None:
    first, second = run_ranks(lose_in_swap, 2, dies, mortal=(1,))[0]
    start = "rank 0 of 2 could not finish"
    if dies == "meanwhile":
        assert f"{start} layer 1, forward, round 1 of 1: rows of rank 1: a peer is gone" in first
    else:
        # Gloo may know of it before anything is waited for.
        assert re.match(
            rf"{start} (sending to rank 1|layer 1, forward, round 1 of 1: rows of rank 1): a peer is gone", first
        )
    assert re.match(rf"{start} (sending to rank 1|layer 1, backward: gradients to rank 1): a peer is gone", second)


def wait_in_vain(group: Gloo, how: str) -> str:
    if group.rank == 1:
        # Alive and silent until the other rank has given up.
        group._store.wait(["gave up"], timedelta(seconds=SOON_S))
        return ""
    start = time.monotonic()
    out, into = (0, 10) if how == "received" else (1 << 22, 0)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: group.all_reduce(torch.ones(10), "gradients"),
        "received": lambda: group.swap(torch.ones(out), 1, torch.empty(into), 1, 0, "activations").received(
            "layer 0: rows of rank 1"
        ),
        "sent": lambda: group.swap(torch.ones(out), 1, torch.empty(into), 1, 0, "activations").sent(
            "layer 0: rows to rank 1"
        ),
    }
    with pytest.raises(PeerLostError) as e:
        calls[how]()
    assert 0.9 < time.monotonic() - start < SOON_S
    group._store.set("gave up", "")
    return str(e.value)


@pytest.mark.parametrize(
    ("how", "what"),
    [("all_reduce", "all_reduce"), ("received", "layer 0: rows of rank 1"), ("sent", "layer 0: rows to rank 1")],
)
def test_a_silent_peer_is_an_error_in_time(how: str, what: str) -> None:
    assert f"{what}: a peer did not answer within 1 s" in run_ranks(wait_in_vain, 2, how, group_timeout_s=1.0)[0]


def last_sum(group: Gloo) -> tuple[float, str]:
    listen = gloo._PostedReceive.listen

    def listen_late(posted: gloo._PostedReceive) -> None:
        if hasattr(posted, "_received"):
            group._store.wait(["ended"])
            until = time.monotonic() + 10
            while posted._lost is None and time.monotonic() < until:
                listen(posted)
                time.sleep(0.01)
            return
        listen(posted)

    if group.rank == 0:
        gloo._PostedReceive.listen = listen_late
    total = torch.ones(5)
    group.all_reduce(total, "gradients")
    if group.rank == 1:
        group.close()
        group._store.set("ended", "")
        return float(total[0]), ""
    assert any(posted._lost for posted in group._posted.values())
    with pytest.raises(PeerLostError) as lost:
        group.all_reduce(total.clone(), "gradients")
    return float(total[0]), str(lost.value)


def test_a_peer_may_end_after_the_last_sum() -> None:
    """As a rank does that the other one has made wait; only another sum fails."""
    (total, lost), other = run_ranks(last_sum, 2)
    assert (total, other) == (2.0, (2.0, ""))
    assert "rank 0 of 2 could not finish all_reduce: a peer is gone" in lost


def test_ranks_that_do_not_come_are_an_error_in_time() -> None:
    with pytest.raises(PeerLostError, match=r"could not finish the first meeting: a peer did not answer within 0\.5 s"):
        Gloo(dist.HashStore(), 0, 2, Ledger(), Contact("127.0.0.1", timeout_s=0.5))


def test_a_host_that_is_no_address_of_this_machine_is_named() -> None:
    with pytest.raises(InputError, match=r"host 'no\.such\.host\.invalid' is not an address of this machine"):
        Gloo(dist.HashStore(), 0, 1, Ledger(), Contact("no.such.host.invalid"))


def stumble(group: Gloo, how: str) -> int:
    if group.rank == 1:
        if how == "raise":
            raise ValueError("stumbled over a stone")
        if how == "die":
            os._exit(3)
        time.sleep(600)
    return group.rank


@pytest.mark.parametrize(
    ("how", "match"),
    [("raise", "(?s)rank 1 raised.*stumbled over a stone"), ("die", "rank 1 died"), ("hang", r"ranks \[1\]")],
)
def test_the_harness_tells_what_a_rank_did(how: str, match: str) -> None:
    start = time.monotonic()
    with pytest.raises(RankFailedError, match=match):
        run_ranks(stumble, 2, how, timeout_s=2 if how == "hang" else 2 * SOON_S)
    assert time.monotonic() - start < SOON_S
    assert run_ranks(stumble, 1, how) == [0]


def sums_with_work_meanwhile(group: Gloo) -> list[Any]:
    """Rank 0 tells its peers, from its work meanwhile, that they may begin the sum: nobody's numbers but its own are
    there by then."""
    called, found = [], []
    for n, kind in enumerate(("gradients", "gradients", "control")):
        flat = torch.full((1000,), 1.0 + group.rank)

        def overlap(n: int = n) -> None:
            called.append(n)
            if group.rank == 0:
                group._store.set(f"begin/{n}", "")

        if group.rank:
            group._store.wait([f"begin/{n}"])
        group.all_reduce(flat, kind, overlap)
        found.append(flat.unique().tolist())
    return [called, found]


@pytest.mark.parametrize("size", [2, 3])
def test_work_is_done_while_numbers_travel(size: int) -> None:
    assert run_ranks(sums_with_work_meanwhile, size) == [[[0, 1, 2], [[size * (size + 1) / 2]] * 3]] * size


def fails_meanwhile(group: Gloo) -> str:
    """Error of rank 0; the other may hear of it or not."""

    def fail() -> None:
        raise RuntimeError("out of room")

    try:
        group.all_reduce(torch.ones(10), "gradients", *([] if group.rank else [fail]))
    except RuntimeError as e:
        return str(e)
    return ""


def test_what_fails_meanwhile_is_no_peers_doing() -> None:
    assert run_ranks(fails_meanwhile, 2)[0] == "out of room"
