"""`PyGSampler`, Millrace's sampler in the form of PyG's `BaseSampler`. The loaders of `millrace` draw bulks with it."""

import math
from collections.abc import Sequence
from dataclasses import replace as changed
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...stages.assignment import BulkRequest
from ...stages.kernels import sampling_backend
from ...stages.links.random_ends import RandomEnds
from ...stages.random import Purpose, branches, stream
from ...stages.sample.single.trees import Timed, both_ways, drawable, edges_among, sample_separately
from ...storage.array_kinds import IdArray
from ...storage.errors import InputError
from ...storage.optional import taken
from . import pyg_arguments as arguments
from .export import require_pyg, sampled_graph, sampler_output
from .pyg_many_types import ManyTypes
from .pyg_one_type import OneType
from .pyg_stores import of_stores

if TYPE_CHECKING:
    from torch_geometric import sampler as pyg

    Law, Input = pyg.NegativeSampling | None, pyg.NodeSamplerInput | pyg.EdgeSamplerInput
    Output = pyg.SamplerOutput | pyg.HeteroSamplerOutput

Moments = npt.NDArray[np.number]
ALONE = -1
"""Epoch of minibatches that are asked for one by one."""


class PyGSampler:
    """Samples neighbourhoods for PyG's `NodeLoader`, `LinkLoader`, `LightningNodeData` and `LightningLinkData`, which
    take it as ``node_sampler``, ``link_sampler`` or ``graph_sampler``: a `torch_geometric.sampler.BaseSampler`.

    Its arguments and samples are those of PyG's `NeighborSampler`; edges are columns of ``edge_index``, so that
    `edge_permutation` is None. It draws a minibatch at a time, in worker processes too, by torch's default generator;
    `millrace.NeighborLoader` and `LinkNeighborLoader` draw several at once, ahead of training.
    """

    edge_permutation = None

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        subgraph_type: Any = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
    ) -> None:
        """
        Args:
            data: see `millrace.NeighborLoader`, as for all arguments but one.
            num_neighbors: likewise.
            subgraph_type: likewise.
            replace: likewise.
            disjoint: likewise.
            temporal_strategy: likewise.
            time_attr: likewise.
            weight_attr: likewise.
            is_sorted: likewise.
            share_memory: accepted; forked workers share the graph.
            directed: deprecated; False means "induced".

        Raises:
            InputError: an argument is unusable or not supported; the message names it.
            MissingExtraError: PyTorch Geometric is not installed.
        """
        require_pyg(type(self).__name__)
        from torch_geometric.data import HeteroData
        from torch_geometric.sampler import BaseSampler

        BaseSampler.register(type(self))
        if isinstance(data, tuple | list):
            self.source: OneType | ManyTypes = of_stores(data, weight_attr, time_attr)
        else:
            self.source = (ManyTypes if isinstance(data, HeteroData) else OneType)(data, weight_attr)
        last = arguments.temporal_strategy(temporal_strategy, time_attr)
        # As in PyG, each seed has its own tree where it has its own time.
        self.disjoint = bool(disjoint) or time_attr is not None
        self.subgraph_type = arguments.subgraph_type(subgraph_type, directed, self.disjoint)
        self.num_neighbors, self.replace, self.time_attr = num_neighbors, bool(replace), time_attr
        self._check()
        if time_attr is not None and weight_attr is not None:
            raise InputError("both time_attr and weight_attr are given; expected one of them, as in PyG")
        self._graph = drawable(self.source.graph)
        self._times = None if time_attr is None else self.source.times(time_attr, last)
        self._negatives: dict[tuple[int, Any], tuple[Any, list[RandomEnds]]] = {}

    def _check(self) -> None:
        """Refuse numbers of neighbours that cannot be drawn."""
        self.source.sampler(self.num_neighbors, self.replace)

    def sample_from_nodes(self, index: "pyg.NodeSamplerInput", **_: object) -> "Output":
        """The minibatch of a `torch_geometric.sampler.NodeSamplerInput`: a `SamplerOutput` or `HeteroSamplerOutput`."""
        return self._alone(index)

    def sample_from_edges(self, index: "pyg.EdgeSamplerInput", neg_sampling: "Law" = None) -> "Output":
        """The minibatch of a `torch_geometric.sampler.EdgeSamplerInput` and of negatives that it draws."""
        return self._alone(index, neg_sampling)

    def _alone(self, index: "Input", neg_sampling: "Law" = None) -> Any:
        request = BulkRequest(int(torch.empty((), dtype=torch.int64).random_().item()), ALONE, 0, 0, ())
        return self.sample_bulk(request, [index], neg_sampling)[0]

    def sample_bulk(
        self, request: BulkRequest, inputs: Sequence["Input"], neg_sampling: "Law" = None, workspace: Any = None
    ) -> list[Any]:
        """The minibatches of some inputs, which depend on the request's seed, epoch and first index only.

        Args:
            request: without seeds.
            inputs: all `NodeSamplerInput`, or all `EdgeSamplerInput`.
            neg_sampling: PyG's `NegativeSampling`, or None.
            workspace: buffers reused from bulk to bulk.
        """
        pairs = "row" in vars(inputs[0])
        epoch, first = request.epoch & 0xFFFF_FFFF, request.first_index
        keys = (stream(request.seed, Purpose.NEGATIVE, epoch, first + k) for k in range(len(inputs)))
        seeds_of: Any = self.seeds_of_pairs if pairs else self.seeds_of_nodes
        parts = [seeds_of(given, key, neg_sampling) for given, key in zip(inputs, keys)]
        timed = None if self._times is None else Timed(self._times, [moments for _, moments, _ in parts])
        request = changed(request, seeds=tuple(seeds for seeds, _, _ in parts), indices=())
        found = self._sampled(request, timed, sampling_backend("cpu").Workspace() if workspace is None else workspace)
        outs = []
        for graph, given, (_, _, places) in zip(found, inputs, parts, strict=True):
            out, local = self.source.split(graph)
            if self.subgraph_type == "bidirectional":
                out = sampler_output(both_ways(out)) if local is None else out.to_bidirectional()
            if pairs:
                places = [place if local is None else local[place] for place in places]
                _describe_pairs(out, given, places, neg_sampling, self.disjoint)
            else:
                out.metadata = given.input_id, given.time
            outs.append(out)
        return outs

    def seeds_of_nodes(self, given: "pyg.NodeSamplerInput", *_: object) -> tuple[IdArray, Moments | None, None]:
        """Seeds of a minibatch, and their times.

        Raises:
            InputError: there are no such nodes, or they have no times and should.
        """
        seeds = self.source.global_ids(given.node, given.input_type, "input_nodes")
        if self._times is None:
            if given.time is not None:
                raise InputError("input_time is given without time_attr; name the attribute of data with the times")
            return seeds, None, None
        if given.time is not None:
            return seeds, arguments.moments("input_time", given.time, len(seeds), "input node"), None
        name, kind = self.time_attr, given.input_type
        if self._times.of_nodes is None:
            raise InputError(f"time_attr is '{name}', a time of edges; give the seeds theirs by input_time")
        if kind not in self._times.node_types:
            raise InputError(f"time_attr is '{name}', which '{kind}' has not; give the seeds' by input_time")
        return seeds, arguments.moments(str(name), self._times.of_nodes[seeds], len(seeds), "input node"), None

    def seeds_of_pairs(
        self, given: "pyg.EdgeSamplerInput", key: int, neg_sampling: "Law"
    ) -> tuple[IdArray, Moments | None, list[Tensor]]:
        """Seeds of a minibatch of pairs and its negatives, their times, and the positions of sources and of
        destinations among the seeds, negatives last.

        Raises:
            InputError: there are no such nodes, or times are given without `time_attr`, or it without times.
        """
        kinds: Any = (None, None) if given.input_type is None else (given.input_type[0], given.input_type[2])
        named = zip((given.row, given.col), kinds, ("sources", "destinations"))
        ends = [self.source.global_ids(e, t, f"{name} of edge_label_index") for e, t, name in named]
        moments = None
        if self._times is None and given.time is not None:
            raise InputError("'time_attr' is not set, but edge_label_time is; give both, or neither")
        if self._times is not None:
            if given.time is None:
                raise InputError("'edge_label_time' is not set, but time_attr is; give both, or neither")
            moments = arguments.moments("edge_label_time", given.time, len(ends[0]), "pair")
        if neg_sampling is not None and len(ends[0]):
            drawn = math.ceil(len(ends[0]) * neg_sampling.amount)
            later = None
            if moments is not None and self._times is not None:
                moments = np.resize(moments, len(ends[0]) + drawn)
                later = self._times.graph.as_time(moments[len(ends[0]) :])
            keys = branches(key, np.arange(drawn))
            laws = self.negatives(neg_sampling, given.input_type)
            for i in (1,) if neg_sampling.is_triplet() else (0, 1):
                ends[i] = np.concatenate([ends[i], laws[i].draw(keys, later)])
        if moments is not None:
            moments = np.concatenate([moments[: len(ends[0])], moments])
        both = np.concatenate(ends)
        seeds, place = (both, np.arange(len(both))) if self.disjoint else np.unique(both, return_inverse=True)
        return seeds, moments, [torch.from_numpy(part) for part in np.split(place, [len(ends[0])])]

    def negatives(self, neg_sampling: "pyg.NegativeSampling", kind: Any) -> list[RandomEnds]:
        """The laws of the ends of negatives of an edge type.

        Raises:
            InputError: their weights are unusable.
        """
        known = self._negatives.get((id(neg_sampling), kind))
        if known is None or known[0] is not neg_sampling:
            times = None if self._times is None else self._times.of_nodes
            laws = [
                RandomEnds(
                    ids,
                    arguments.node_weights(neg_sampling, name, ids),
                    taken(times, slice(ids.start, ids.stop)),
                    i,
                )
                for i, (name, ids) in enumerate(zip(("src_weight", "dst_weight"), self.source.ends(kind)))
            ]
            self._negatives[id(neg_sampling), kind] = known = neg_sampling, laws
        return known[1]

    def _sampled(self, request: BulkRequest, timed: Timed | None, workspace: object) -> list[object]:
        """The neighbourhoods of the seeds of some minibatches."""
        sampler, relations = self.source.sampler(self.num_neighbors, self.replace), self.source.relations
        # The bulk kernel draws within relations, but not by weight, and no seed twice.
        alone = self.disjoint or sampler is None or (relations is not None and sampler.weighted)
        apart = [i for i, seeds in enumerate(request.seeds) if alone or len(np.unique(seeds)) < len(seeds)]
        together = sorted(set(range(len(request.seeds))) - set(apart))
        out: dict[int, Any] = {}
        if together and sampler is not None:
            seeds = tuple(request.seeds[i] for i in together)
            part = changed(request, seeds=seeds, indices=tuple(request.indices[i] for i in together))
            bulk = sampler.sample(self._graph, part, sampling_backend("cpu"), workspace)
            out.update((i, sampled_graph(m, self._graph.edge_id)) for i, m in zip(together, bulk.minibatches))
        keys = request.keys(0 if sampler is None else sampler.num_layers) if apart else None
        for i in apart:
            assert keys is not None
            out[i] = sampler_output(
                sample_separately(
                    sampler, self._graph, request.seeds[i], keys[i], self.disjoint, timed, number=i, relations=relations
                )
            )
        found = [out[i] for i in range(len(request.seeds))]
        if self.subgraph_type != "induced":
            return found
        return [sampler_output(edges_among(self.source.graph, g.node.numpy())) for g in found]


def _describe_pairs(out: Any, given: Any, places: list[Tensor], neg_sampling: Any, disjoint: bool) -> None:
    """Add the metadata of pairs, as PyG's `LinkLoader` reads them."""
    (source, destination), count, time = places, len(given.row), given.time

    def pair_of(tree: Tensor) -> Tensor:
        # By position among the sources or the destinations: PyG's is the same where the amount is a whole number.
        return torch.where(tree < len(source), tree, tree - len(source)) % max(1, count)

    if isinstance(out.batch, dict):
        out.batch = {name: pair_of(tree) for name, tree in out.batch.items()}
    elif out.batch is not None:
        out.batch = pair_of(out.batch)
    if neg_sampling is not None and neg_sampling.is_triplet():
        negative = destination[count:]
        # A pair's negatives are those of its row; in disjoint trees, those whose positions are its own modulo B.
        negative = negative.view(-1, max(1, count)).t() if disjoint else negative.view(count, -1)
        out.metadata = given.input_id, source, destination[:count], negative.squeeze(-1), time
        return
    labels = given.label
    if neg_sampling is not None:
        labels = torch.ones(count) if labels is None else labels
        labels = torch.cat([labels, labels.new_zeros(len(source) - count, *labels.shape[1:])])
        time = taken(time, torch.arange(len(source)) % max(1, count))
    out.metadata = given.input_id, torch.stack([source, destination]), labels, time


def sampler_of(given: dict[str, Any]) -> PyGSampler:
    """The sampler of a loader; the arguments that describe it are taken from `given`, all but `data`.

    Raises:
        InputError: `neighbor_sampler` is given and something else, or beside arguments that describe another.
    """
    parameters = signature(PyGSampler).parameters
    options = {name: given.pop(name) for name in parameters if name in given}
    given["data"], sampler = options["data"], given.pop("neighbor_sampler")
    if sampler is None:
        return PyGSampler(**options)
    if not isinstance(sampler, PyGSampler):
        raise InputError(
            f"neighbor_sampler is {type(sampler).__name__}; expected a millrace.PyGSampler, or use the loader of "
            "torch_geometric.loader for it"
        )
    idle = [n for n, value in options.items() if n not in ("data", "num_neighbors") and value != parameters[n].default]
    if idle:
        raise InputError(f"{', '.join(idle)} would not reach neighbor_sampler; set them there")
    return sampler
