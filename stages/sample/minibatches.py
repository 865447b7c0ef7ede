"""Minibatches for training loops of one's own."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ...storage.array_kinds import IdArray
from ...storage.dataset import Dataset
from ...storage.errors import InputError, whole_number
from ...storage.graph import Graph
from ...storage.minibatch import MiniBatch
from ..assignment import SeedPlan
from ..kernels import SAMPLING, check_known, sampling_backend, workspace_of
from ..kernels.runtime.threads import at_most
from .base import Sampler, check_kernel

_idle: WeakKeyDictionary[Graph, dict[str, list[Any]]] = WeakKeyDictionary()
"""Workspaces for the next epoch, by kernel: as long as the graph is."""


def sample_minibatches(
    graph: Graph | Dataset,
    sampler: Sampler,
    seeds: object,
    *,
    batch_size: int = 1024,
    bulk_size: int = 8,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    threads: int | None = None,
    kernel: str = "cpu",
) -> Iterator[MiniBatch]:
    """Sample one epoch of minibatches, bulk after bulk, in the caller's thread.

    The minibatches are those of a run with the same sampler, seeds, batch size, seed and epoch. They depend neither on
    `bulk_size`, nor on `threads`, nor on `kernel`. The memory of minibatches that are dropped is used for the next
    ones, and buffers are kept for the next epoch as long as the graph is.

    Args:
        graph: in-neighbour lists, or a dataset that has them.
        sampler: such as ``mr.NeighborSampler((15, 10, 5))``.
        seeds: node ids [N], each once, or a boolean mask [V].
        batch_size: seeds of a minibatch; the last one may have fewer.
        bulk_size: minibatches that are sampled together. Larger bulks are faster, up to about 64, and take more memory.
        epoch: another epoch gives other samples and another order of the seeds.
        seed: of the random numbers.
        shuffle: False keeps the seeds in the order given.
        threads: at most this many; by default, and at most, as many as torch uses.
        kernel: ``cpu`` (compiled), ``cuda`` (samples on the GPU and copies to the host), or ``matrix`` (SciPy,
            slow, for a `MatrixSampler`).

    Raises:
        InputError: an argument is not usable; raised by the call, before the first minibatch is asked for.
    """
    lists = graph.graph if isinstance(graph, Dataset) else graph
    if not isinstance(lists, Graph):
        raise InputError(
            f"graph is {_kind(graph)}; expected a Graph, such as mr.from_edges(src, dst), or a Dataset, such as "
            "mr.open_dataset(path)"
        )
    if isinstance(sampler, type) or not hasattr(sampler, "sample"):
        shown = f"the class {sampler.__name__}" if isinstance(sampler, type) else _kind(sampler)
        raise InputError(f"sampler is {shown}; expected a sampler, such as mr.NeighborSampler((15, 10, 5))")
    check_known(kernel, SAMPLING)
    check_kernel(sampler, kernel)
    sampler.check(lists)
    plan = SeedPlan(
        _seeds(seeds, lists.num_nodes),
        whole_number("batch_size", batch_size, 1),
        whole_number("bulk_size", bulk_size, 1),
        whole_number("seed", seed, 0),
        bool(shuffle),
    )
    at, most = whole_number("epoch", epoch, 0), None if threads is None else whole_number("threads", threads, 1)
    return _minibatches(lists, sampler, plan, at, most, sampling_backend(kernel))


def _minibatches(
    graph: Graph, sampler: Sampler, plan: SeedPlan, epoch: int, threads: int | None, backend: Any
) -> Iterator[MiniBatch]:
    idle = _idle.setdefault(graph, {}).setdefault(backend.__name__, [])
    try:
        workspace = idle.pop()
    except IndexError:
        workspace = workspace_of(backend)
    for number in range(plan.num_bulks):
        with at_most(threads):
            minibatches = list(sampler.sample(graph, plan.request(epoch, number), backend, workspace).minibatches)
        minibatches.reverse()
        try:
            while minibatches:
                # Held by the caller only, so that a dropped minibatch frees its memory for the next bulk.
                yield minibatches.pop()
        except GeneratorExit:
            break
    idle.append(workspace)


def _kind(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else f"of type {type(value).__name__}"


def _seeds(seeds: object, num_nodes: int) -> IdArray:
    given = seeds.detach().cpu().numpy() if isinstance(seeds, torch.Tensor) else np.asarray(seeds)
    if given.dtype == bool:
        if given.shape != (num_nodes,):
            raise InputError(f"seeds is a mask of shape {list(given.shape)}; expected [{num_nodes}], one for each node")
        given = np.flatnonzero(given)
    if given.ndim != 1 or not len(given):
        raise InputError(f"seeds has shape {list(given.shape)}; expected node ids [N], at least one, or a mask")
    if not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"seeds is of {given.dtype}; expected integers (node ids) or booleans (a mask)")
    if given.min() < 0 or given.max() >= num_nodes:
        raise InputError(f"seeds holds node ids in [{given.min()}, {given.max()}]; expected [0, {num_nodes})")
    ids = given.astype(np.int64)
    counts = np.bincount(ids, minlength=1)
    if counts.max() > 1:
        twice = int(counts.argmax())
        raise InputError(f"seeds holds node {twice} {counts[twice]} times; expected each node once, as np.unique gives")
    return ids
