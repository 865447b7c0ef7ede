"""Contract of every group of several ranks: the collectives, and their counts. Functions for
`process_ranks.run_ranks`."""

import time
from typing import Any

import numpy as np
import torch

from millrace.stages.comm.gloo import Gloo
from millrace.storage.ledger import KINDS

DTYPES = (torch.float32, torch.float64, torch.int64)
LENGTHS = (0, 1, 2, 3, 7, 1000, 300_001)
SEEDS = range(12)


def network(group: Gloo) -> dict[str, int]:
    return {kind: group._ledger.get("network", kind) for kind in KINDS["network"]}


def parts_between(size: int, seed: int) -> list[list[torch.Tensor]]:
    """[source][target] tensors; numbers of rows are small, often zero, sometimes large."""
    rng = np.random.default_rng(seed)
    rows = rng.choice([0, 0, 1, 2, 17, 3000], (size, size))
    if seed == 0:
        rows[:] = 0
    trailing = [(), (1,), (5,), (0,)][seed % 4]
    dtype = DTYPES[seed % 3]
    return [
        [torch.from_numpy(rng.integers(-99, 99, (rows[a, b], *trailing))).to(dtype) for b in range(size)]
        for a in range(size)
    ]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.cpu(), b.cpu())


def compute(group: Gloo, device: str = "cpu") -> dict[str, Any]:
    """Errors that this rank has found in the collectives of tensors on `device`, and the bits of a sum of fractions."""
    rank, size = group.rank, group.size
    wrong = []

    def check(ok: bool, *what: object) -> None:
        if not ok:
            wrong.append(what)

    reduced = []
    for dtype in DTYPES:
        for n in LENGTHS:
            flat = (torch.arange(n).to(dtype) + rank).to(device)
            group.all_reduce(flat, "gradients")
            check(same(flat, torch.arange(n).to(dtype) * size + sum(range(size))), "sum", dtype, n)
    flat = torch.from_numpy(np.random.default_rng(rank).random(10_000, np.float32)).to(device)
    group.all_reduce(flat, "gradients")
    reduced.append(flat.cpu().numpy().tobytes())

    for lonely in range(-1, size):
        check(group.any(rank == lonely) is (lonely >= 0), "any", lonely)
    check(group.any(True), "any, of all")

    for source in range(size):
        for n in (0, 1, 1000):
            flat = (torch.arange(n) if rank == source else torch.full((n,), -1)).to(device)
            group.broadcast(flat, source, "control")
            check(same(flat, torch.arange(n)), "broadcast", source, n)

    for seed in SEEDS:
        parts = [[p.to(device) for p in of_source] for of_source in parts_between(size, seed)]
        before = network(group)
        got = group.all_to_all(parts[rank], "features")
        check(got[rank] is parts[rank][rank], "own part", seed)
        for source in range(size):
            check(same(got[source], parts[source][rank]), "all_to_all", seed, source)
        sent = sum(p.nbytes for r, p in enumerate(parts[rank]) if r != rank)
        after = network(group)
        check(after["features"] - before["features"] == sent, "ledger of all_to_all", seed)
        check(after["control"] - before["control"] == 8 * (size - 1), "ledger of sizes", seed)

        lengths = [0 if r == rank else len(parts[r][rank]) for r in range(size)]
        into = list(parts[rank][0].new_empty((sum(lengths), *parts[rank][0].shape[1:])).split(lengths))
        joined = torch.cat([parts[rank][rank][:0], *(p for r, p in enumerate(parts[rank]) if r != rank)])
        adjoining = list(joined.split([0 if r == rank else len(p) for r, p in enumerate(parts[rank])]))
        got = group.all_to_all(adjoining, "features", into)
        for source in set(range(size)) - {rank}:
            check(
                same(into[source], parts[source][rank]) and got[source] is into[source], "all_to_all into", seed, source
            )
        check(network(group)["control"] == after["control"], "no sizes travel", seed)
    return {"wrong": wrong, "reduced": reduced}


def swap_in_rounds(group: Gloo, device: str = "cpu", in_order: bool = False) -> list[tuple[object, ...]]:
    """Swap from every rank to every other, each in its own order or all in the same one; all ranks know what the others
    send."""
    rank, size = group.rank, group.size
    wrong: list[tuple[object, ...]] = []
    for seed in SEEDS:
        parts, before = [[p.to(device) for p in of_source] for of_source in parts_between(size, seed)], network(group)
        order = np.random.default_rng(100 * seed + rank * (not in_order)).permutation(np.arange(1, size))
        under_way = []
        for r in order.tolist():
            to, source = (rank + r) % size, (rank - r) % size
            into = torch.full_like(parts[source][rank], -1)
            under_way.append((source, to, into, group.swap(parts[rank][to], to, into, source, 7 * r, "activations")))
            if seed % 2:
                # Ranks drift apart.
                time.sleep(0.002 * rank)
        for source, to, into, swap in under_way[:: -1 if seed % 3 else 1]:
            swap.received(f"rows of rank {source}")
            if not same(into, parts[source][rank]):
                wrong.append(("swap", seed, source))
            swap.sent(f"sending to rank {to}")
        sent = sum(p.nbytes for r, p in enumerate(parts[rank]) if r != rank)
        after = network(group)
        if {k: after[k] - before[k] for k in after} != {k: sent * (k == "activations") for k in after}:
            wrong.append(("ledger", seed, before, after))
    # Two messages of one pair under one tag, one after the other.
    for value in range(2) if size > 1 else ():
        into = torch.empty(3, device=device)
        swap = group.swap(
            torch.full((3,), float(value), device=device), (rank + 1) % size, into, (rank - 1) % size, 1, "activations"
        )
        swap.received("")
        swap.sent("")
        if into.tolist() != [value] * 3:
            wrong.append(("again", value, into))
    return wrong
