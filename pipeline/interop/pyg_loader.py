"""`NeighborLoader`, PyG's loader of that name on Millrace's sampler. Only the import of a training script changes."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from inspect import signature
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from ...stages.assignment import BulkRequest
from ...stages.kernels import sampling_backend
from ...stages.random import Purpose, permutation, stream
from ...storage.array_kinds import IdArray
from ...storage.errors import InputError, whole_number
from . import pyg_arguments as arguments
from .export import require_pyg
from .pyg_prefetch import Prefetcher, SamplingThreads
from .pyg_sampler import ALONE, PyGSampler, sampler_of

NONE = ("transform", "transform_sampler_output", "filter_per_worker", "custom_cls", "generator", "seed")
"""Arguments of all loaders that are None by default."""


class BulkLoader(SamplingThreads, DataLoader[Any]):
    """A loader of PyG's over a `PyGSampler` that samples bulks in a thread ahead of the caller's.

    An object's class is also PyG's `of_pyg`, which is imported when one is made, and begins as its base `begun_as`.
    """

    of_pyg: ClassVar[str]
    begun_as: ClassVar[str]
    neg_sampling: Any = None
    input_data: Any = None

    def __new__(cls, *_: object, **__: object) -> Any:
        """An object of the class and of PyG's."""
        require_pyg(cls.__name__)
        return object.__new__(_with_pyg(cls))

    def __reduce__(self) -> tuple[object, ...]:
        return _blank, (type(self).__bases__[0],), self.__dict__

    def _begin(self, sampler: PyGSampler, given: dict[str, Any], **inputs: Any) -> None:
        """Begin as PyG's loader.

        Args:
            sampler: the loader's.
            given: other arguments: PyG's, torch's, `seed`, `bulk_size` and `prefetch_bulks`.
            inputs: arguments of PyG's loader.
        """
        own: dict[str, Any] = dict.fromkeys(NONE)
        own |= {"batch_size": 1, "shuffle": False, "drop_last": False, "num_workers": 0}
        own |= {"bulk_size": 8, "prefetch_bulks": 1}
        own |= {name: given.pop(name) for name in own if name in given}
        names, kind = signature(type(self).__init__).parameters, type(inputs["data"]).__name__
        torchs = arguments.dataloader(given, own["filter_per_worker"], names, type(self).__name__)
        if own["custom_cls"] is not None and kind not in ("tuple", "list"):
            raise InputError(f"custom_cls is for feature stores, and data is {kind}; leave it out")
        for name in ("batch_size", "bulk_size", "prefetch_bulks", "num_workers"):
            own[name] = whole_number(name, own[name], int(name != "num_workers"))
        self.bulk_size, self._room = own.pop("bulk_size"), own.pop("prefetch_bulks")
        self._seed, change = own.pop("seed"), own["transform_sampler_output"]
        arguments.check_kinds(self._seed, own["generator"], transform=own["transform"], transform_sampler_output=change)
        if change is not None:
            own["transform_sampler_output"] = partial(_transformed, change)
        self._shuffle = own["shuffle"] = bool(own["shuffle"])
        self._own_order = torchs.get("sampler") is None and torchs.get("batch_sampler") is None
        self._workspaces, self._calls, self.sampler_of_bulks = [], 0, sampler
        self.epoch = 0
        """The epoch of the next ``iter()``; set it to resume a run that has a `seed`."""
        begin = resolve_name(f"torch_geometric.loader.{self.begun_as}").__init__
        try:
            begin(self, inputs.pop("data"), sampler, **inputs, **own, **torchs)
        except (TypeError, ValueError) as e:
            raise InputError(f"torch's DataLoader refuses the arguments: {e}") from None
        self._count = len(self.dataset)  # pyrefly: ignore[bad-argument-type]

    # pyrefly: ignore[bad-override]
    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch."""
        seed, epoch = self._epoch_seed(), self.epoch
        self.epoch += 1
        return self._minibatches(seed, epoch, self._cuts(seed, epoch))

    # A DataLoader's own iterator would sample in worker processes.
    _get_iterator = __iter__  # pyrefly: ignore[bad-override]

    def check_worker_number_rationality(self) -> None:
        """Do nothing: there are no worker processes."""

    # pyrefly: ignore[bad-override-mutable-attribute]
    def collate_fn(self, index: object) -> object:
        """The minibatch of the inputs at the positions `index` [B], sampled at once. Each call draws other samples. If
        `filter_per_worker` is False, PyG's `SamplerOutput`, the argument of `filter_fn`.

        Raises:
            InputError: `index` holds something other than positions.
        """
        cut = arguments.positions(index, self._count, "index")
        (out,) = self._sample(BulkRequest(self._epoch_seed(), ALONE, 0, self._calls, ()), [cut])
        self._calls += 1
        loader: Any = self
        return loader.filter_fn(out) if loader.filter_per_worker else out

    def _epoch_seed(self) -> int:
        if self._seed is not None:
            return self._seed
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _cuts(self, seed: int, epoch: int) -> list[IdArray]:
        """Positions of the inputs of each minibatch of the epoch."""
        if not self._own_order:
            assert self.batch_sampler is not None
            name = "sampler" if self.batch_size is not None else "batch_sampler"
            return [arguments.positions(batch, self._count, name) for batch in self.batch_sampler]
        assert self.batch_size is not None
        order = np.arange(self._count)
        if self._shuffle:
            order = permutation(stream(seed, Purpose.SHUFFLE, epoch), order)
        return [order[j * self.batch_size : (j + 1) * self.batch_size] for j in range(len(self))]

    def _sample(self, request: BulkRequest, cuts: Sequence[IdArray], workspace: Any = None) -> list[Any]:
        inputs = [self.input_data[torch.from_numpy(cut)] for cut in cuts]
        return self.sampler_of_bulks.sample_bulk(request, inputs, self.neg_sampling, workspace)

    def _minibatches(self, seed: int, epoch: int, cuts: list[IdArray]) -> Iterator[Any]:
        workspace = self._workspaces.pop() if self._workspaces else sampling_backend("cpu").Workspace()

        def make(number: int) -> list[Any]:
            first = number * self.bulk_size
            request = BulkRequest(seed, epoch, number, first, ())
            return self._sample(request, cuts[first : first + self.bulk_size], workspace)

        done, loader = self._workspaces.append, self
        ahead = Prefetcher(make, -(-len(cuts) // self.bulk_size), self._room, lambda: done(workspace), self._settle())
        try:
            for _ in range(0, len(cuts), self.bulk_size):
                bulk = ahead.get()
                for i in range(len(bulk)):
                    out, bulk[i] = bulk[i], None
                    batch = loader.filter_fn(out)  # pyrefly: ignore[missing-attribute]
                    yield pin_memory(batch) if self.pin_memory and torch.cuda.is_available() else batch
        finally:
            ahead.stop()


@cache
def _with_pyg(cls: Any) -> Any:
    """`cls` as a class of PyG's, too."""
    # From its own module: a script may have put ours in the place of the package's name.
    theirs: Any = resolve_name(f"torch_geometric.loader.{cls.of_pyg}")
    return type(cls.__name__, (cls, theirs), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})


def _blank(cls: Any) -> Any:
    return cls.__new__(cls)


def _transformed(function: Callable[[Any], Any], out: Any) -> Any:
    """What a user's `function` makes of a sampler's output; what is known of the inputs stays."""
    made = function(out)
    if not isinstance(made, type(out)):
        raise InputError(
            f"transform_sampler_output returned {type(made).__name__}; expected PyG's {type(out).__name__}"
        )
    made.metadata = out.metadata if made.metadata is None else made.metadata
    return made


class NeighborLoader(BulkLoader):
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

    The loader is one of PyG's, and so a `torch.utils.data.DataLoader`, but uses none of its processes or iterators.
    Unsupported arguments are refused by name: `disjoint` or `time_attr` with "induced", `time_attr` with `weight_attr`.
    The semantics are those of PyG 2.8, `loader.NodeLoader`.
    """

    of_pyg, begun_as = "neighbor_loader:NeighborLoader", "node_loader:NodeLoader"

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
        neighbor_sampler: PyGSampler | None = None,
        directed: bool = True,
        *,
        input_id: Any = None,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        drop_last: bool = False,
        num_workers: int = 0,
        generator: torch.Generator | None = None,
        seed: int | None = None,
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
            neighbor_sampler: a `PyGSampler`, in place of the arguments that describe one.
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
        given = arguments.given(locals())
        self._begin_nodes(sampler_of(given), given)

    def _begin_nodes(self, sampler: PyGSampler, given: dict[str, Any]) -> None:
        """Begin with the arguments of a loader that are not its sampler's."""
        data, input_time = given.pop("data"), given.pop("input_time", None)
        kind, nodes, ids = sampler.source.input_nodes(given.pop("input_nodes"))
        if (named := given.pop("input_id", None)) is not None:
            ids = arguments.tensor("input_id", named)
            if ids.shape != (len(nodes),):
                raise InputError(f"input_id has shape {list(ids.shape)}; expected [{len(nodes)}], one per input node")
        time = None if input_time is None else arguments.tensor("input_time", input_time)
        inputs = nodes if kind is None else (kind, nodes)
        self._begin(sampler, given, data=data, input_nodes=inputs, input_time=time, input_id=ids)
        sampler.seeds_of_nodes(self.input_data)
