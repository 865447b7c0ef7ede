"""Sampling on the device: edges a second of every sampler, kernel by kernel, compared with plain torch and with the
compiled kernels' bits.

What is drawn stays on the device. Seeds and streams are there before the clock starts, since making them is the host's
work and takes the same time whoever samples (`requests` says how long). PyG has no sampler for a GPU, and none at all
without pyg-lib or torch-sparse, so `plain` stands beside ours: a hop as a user of torch would write it, one minibatch
at a time, with replacement, which is less work.
"""

import importlib.util
import os
import statistics
from typing import Any

import numpy as np
import torch
from gpu_lab import Lab, Request
from gpu_links import link_bulks
from gpu_times import time_bulks
from peers.train_task import FANOUT
from torch import Tensor

from millrace.stages.kernels.sampling.cuda import backend as cuda
from millrace.stages.kernels.sampling.cuda import labor as labor_cuda
from millrace.stages.kernels.sampling.cuda import layerwise as layerwise_cuda
from millrace.stages.kernels.sampling.cuda import neighbor as sample_cuda
from millrace.stages.kernels.sampling.cuda.tables import TABLE_BYTES, Workspace, stride
from millrace.stages.kernels.sampling.cuda.terms import terms
from millrace.stages.kernels.sampling.device_graph import on_device
from millrace.stages.kernels.sampling.draws import LaborDraws, LayerDraws, NeighborDraws

LAYER_WISE = ("ladies", "fastgcn")
KERNELS = dict.fromkeys(LAYER_WISE, "layers")
"""Kernels of samplers with another name than theirs."""
SAMPLERS = ("neighbor", "labor", *LAYER_WISE)
BULKS: dict[str, tuple[int, ...]] = dict.fromkeys(SAMPLERS, (16, 64, 192))
COMPARED = 8
"""Minibatches of the bulks whose bits are compared."""
EDGE_BYTES = 80
"""The least that `cuda.neighbor` says of a drawn edge: its source's sector, a mark, a look, and 4 bytes written, read,
and written."""
SECTOR = 32
"""Bytes that a read of anything costs."""


def batch_of(lab: Lab, name: str) -> int:
    """Seeds of a minibatch; layer-wise samplers take as many nodes a layer, see `layerwise.py`."""
    return lab.batch // 2 if name in LAYER_WISE else lab.batch


def asked_of(lab: Lab, name: str, request: Request, workspace: Workspace | None = None) -> Any:
    """Request to the kernels of a sampler for the minibatches of a bulk."""
    if name in LAYER_WISE:
        counts = (batch_of(lab, name),) * len(FANOUT)
        return LayerDraws(request.seeds, request.keys, counts, every_row=name == "fastgcn", workspace=workspace)
    if name == "labor":
        return LaborDraws(request.seeds, request.keys[:, 0], FANOUT, workspace=workspace)
    return NeighborDraws(request.seeds, request.keys, FANOUT, workspace=workspace)


def draw(lab: Lab, name: str, request: Request, workspace: Workspace) -> Any:
    """The minibatches of a bulk, on the device."""
    seeds, asked = (request.flat, request.counts), asked_of(lab, name, request, workspace)
    if name in LAYER_WISE:
        return layerwise_cuda.layers(terms(lab.graph), seeds, asked)
    if name == "labor":
        return labor_cuda.labor(on_device(lab.graph), seeds, request.streams[0], asked, None, None)
    return sample_cuda.neighbor(on_device(lab.graph), seeds, request.streams, asked, None, None)


def sizes(lab: Lab, name: str, made: Any) -> dict[str, int]:
    """Edges drawn, in-edges that had to be looked at, nodes found, minibatches; sums over a bulk."""
    rows, k, layers = made.rows, len(made.node_ends[0]), len(made.node_ends) - 1
    counts = torch.from_numpy(made.node_ends[-1])
    first = (counts.cumsum(0) - counts).to(lab.device)
    place = torch.arange(len(rows.nodes), device=lab.device) - first[rows.owner.long()]
    degree = on_device(lab.graph).indptr.diff()[rows.nodes.long()]
    looked = 0
    # Layer-wise samplers walk the rows of every hop again, the others each row once.
    for h in range(layers) if name in LAYER_WISE else [layers - 1]:
        ends = torch.from_numpy(made.node_ends[h]).to(lab.device)
        looked += int(degree[place < ends[rows.owner.long()]].sum())
    edges = sum(int(x.edges.sum()) for x in made.lists)
    return {"edges": edges, "looked_at": looked, "nodes": len(rows.nodes), "minibatches": k, "hops": layers}


def floor_bytes(lab: Lab, name: str, size: dict[str, int]) -> float:
    """The least that must move, with the tables that are looked through once a hop."""
    tables = lab.num_nodes * size["minibatches"] * size["hops"]
    if name == "neighbor":
        return tables + EDGE_BYTES * size["edges"]
    if name == "labor":
        # Every in-edge is read, one after the other; its sector is shared with its neighbours.
        return tables + 4 * size["looked_at"] + (EDGE_BYTES - SECTOR) * size["edges"]
    return tables + (4 + SECTOR) * size["looked_at"] + 12 * size["edges"]


def sample_all(lab: Lab) -> None:
    """Part "sampling"."""
    found: dict[str, Any] = lab.details.setdefault("sampling", {})
    found["requests_ms"] = 1000 * lab.seconds(lambda: lab.bulks(min(64, lab.minibatches), lab.batch))
    found["absent"] = [name for name in ("pyg_lib", "torch_sparse") if importlib.util.find_spec(name) is None]
    lab.say(
        f"  requests of an epoch: {found['requests_ms']:.1f} ms of the host; not "
        f"installed: {', '.join(found['absent']) or 'none'}"
    )
    peer = None
    with lab.attempt("sampling: plain torch"):
        peer = _plain_rate(lab)
        lab.say(f"  plain torch, one minibatch at a time: {peer:.4g} G edges/s")
    fit = TABLE_BYTES // (5 * stride(lab.num_nodes))
    for name in SAMPLERS:
        workspace = Workspace()
        for bulk in sorted({min(b, lab.minibatches, fit) for b in BULKS[name]}):
            with lab.attempt(f"sampling: {name} in bulks of {bulk}"):
                _measure(lab, name, bulk, workspace, peer if name == "neighbor" else None)
        with lab.attempt(f"sampling: kernels of {name}"):
            found[f"{name} kernels"] = profile(lab, name, workspace)
        del workspace
        lab.clear()


def _measure(lab: Lab, name: str, bulk: int, workspace: Workspace, peer: float | None) -> None:
    requests = lab.bulks(bulk, batch_of(lab, name))
    size = sizes(lab, name, draw(lab, name, requests[0], workspace))
    drawn: list[int] = []

    def epoch() -> None:
        drawn.append(0)
        for request in requests:
            made = draw(lab, name, request, workspace)
            drawn[-1] += sum(int(x.edges.sum()) for x in made.lists)

    lab.warm_up(epoch)
    took = lab.repeated(epoch)
    s = statistics.median(took)
    least = floor_bytes(lab, name, size) * len(requests) * bulk / size["minibatches"] / lab.copy_bytes_per_s
    edges = drawn[-1]
    label = f"sampling {name}, bulks of {bulk}"
    lab.add(
        label, edges / s / 1e9, "G edges/s", floor=edges / least / 1e9, peer=peer, against="plain torch" if peer else ""
    )
    lab.details["sampling"][f"{name} {bulk}"] = {
        "epoch_s": took,
        "epoch_edges": edges,
        "first_bulk": size,
        "floor_s": least,
    }


def profile(lab: Lab, name: str, workspace: Workspace) -> dict[str, Any]:
    """Which kernels one bulk's time goes to: the ten longest, and how much of the time the device was at work at
    all."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    request = lab.bulks(min(BULKS[name][0], lab.minibatches), batch_of(lab, name))[0]
    lab.warm_up(lambda: draw(lab, name, request, workspace))
    wall = lab.seconds(lambda: draw(lab, name, request, workspace))
    kind = ProfilerActivity.CUDA if lab.on_gpu else ProfilerActivity.CPU
    with recording(activities=[kind]) as seen:
        draw(lab, name, request, workspace)
        lab.wait()
    spent = (lambda e: e.self_device_time_total) if lab.on_gpu else (lambda e: e.self_cpu_time_total)
    # With kernels come the driver's calls on the host.
    kernels = (e for e in seen.key_averages() if e.device_type.name == lab.device.type.upper())
    table = sorted(kernels, key=spent, reverse=True)
    busy, calls = sum(map(spent, table)) / 1e6, sum(e.count for e in table)
    lab.say(
        f"  {name}, a bulk of {len(request.seeds)}: {1000 * wall:.2f} ms, {1000 * busy:.2f} of them in {calls} kernels "
        f"({100 * busy / max(wall, 1e-9):.0f} %)"
    )
    for e in table[:10]:
        lab.say(f"    {spent(e) / 1e3:8.3f} ms {e.count:5d} x  {e.key[:90]}")
    longest = [{"name": e.key[:200], "ms": spent(e) / 1e3, "count": e.count} for e in table[:30]]
    return {"wall_ms": 1000 * wall, "busy_ms": 1000 * busy, "launches": calls, "kernels": longest}


def plain(
    indptr: Tensor, indices: Tensor, seeds: Tensor, fanout: tuple[int, ...], new: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """One minibatch in plain torch, with replacement: nodes, and each hop's edges as positions among them.

    Args:
        indptr: int64 [V+1].
        indices: int [E].
        seeds: int64 [B].
        fanout: nearest the seeds first.
        new: int64 [V], all -1, and so again afterwards.
    """
    new[seeds] = torch.arange(len(seeds), device=seeds.device)
    nodes, frontier, hops = seeds, seeds, []
    for s in fanout:
        start = indptr[frontier]
        degree = indptr[frontier + 1] - start
        pick = (torch.rand(len(frontier), s, device=seeds.device) * degree[:, None]).long()
        kept = torch.arange(s, device=seeds.device) < degree.clamp(max=s)[:, None]
        src = indices[(start[:, None] + pick)[kept]].long()
        unique = torch.unique(src)
        frontier = unique[new[unique] < 0]
        new[frontier] = torch.arange(len(nodes), len(nodes) + len(frontier), device=seeds.device)
        nodes = torch.cat([nodes, frontier])
        hops.append(new[src])
    new[nodes] = -1
    return nodes, hops


def _plain_rate(lab: Lab) -> float:
    """10^9 edges a second of `plain`."""
    on = on_device(lab.graph)
    new = torch.full((lab.num_nodes,), -1, dtype=torch.int64, device=lab.device)
    seeds = [r.flat.long() for r in lab.bulks(1, lab.batch)[:16]]
    edges = [0]

    def run() -> None:
        edges[0] = sum(len(h) for s in seeds for h in plain(on.indptr, on.indices, s, FANOUT, new)[1])

    run()
    return edges[0] / statistics.median(lab.repeated(run)) / 1e9


def same_bits(lab: Lab) -> None:
    """Part "bits": a few bulks of every sampler, against the compiled kernels of the CPU; and how fast those are on all
    of its cores. Samplers that are written as matrices are measured here, and bulks of links and by time.

    Compiling them takes about a minute where nothing is kept from before.
    """
    from millrace.stages.assignment import BulkRequest
    from millrace.stages.kernels.runtime.threads import set_num_threads
    from millrace.stages.kernels.sampling.cpu import backend as cpu
    from millrace.stages.sample.ppr import PprSampler
    from millrace.stages.sample.saint import SaintSampler
    from millrace.tests.contracts.digests import minibatch_digest

    cores = len(os.sched_getaffinity(0))
    set_num_threads(cores)
    graph, bulk = lab.graph, min(COMPARED, lab.minibatches)
    for name in SAMPLERS:
        with lab.attempt(f"bits: {name}"):
            batch = batch_of(lab, name)

            def sampled(kernel: Any, r: Request, name: str = name) -> list[Any]:
                return getattr(kernel, KERNELS.get(name, name))(graph, asked_of(lab, name, r))

            requests = lab.bulks(bulk, batch)[:3]
            differ = [i for i, r in enumerate(requests) if not _equal(sampled(cuda, r), sampled(cpu, r))]
            if differ:
                raise AssertionError(f"bulks {differ} of {name} differ from those of the compiled kernels")
            s = statistics.median(lab.repeated(lambda draw=sampled, r=requests[0]: draw(cpu, r), most=3))
            rate = sum(len(x) for m in sampled(cpu, requests[0]) for x in _indices(m)) / s
            lab.details.setdefault("bits", {})[name] = {
                "equal_bulks": len(requests),
                "cpu_edges_per_s": rate,
                "cores": cores,
            }
            lab.say(f"  {name}: {len(requests)} bulks of {bulk} are bit-identical with those of the compiled kernels")
            lab.add(f"sampling {name}, compiled kernels on {cores} cores", rate / 1e9, "G edges/s")
    for sampler in (SaintSampler(), PprSampler()):
        with lab.attempt(f"bits: {sampler.name}"):
            request = BulkRequest(0, 0, 0, 0, tuple(lab.bulks(bulk, lab.batch)[0].seeds))
            made = [sampler.sample(graph, request, kernel) for kernel in (cuda, cpu)]
            if len({tuple(map(minibatch_digest, b.minibatches)) for b in made}) > 1:
                raise AssertionError(f"minibatches of {sampler.name} differ from those of the compiled kernels")
            edges = sum(m.num_edges for m in made[1].minibatches)
            s = statistics.median(lab.repeated(lambda of=sampler, r=request: of.sample_on_device(graph, r)))
            own = statistics.median(lab.repeated(lambda of=sampler, r=request: of.sample(graph, r, cpu), most=3))
            lab.add(f"sampling {sampler.name}, as matrices, a bulk of {bulk}", edges / s / 1e9, "G edges/s")
            lab.add(f"sampling {sampler.name}, as matrices, on {cores} cores", edges / own / 1e9, "G edges/s")
    link_bulks(lab)
    time_bulks(lab)


def _indices(m: Any) -> list[np.ndarray]:
    return [x.indices for x in m.lists] if hasattr(m, "lists") else list(m.indices)


def _arrays(m: Any) -> list[np.ndarray]:
    """All arrays of a minibatch, in a fixed order."""
    ends = np.array(m.node_ends)
    if hasattr(m, "lists"):
        return [m.nodes, ends, *(a for x in m.lists for a in (x.indptr, x.indices))]
    return [m.nodes, ends, *m.indptr, *m.indices, *(m.weight or ())]


def _equal(ours: list[Any], theirs: list[Any]) -> bool:
    pairs = [(a, b) for m, n in zip(ours, theirs, strict=True) for a, b in zip(_arrays(m), _arrays(n), strict=True)]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
