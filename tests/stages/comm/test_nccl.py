"""Groups of ranks on GPUs. Without a GPU gloo stands in for NCCL, over a pretended device; what needs one is skipped.

``pytest tests/stages/comm/test_nccl.py`` on a machine with a GPU shows NCCL at a world size of 1, and two ranks over
gloo that share the GPU.
"""

import os
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from millrace.stages.comm.gloo import Gloo
from millrace.stages.comm.nccl import Nccl, even_ring_bytes
from millrace.stages.placement.row_blocks import Grid
from millrace.storage.errors import InputError, PeerLostError
from millrace.storage.ledger import Ledger
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.collectives import compute, network, swap_in_rounds
from millrace.tests.contracts.nccl import HERE, InPlaceOfNccl, stood_in
from millrace.tests.contracts.pretended_device import DEVICE, install_for_good
from millrace.tests.contracts.process_ranks import run_ranks

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def compute_stood_in(group: Gloo) -> Any:
    made = stood_in(group)
    found = compute(made, "cuda")
    wrong = found["wrong"] + compute(made)["wrong"]
    asked = made._on_gpus.asked
    return wrong, found["reduced"], {name: asked.count(name) for name in set(asked)}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_compute_what_they_say(size: int) -> None:
    results = run_ranks(compute_stood_in, size)
    assert [wrong for wrong, _, _ in results] == [[]] * size
    assert len({reduced[0] for _, reduced, _ in results}) == 1
    for _, _, asked in results:
        assert asked["allreduce"] > 10 and asked["broadcast"] == 2 * size and asked["alltoall_base"] > 10


def swap_stood_in(group: Gloo) -> Any:
    made = stood_in(group)
    wrong = swap_in_rounds(made)
    on_host, there = list(made._on_gpus.asked), swap_in_rounds(made, "cuda", in_order=True)
    swaps = made._on_gpus.asked.count("swap")
    sub = made.sub("circle", range(made.size))
    sub.all_reduce(torch.ones(3, device="cuda"), "control")
    last = made.swap(*[torch.empty(0, 3, device="cuda"), 1 - made.rank] * 2, 0, "activations")
    last.received("nothing")
    return wrong, there, on_host, swaps, made._on_gpus.asked.count("swap"), type(sub).__name__


def fetch_stood_in(group: Gloo) -> Any:
    from millrace.stages.fetch.exchange_cuda import OnDevice
    from millrace.stages.fetch.owned_rows import OwnedRows

    made = stood_in(group)
    column = Grid(made.size, 1).subgroup(made, "rows", same_thread=True)
    to = made._device
    x, book = torch.arange(20.0, device=to).view(10, 2), RangeBook(np.array([0, 4, 10]))
    own = x[:4] if made.rank == 0 else x[4:]
    owned = OwnedRows(OnDevice(own, to), book, column, own[:, 0], to)
    ids = torch.tensor([9, 0, 5, 3], dtype=torch.int32, device=to)
    got = owned.collect(ids)
    assert got.degree is not None
    right = torch.equal(got.rows[got.place], x[ids]) and torch.equal(got.degree, x[ids, 0])
    return right, network(made), column._on_gpus.asked, made._on_gpus.asked


def test_a_group_of_the_same_thread_goes_over_nccl_too() -> None:
    """As rows that ranks own on their GPUs do; words about how many come go over gloo."""
    pytest.importorskip("triton")
    for right, sent, asked, of_whole in run_ranks(fetch_stood_in, 2):
        assert right
        assert asked == ["allreduce", "alltoall_base", "alltoall_base", "alltoall_base"], (
            "the first meeting, ids, rows, degrees"
        )
        assert of_whole == ["allreduce"]
        assert (sent["features"], sent["graph"], sent["control"]) == (2 * 2 * 4, 2 * 4, 2 * 4 + 8)


def test_swaps_between_gpus_go_over_nccl_in_their_order_and_the_rest_over_gloo() -> None:
    for size in (2, 4):
        for wrong, there, on_host, swaps, last, sub in run_ranks(swap_stood_in, size):
            assert wrong == there == []
            assert on_host == ["allreduce"], "the first meeting"
            assert 5 < swaps == last, "what is empty does not travel"
            assert sub == "Gloo"


def count_stood_in(group: Gloo) -> Any:
    made = stood_in(group)
    made.all_reduce(torch.ones(1001, device="cuda"), "gradients")
    made.broadcast(torch.ones(6, device="cuda"), 1, "graph")
    made.any(False)
    return network(made), made._ledger.waits()["network"]


def test_the_ledger_counts_a_ring() -> None:
    size = 3
    results = run_ranks(count_stood_in, size)
    assert sum(sent["gradients"] for sent, _ in results) == 2 * (size - 1) * 1001 * 4
    assert [sent["graph"] for sent, _ in results] == [0, 24, 24], "rank 0 is the last after rank 1"
    for sent, waits in results:
        assert (sent["control"], waits["gradients"], waits["graph"], waits["control"]) == (
            size - 1,
            2 * (size - 1),
            size - 1,
            1,
        )


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_bytes_of_all_ranks_add_up(size: int) -> None:
    for numel in (1, 5, 1000, 1_000_003):
        sent = [even_ring_bytes(numel, 4, rank, size) for rank in range(size)]
        assert sum(sent) == 2 * (size - 1) * numel * 4
        assert max(sent) - min(sent) <= 2 * 4


def lose_a_peer(group: Gloo) -> Any:
    made = stood_in(group)
    if made.rank == 1:
        os._exit(9)
    with pytest.raises(PeerLostError, match="could not finish any: a peer is gone"):
        made.any(False)
    backend = made._on_gpus
    made.close()
    made.close()
    return backend.ended


def test_a_dead_peer_is_an_error_at_the_next_agreement_and_nothing_is_waited_for() -> None:
    # Whoever waited would wait for an hour, and `run_ranks` would end it.
    assert run_ranks(lose_a_peer, 2, mortal=(1,), group_timeout_s=3600.0)[0] == "abort"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, on_device: torch.device) -> Any:
    """Makes a group of one, with the stand-in."""
    monkeypatch.setattr(dist, "ProcessGroupNCCL", InPlaceOfNccl, raising=False)
    return lambda: Nccl(dist.HashStore(), 0, 1, Ledger(), HERE, device=DEVICE)


def test_a_group_that_is_well_is_shut_down(alone: Any) -> None:
    group = alone()
    backend = group._on_gpus
    group.close()
    assert backend.ended == "shutdown"


@pytest.mark.parametrize(
    ("says", "error", "match"),
    [
        (
            "NCCL error in: /pytorch/NCCLUtils.cpp:93, invalid usage (run with "
            "NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n"
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
            "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 4f000",
            InputError,
            'rank 0 of 1 has its GPU together with another rank.*cluster.backend = "gloo"',
        ),
        (
            "NCCL error in: /pytorch/NCCLUtils.cpp:93, unhandled system "
            "error\nncclSystemError: x\nLast error:\nNo socket interface found",
            PeerLostError,
            r"could not finish the first meeting on GPUs: a peer is gone \(No socket interface found\)",
        ),
    ],
)
def test_what_is_wrong_with_nccl_shows_when_ranks_meet(
    alone: Any, monkeypatch: pytest.MonkeyPatch, says: str, error: Any, match: str
) -> None:
    monkeypatch.setattr(InPlaceOfNccl, "says", says)
    with pytest.raises(error, match=match):
        alone()


def test_what_is_wrong_with_the_own_gpu_is_no_peers_doing(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(InPlaceOfNccl, "allreduce", full)
    with pytest.raises(torch.OutOfMemoryError):
        alone()


def test_a_torch_without_nccl_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist, "ProcessGroupNCCL", raising=False)
    with pytest.raises(InputError, match=r'built without it.*cluster\.backend = "gloo"'):
        Nccl(dist.HashStore(), 0, 1, Ledger(), HERE, device=DEVICE)


def compute_on_device(group: Gloo) -> Any:
    install_for_good()
    return compute(group, "cuda"), swap_in_rounds(group, "cuda")


def test_gloo_takes_what_lies_on_a_device_by_way_of_the_host() -> None:
    """Ranks share the GPU, if there is one."""
    results = run_ranks(compute_on_device, 2)
    assert [(found["wrong"], swapped) for found, swapped in results] == [([], [])] * 2
    assert len({found["reduced"][0] for found, _ in results}) == 1


# --- on a GPU ---


@gpu
def test_one_rank_over_nccl() -> None:
    torch.cuda.set_device(0)
    group = Nccl(dist.HashStore(), 0, 1, Ledger(), HERE, device=torch.device("cuda", 0))
    assert compute(group, "cuda")["wrong"] == compute(group)["wrong"] == []
    flat = torch.rand(1 << 20, device="cuda")
    before = flat.clone()
    group.all_reduce(flat, "gradients")
    assert torch.equal(flat, before)
    assert set(group._ledger.counts()) == {0}, "nothing travels"
    group.close()
    group.close()
