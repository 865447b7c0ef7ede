"""`NeighborLoader`, PyG's loader of that name on Millrace's sampler. Only the import of a training script changes."""

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from ...stages.assignment import BulkRequest
from ...stages.kernels import sampling_backend
from ...stages.random import Purpose, permutation, stream
from ...stages.sample.neighbor import NeighborSampler
from ...storage.errors import InputError, whole_number
from . import pyg_arguments as arguments
from .export import SampledGraph, require_pyg
from .pyg_many_types import ManyTypes
from .pyg_one_type import OneType
from .pyg_prefetch import Prefetcher, SamplingThreads
from .pyg_stores import of_stores
from .pyg_subgraphs import Timed, Times, drawable, sample

CALLS = -1
"""Epoch of the samples drawn by calling a loader."""


class NeighborLoader(SamplingThreads, DataLoader[Any]):
    """Iterates over sampled minibatches of a `torch_geometric.data.Data` or `HeteroData`, like PyG's `NeighborLoader`.

    Each minibatch is a `Data` that owns its memory, with every node-level and edge-level attribute of `data` filtered
    (by PyG's own rules and code) and

    * ``edge_index`` int64 [2, e]: source and destination as positions in ``n_id``; by hop, then by destination;
    * ``n_id`` int64 [n]: global ids, the ``batch_size`` seeds first, then hop by hop (ascending within a hop, while
      PyG's are in order of discovery);
    * ``e_id`` int64 [e]: columns of ``data.edge_index``;
    * ``input_id`` int64 [B]: node ids if `input_nodes` is a mask or None, else positions in `input_nodes`;
    * ``num_sampled_nodes`` (L+1 numbers) and ``num_sampled_edges`` (L numbers), for
      `torch_geometric.utils.trim_to_layer`; absent, as in PyG, unless `subgraph_type` is "directional";
    * ``batch`` int64 [n]: position of the seed whose tree a node is in, if `disjoint`, else None;
    * ``seed_time`` [B]: the `input_time` of the seeds, if given, else None.

    Of a `HeteroData` it is a `HeteroData`: nodes and edges of each type have these attributes, and the seeds' type has
    ``input_id``, ``batch_size`` and ``seed_time``. Each edge type draws for itself. Every type is there, with no rows
    where nothing was found.

    Only newly found nodes are expanded in the next hop, as in PyG. A node without in-edges draws none, with `replace`
    too. A node that is a seed twice draws in-edges for each position separately; edges out of it leave its first
    position. A thread samples ahead, in bulks; features are gathered and `transform` runs in the caller's thread. The
    thread ends with the iteration, also if the iteration is abandoned. Each ``iter()`` is a new epoch with another
    order and other samples. They depend only on the seed, the epoch and the order of the seeds, not on bulks, threads
    or `num_workers`. ``loader(index)`` samples the input nodes at these positions at once.

    The loader is a `torch.utils.data.DataLoader`, but uses none of its processes or iterators. Unsupported arguments
    are refused by name: `neighbor_sampler`, `disjoint` or `time_attr` with "induced", `time_attr` with `weight_attr`.
    The semantics are those of PyG 2.8, `loader.NodeLoader`.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int] | dict[tuple[str, str, str], Sequence[int]],
        input_nodes: Any = None,
        input_time: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Any = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        drop_last: bool = False,
        num_workers: int = 0,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        input_id: Any = None,
        bulk_size: int = 8,
        prefetch_bulks: int = 1,
        **dataloader: Any,
    ) -> None:
        """
        Args:
            data: `Data` with ``edge_index`` [2, E], source in row 0 and destination in row 1, or without edges; or
                `HeteroData`, whose edge types have such; or a pair of PyG's `FeatureStore` and `GraphStore`. Later
                changes to edges have no effect.
            num_neighbors: in-neighbours per node and hop, nearest the seeds first; -1 takes all. With types, of each
                edge type: the same numbers, or those of a dictionary, in which 0 does not follow an edge type.
            input_nodes: the seeds, as node ids [N], which may repeat, or a boolean mask [V]; None means every node.
                With types ``(node type, ids, mask or None)``, or a node type.
            input_time: [N], the time of each seed; nothing later is in its tree. By default the node's own, if
                `time_attr` is one of nodes.
            replace: draw with replacement.
            subgraph_type: "directional": the sampled edges; "bidirectional": these and their reverses, each pair of
                nodes once; "induced": all edges among the sampled nodes (takes memory for all in-edges of these nodes).
                Or PyG's `SubgraphType`.
            disjoint: each seed grows its own tree, and a node is in each tree that finds it.
            temporal_strategy: of the edges that are not too late, draw "uniform" ones or the "last".
            time_attr: name of an attribute of nodes [V] or edges [E], numbers. An edge may be drawn if its own time, or
                that of its source, is at most the seed's. Trees are disjoint then. Edges of types without it may always
                be drawn.
            weight_attr: name of an edge attribute [E], finite and non-negative: edges are drawn in proportion to it,
                those of weight 0 never, by -1 neither. Edge types without it are drawn uniformly.
            transform: called with each minibatch, in the caller's thread; its result is yielded.
            transform_sampler_output: called with each minibatch's `torch_geometric.sampler.SamplerOutput` or
                `HeteroSamplerOutput` (whose ``edge`` has columns of ``edge_index``), in the caller's thread; its result
                decides how attributes are filtered.
            is_sorted: accepted; the edges are indexed once, sorted or not, and ``e_id`` always refers to columns of
                ``edge_index``.
            filter_per_worker: decides what `collate_fn` returns, and is True unless `data` is on a GPU; iterations
                ignore it, with a warning.
            neighbor_sampler: None.
            directed: deprecated; False means "induced".
            batch_size: seeds per minibatch.
            shuffle: a new permutation of the seeds every epoch.
            drop_last: leave out an incomplete last minibatch.
            num_workers: accepted; there are no worker processes, a thread samples ahead.
            generator: seeds every epoch; without it and without `seed`, torch's default generator does, so that
                ``torch.manual_seed`` has the same effect as for a DataLoader.
            seed: fixes the samples of epoch 0, 1, ... regardless of other random draws.
            input_id: [N], values reported as ``input_id``.
            bulk_size: minibatches sampled together.
            prefetch_bulks: bulks that may be sampled ahead; one takes about 24 bytes an edge.
            dataloader: other arguments of torch's DataLoader. `sampler` and `batch_sampler` give positions in
                `input_nodes`, those of a whole epoch when it begins, and need a length; `pin_memory` pins minibatches
                if there is CUDA. `collate_fn`, which PyG drops too, and arguments for worker processes are ignored with
                one warning. Also PyG's `custom_cls`, the class of minibatches of feature stores.

        Raises:
            InputError: an argument is unusable or not supported; the message names it.
            UnknownArgumentError: there is no such argument (also a TypeError).
            MissingExtraError: PyTorch Geometric is not installed.
        """
        require_pyg(type(self).__name__)
        self._source = _source(data, weight_attr, time_attr, dataloader.pop("custom_cls", None))
        if neighbor_sampler is not None:
            raise InputError(
                "neighbor_sampler is not supported: leave it out, or use torch_geometric.loader.NeighborLoader for it"
            )
        last = arguments.temporal_strategy(temporal_strategy, time_attr, input_time)
        given = arguments.dataloader(dataloader, filter_per_worker, signature(NeighborLoader).parameters)
        # As in PyG, each seed has its own tree where it has its own time.
        self._disjoint = bool(disjoint) or time_attr is not None
        self._kind = arguments.subgraph_type(subgraph_type, directed, self._disjoint)
        size, workers = whole_number("batch_size", batch_size, 1), whole_number("num_workers", num_workers, 0)
        self.bulk_size, self._room = (
            whole_number("bulk_size", bulk_size, 1),
            whole_number("prefetch_bulks", prefetch_bulks, 1),
        )
        arguments.check_kinds(seed, generator, transform=transform, transform_sampler_output=transform_sampler_output)
        self.data, self.transform, self.transform_sampler_output = data, transform, transform_sampler_output
        self.input_nodes, self.input_id = input_nodes, input_id
        if filter_per_worker is None:
            filter_per_worker = not getattr(data, "is_cuda", False)
        self.filter_per_worker = bool(filter_per_worker)
        self.epoch = 0
        """The epoch of the next ``iter()``; set it to resume a run that has a `seed`."""
        self._calls, self._seed = 0, seed
        self._graph = drawable(self._source.graph)
        self._sampler = self._sampler_of(num_neighbors, bool(replace))
        self._type, self._seeds, self._ids = self._inputs(input_nodes)
        if input_id is not None:
            self._ids = arguments.tensor("input_id", input_id)
            if self._ids.shape != (len(self._seeds),):
                raise InputError(
                    f"input_id has shape {list(self._ids.shape)}; expected [{len(self._seeds)}], one for each input "
                    "node"
                )
        self._times: Times | None = None
        self._moments, self._input_time = np.empty(0), None
        if time_attr is not None:
            if weight_attr is not None:
                raise InputError("both time_attr and weight_attr are given; expected one of them, as in PyG")
            self._times = self._source.times(time_attr, last)
            self._moments, self._input_time = self._input_moments(time_attr, input_time)
        self._shuffle = bool(shuffle)
        self._own_order = given.get("sampler") is None and given.get("batch_sampler") is None
        self._workspaces: list[Any] = []
        try:
            super().__init__(
                # pyrefly: ignore[bad-argument-type]
                range(len(self._seeds)),
                batch_size=size,
                shuffle=self._shuffle,
                num_workers=workers,
                collate_fn=self.collate_fn,
                drop_last=bool(drop_last),
                generator=generator,
                **given,
            )
        except (TypeError, ValueError) as e:
            raise InputError(f"torch's DataLoader refuses the arguments: {e}") from None

    def _sampler_of(self, num_neighbors: Any, replace: bool) -> NeighborSampler | None:
        """The sampler that `_sampled` uses, or None."""
        return self._source.sampler(num_neighbors, replace)

    def _inputs(self, given: Any) -> tuple[Any, npt.NDArray[np.int64], Tensor]:
        """The type of the inputs, None for a `Data`; the inputs of minibatches, one in each row; and the `input_id` of
        each, int64 [N]."""
        return self._source.input_nodes(given)

    def _input_moments(self, time_attr: str, given: Any) -> tuple[npt.NDArray[np.number], Tensor | None]:
        """The time of each input, [N], and what was given."""
        if given is not None:
            moments = arguments.moments("input_time", given, len(self._seeds), "input node")
            return moments, arguments.tensor("input_time", given)
        assert self._times is not None
        if self._times.of_nodes is None:
            raise InputError(f"time_attr is '{time_attr}', a time of edges; give the seeds theirs by input_time")
        if self._type not in self._times.node_types:
            raise InputError(f"time_attr is '{time_attr}', which '{self._type}' has not; give the seeds' by input_time")
        return arguments.moments(time_attr, self._times.of_nodes[self._seeds], len(self._seeds), "input node"), None

    # pyrefly: ignore[bad-override]
    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch."""
        seed, epoch = self._epoch_seed(), self.epoch
        self.epoch += 1
        return self._minibatches(seed, epoch, self._cuts(seed, epoch))

    # pyrefly: ignore[bad-override]
    def _get_iterator(self) -> Iterator[Any]:
        # A DataLoader's own iterator would sample in worker processes.
        return iter(self)

    def __call__(self, index: Any) -> Any:
        """The minibatch of the input nodes at the positions `index` [B], sampled at once. Each call draws other
        samples.

        Raises:
            InputError: `index` holds something other than positions.
        """
        out = self.collate_fn(index)
        return out if self.filter_per_worker else self.filter_fn(out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def check_worker_number_rationality(self) -> None:
        """Do nothing: there are no worker processes."""

    # pyrefly: ignore[bad-override-mutable-attribute]
    def collate_fn(self, index: Any) -> Any:
        """Sample like `__call__`; if `filter_per_worker` is False, return PyG's `SamplerOutput`, the argument of
        `filter_fn`."""
        cut = arguments.positions(index, len(self._seeds), "index")
        (found,) = self._sample(self._epoch_seed(), CALLS, 0, self._calls, [cut], sampling_backend("cpu").Workspace())
        self._calls += 1
        out = self._output(found, cut)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Join a `torch_geometric.sampler.SamplerOutput` with the attributes of `data`.

        Raises:
            InputError: `transform_sampler_output` returned something else.
        """
        metadata: Any = out.metadata
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        batch = self._source.filtered(out)
        self._describe(batch, metadata if out.metadata is None else out.metadata)
        return batch if self.transform is None else self.transform(batch)

    def _describe(self, batch: Any, metadata: Any) -> None:
        """Add what is known of the inputs."""
        store = batch if self._type is None else batch[self._type]
        store.input_id, store.seed_time = metadata
        store.batch_size = len(store.input_id)

    def _output(self, found: Any, cut: npt.NDArray[np.int64]) -> Any:
        """PyG's `SamplerOutput` or `HeteroSamplerOutput` of a minibatch of the inputs at the positions `cut`."""
        at = torch.from_numpy(cut)
        metadata = self._ids[at], None if self._input_time is None else self._input_time[at]
        return self._source.output(found, metadata, self._kind == "bidirectional")

    def _epoch_seed(self) -> int:
        if self._seed is not None:
            return self._seed
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _cuts(self, seed: int, epoch: int) -> list[npt.NDArray[np.int64]]:
        """Positions in `input_nodes` of each minibatch of the epoch."""
        if not self._own_order:
            assert self.batch_sampler is not None
            name = "sampler" if self.batch_size is not None else "batch_sampler"
            return [arguments.positions(batch, len(self._seeds), name) for batch in self.batch_sampler]
        assert self.batch_size is not None
        order = np.arange(len(self._seeds))
        if self._shuffle:
            order = permutation(stream(seed, Purpose.SHUFFLE, epoch), order)
        return [order[j * self.batch_size : (j + 1) * self.batch_size] for j in range(len(self))]

    def _sample(
        self,
        seed: int,
        epoch: int,
        number: int,
        first: int,
        cuts: Sequence[npt.NDArray[np.int64]],
        workspace: Any,
    ) -> list[Any]:
        timed = None if self._times is None else Timed(self._times, [self._moments[cut] for cut in cuts])
        found = self._sampled(seed, epoch, number, first, [self._seeds[cut] for cut in cuts], workspace, timed=timed)
        return [self._source.split(graph) for graph in found]

    def _sampled(
        self,
        seed: int,
        epoch: int,
        number: int,
        first: int,
        seeds: Sequence[npt.NDArray[np.int64]],
        workspace: Any,
        timed: Timed | None = None,
    ) -> list[SampledGraph]:
        """The neighbourhoods of the seeds of some minibatches."""
        request = BulkRequest(seed, epoch, number, first, tuple(seeds))
        relations = self._source.relations
        # PyG makes a sample with types bidirectional: `ManyTypes.output`.
        kind = "directional" if relations is not None and self._kind == "bidirectional" else self._kind
        return sample(
            self._sampler,
            self._graph,
            self._source.graph,
            request,
            workspace,
            kind,
            disjoint=self._disjoint,
            timed=timed,
            relations=relations,
        )

    def _minibatches(self, seed: int, epoch: int, cuts: list[npt.NDArray[np.int64]]) -> Iterator[Any]:
        try:
            workspace = self._workspaces.pop()
        except IndexError:
            workspace = sampling_backend("cpu").Workspace()

        def make(number: int) -> list[Any]:
            first = number * self.bulk_size
            return self._sample(seed, epoch, number, first, cuts[first : first + self.bulk_size], workspace)

        done = self._workspaces.append
        ahead = Prefetcher(make, -(-len(cuts) // self.bulk_size), self._room, lambda: done(workspace), self._settle())
        try:
            for first in range(0, len(cuts), self.bulk_size):
                bulk = ahead.get()
                for i in range(len(bulk)):
                    graph, bulk[i] = bulk[i], None
                    batch = self.filter_fn(self._output(graph, cuts[first + i]))
                    yield pin_memory(batch) if self.pin_memory and torch.cuda.is_available() else batch
        finally:
            ahead.stop()


def _source(data: Any, weight_attr: Any, time_attr: Any, custom_cls: Any) -> OneType | ManyTypes:
    from torch_geometric.data import HeteroData

    if isinstance(data, tuple | list):
        return of_stores(data, weight_attr, time_attr, custom_cls)
    if custom_cls is not None:
        raise InputError(f"custom_cls is for feature stores, and data is {type(data).__name__}; leave it out")
    return ManyTypes(data, weight_attr) if isinstance(data, HeteroData) else OneType(data, weight_attr)
