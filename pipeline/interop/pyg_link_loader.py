"""`LinkNeighborLoader`, PyG's loader of that name on Millrace's sampler. Only the import of a script changes."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...stages.random import Purpose, branches, draw_word, stream
from ...storage.errors import InputError
from . import pyg_arguments as arguments
from .export import require_pyg
from .pyg_loader import NeighborLoader
from .pyg_subgraphs import Timed

IdArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SampledPairs:
    """A minibatch with its pairs."""

    graph: Any
    """The sample, split by type."""
    source: Tensor
    """Positions of the sources among the nodes of their type, negatives last. Triplets have none for these."""
    destination: Tensor
    """Positions of the destinations, likewise."""


class LinkNeighborLoader(NeighborLoader):
    """Iterates over minibatches of pairs of nodes of a `torch_geometric.data.Data` or `HeteroData`, each with the
    sampled neighbourhood of its ends, like PyG's `LinkNeighborLoader`.

    The seeds of a minibatch are the distinct ends of its pairs and of their negatives, ascending. Each minibatch is a
    `Data` as that of `NeighborLoader`, without ``batch_size``, and

    * ``input_id`` int64 [B]: positions of the pairs in `edge_label_index`, or their `input_id`;
    * without negatives and with binary ones: ``edge_label_index`` int64 [2, B + n], positions in ``n_id``, the n
      negatives last, and ``edge_label``, 0 for negatives;
    * with triplets: ``src_index`` [B], ``dst_pos_index`` [B] and ``dst_neg_index`` [B], or [B, amount];
    * ``batch``: position of a node's pair, if `disjoint`;
    * with times ``edge_label_time`` [B + n], or with triplets ``seed_time`` [B].

    Of a `HeteroData` it is a `HeteroData`: the pairs' edge type has ``input_id``, ``edge_label_index``, ``edge_label``
    and ``edge_label_time``; with triplets, the types of its ends have ``src_index``, ``dst_pos_index``,
    ``dst_neg_index`` and ``seed_time``. Negatives have ends of the pairs' types.

    As in PyG, a drawn negative may be an edge, and the edges of the pairs are in the sample where `data` has them: give
    `data` the edges to pass messages over, and the pairs as `edge_label_index`. (The task ``link`` of `run` leaves them
    out.) Negatives depend on the seed, the epoch and the minibatch alone. Unsupported arguments are refused by name, as
    by `NeighborLoader`. The semantics are those of PyG 2.8, `loader.LinkLoader`.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        edge_label_index: Any = None,
        edge_label: Any = None,
        edge_label_time: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Any = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        **loader: Any,
    ) -> None:
        """
        Args:
            data: see `NeighborLoader`, as for all arguments that are not here.
            num_neighbors: in-neighbours per node and hop.
            edge_label_index: [2, N], sources and destinations of the pairs; None: all edges. With types ``(edge type,
                pairs)``, or an edge type, for all its edges.
            edge_label: [N], labels of the pairs. With binary negatives, labels that begin at 0 are raised by 1.
            edge_label_time: [N], the time of each pair; nothing later is in the trees of its ends. Its negatives have
                its time, and are nodes that were there then if nodes have times (where none was, the earliest).
            replace: draw with replacement.
            subgraph_type: see `NeighborLoader`.
            disjoint: each end grows its own tree.
            temporal_strategy: see `NeighborLoader`.
            neg_sampling: "binary": ``ceil(amount * B)`` random pairs; "triplet": `amount` random destinations for each
                pair; or PyG's `NegativeSampling`, whose weights are those of nodes as sources and destinations.
            neg_sampling_ratio: deprecated; the amount of binary negatives.
            time_attr: see `NeighborLoader`; needs `edge_label_time`.
            weight_attr: see `NeighborLoader`.
            transform: called with each minibatch, in the caller's thread.
            transform_sampler_output: see `NeighborLoader`.
            is_sorted: accepted.
            filter_per_worker: see `NeighborLoader`.
            neighbor_sampler: None.
            directed: deprecated.
            loader: other arguments of `NeighborLoader`, and of torch's DataLoader.

        Raises:
            InputError: an argument is unusable or not supported; the message names it.
            UnknownArgumentError: there is no such argument (also a TypeError).
            MissingExtraError: PyTorch Geometric is not installed.
        """
        require_pyg("LinkNeighborLoader")
        if (time_attr is None) != (edge_label_time is None):
            missing, there = ("time_attr", "edge_label_time")[:: 1 if time_attr is None else -1]
            raise InputError(f"'{missing}' is not set, but {there} is; give both, or neither")
        if "input_nodes" in loader:
            raise InputError("input_nodes is an argument of NeighborLoader; expected pairs, as edge_label_index")
        self.neg_sampling = _negative_sampling(neg_sampling, neg_sampling_ratio)
        self.edge_label_index = edge_label_index
        super().__init__(
            data,
            num_neighbors,
            edge_label_index,
            edge_label_time,
            replace=replace,
            subgraph_type=subgraph_type,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            weight_attr=weight_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            is_sorted=is_sorted,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            directed=directed,
            **loader,
        )
        self._labels = self._checked_labels(edge_label)
        times = None if self._times is None else self._times.of_nodes
        self._negatives = [
            Negatives(ids, self._checked_weights(name, ids), None if times is None else times[ids.start : ids.stop], i)
            for i, (name, ids) in enumerate(zip(("src_weight", "dst_weight"), self._ranges))
        ]

    @property
    def _is_triplet(self) -> bool:
        return self.neg_sampling is not None and self.neg_sampling.is_triplet()

    def _inputs(self, given: Any) -> tuple[Any, IdArray, Tensor]:
        """The type of the pairs, the pairs, int64 [N, 2], and the `input_id` of each."""
        kind, chosen = self._source.input_edges(given)
        pairs = arguments.tensor("edge_label_index", chosen).numpy()
        if pairs.ndim != 2 or pairs.shape[0] != 2 or (pairs.size and pairs.dtype.kind not in "iu"):
            raise InputError(f"edge_label_index is {pairs.dtype}{list(pairs.shape)}; expected integer node ids [2, N]")
        self._ranges = self._source.ends(kind)
        out = np.empty((pairs.shape[1], 2), np.int64)
        for i, (side, ids) in enumerate(zip(pairs, self._ranges)):
            if side.size and (side.min() < 0 or side.max() >= len(ids)):
                of = f" of '{kind[2 * i]}'" if kind is not None else ""
                raise InputError(
                    f"edge_label_index has {('sources', 'destinations')[i]}{of} in [{side.min()}, {side.max()}]; "
                    f"expected [0, {len(ids)})"
                )
            out[:, i] = side
            out[:, i] += ids.start
        return kind, out, torch.arange(len(out))

    def _input_moments(self, time_attr: str, given: Any) -> tuple[npt.NDArray[np.number], Tensor | None]:
        moments = arguments.moments("edge_label_time", given, len(self._seeds), "pair")
        return moments, arguments.tensor("edge_label_time", given)

    def _checked_labels(self, given: Any) -> Tensor | None:
        if given is None:
            return None
        if self._is_triplet:
            raise InputError("edge_label is given beside triplets, which tell positives by their names; leave it out")
        labels = arguments.tensor("edge_label", given)
        if labels.ndim < 1 or len(labels) != len(self._seeds):
            raise InputError(
                f"edge_label has shape {list(labels.shape)}; expected [{len(self._seeds)}], one for each pair"
            )
        shifted = self.neg_sampling is not None and len(labels) and labels.min() == 0
        if shifted and set(labels.unique().tolist()) == {0, 1}:
            warnings.warn(
                "edge_label has 0 and 1 already, as RandomLinkSplit gives negatives, and neg_sampling draws more: as "
                "in PyG the given labels become 1 and 2, and those drawn are 0; leave neg_sampling out, or use "
                "RandomLinkSplit(add_negative_train_samples=False)",
                stacklevel=4,
            )
        return labels + 1 if shifted else labels

    def _checked_weights(self, name: str, ids: range) -> npt.NDArray[np.float64] | None:
        """float64 [n], weights of the nodes `ids` as ends of negatives; None: uniform."""
        given = getattr(self.neg_sampling, name, None)
        if given is None:
            return None
        weights = arguments.tensor(f"neg_sampling.{name}", given).double().numpy()
        sound = weights.shape == (len(ids),) and np.isfinite(weights).all() and (weights >= 0).all()
        if not sound or not weights.sum():
            raise InputError(
                f"neg_sampling.{name} has shape {list(weights.shape)}; expected [{len(ids)}] numbers from 0, not all 0"
            )
        return weights

    def _ends(self, cut: IdArray, key: int) -> tuple[IdArray, IdArray, npt.NDArray[np.number] | None]:
        """Sources and destinations of a minibatch, negatives last, and the times of the destinations."""
        source, destination = self._seeds[cut].T
        moments = None if self._times is None else self._moments[cut]
        if self.neg_sampling is None or not len(cut):
            return source, destination, moments
        count = math.ceil(len(cut) * self.neg_sampling.amount)
        later = None
        if moments is not None and self._times is not None:
            moments = np.resize(moments, len(cut) + count)
            later = self._times.graph.as_time(moments[len(cut) :])
        destination = np.concatenate([destination, self._negatives[1].draw(branches(key, np.arange(count)), later)])
        if not self._is_triplet:
            source = np.concatenate([source, self._negatives[0].draw(branches(key, np.arange(count)), later)])
        return source, destination, moments

    def _sample(
        self, seed: int, epoch: int, number: int, first: int, cuts: Sequence[IdArray], workspace: Any
    ) -> list[SampledPairs]:
        keys = [stream(seed, Purpose.NEGATIVE, epoch & 0xFFFF_FFFF, first + i) for i in range(len(cuts))]
        ends = [self._ends(cut, key) for cut, key in zip(cuts, keys, strict=True)]
        seeds, places, moments = [], [], []
        for source, destination, time in ends:
            both = np.concatenate([source, destination])
            found, place = (both, np.arange(len(both))) if self._disjoint else np.unique(both, return_inverse=True)
            seeds.append(found)
            places.append([torch.from_numpy(part) for part in np.split(place, [len(source)])])
            if time is not None:
                moments.append(np.concatenate([time[: len(source)], time]))
        timed = None if self._times is None else Timed(self._times, moments)
        graphs = self._sampled(seed, epoch, number, first, seeds, workspace, timed=timed)
        return [self._pairs(self._source.split(graph), *place) for graph, place in zip(graphs, places, strict=True)]

    def _pairs(self, graph: Any, source: Tensor, destination: Tensor) -> SampledPairs:
        return SampledPairs(graph, self._source.local(graph, source), self._source.local(graph, destination))

    def _output(self, found: SampledPairs, cut: IdArray) -> Any:
        at, source, destination, count = torch.from_numpy(cut), found.source, found.destination, len(cut)
        time = None if self._input_time is None else self._input_time[at]

        def pair_of(tree: Tensor) -> Tensor:
            # By position among the sources or the destinations: PyG's is the same where the amount is a whole number.
            return torch.where(tree < len(source), tree, tree - len(source)) % max(1, count)

        if self._is_triplet:
            negative = destination[count:]
            # A pair's negatives are those of its row; in disjoint trees, those whose positions are its own modulo B.
            negative = negative.view(-1, max(1, count)).t() if self._disjoint else negative.view(count, -1)
            metadata: Any = (self._ids[at], source, destination[:count], negative.squeeze(-1), time)
        else:
            labels = None if self._labels is None else self._labels[at]
            if self.neg_sampling is not None:
                labels = torch.ones(count) if labels is None else labels
                labels = torch.cat([labels, labels.new_zeros(len(source) - count, *labels.shape[1:])])
                if time is not None:
                    time = time[torch.arange(len(source)) % max(1, count)]
            metadata = (self._ids[at], torch.stack([source, destination]), labels, time)
        out = self._source.output(found.graph, metadata, self._kind == "bidirectional")
        if isinstance(out.batch, dict):
            out.batch = {name: pair_of(tree) for name, tree in out.batch.items()}
        elif out.batch is not None:
            out.batch = pair_of(out.batch)
        return out

    def _describe(self, batch: Any, metadata: Any) -> None:
        pairs, source, destination = batch, batch, batch
        if self._type is not None:
            pairs, source, destination = batch[self._type], batch[self._type[0]], batch[self._type[2]]
        if not self._is_triplet:
            pairs.input_id, pairs.edge_label_index, pairs.edge_label, pairs.edge_label_time = metadata
            return
        pairs.input_id, source.src_index, destination.dst_pos_index, destination.dst_neg_index, time = metadata
        source.seed_time = destination.seed_time = time
        for name in ("edge_label_index", "edge_label_time"):
            if name in pairs:
                del pairs[name]


class Negatives:
    """Random ends of negative pairs: nodes of one type, uniformly or by weight, of those that are there at a time."""

    def __init__(
        self, ids: range, weight: npt.NDArray[np.float64] | None, time: npt.NDArray[np.number] | None, draw: int
    ) -> None:
        """
        Args:
            ids: of the nodes.
            weight: float64 [n], or None.
            time: [n], when each node begins to be there; None: they always are.
            draw: number of the random draw that decides.
        """
        self._draw, self._time = draw, time
        self._order = np.arange(ids.start, ids.stop)
        if time is not None:
            order = np.argsort(time, kind="stable")
            self._order, self._time, weight = self._order[order], time[order], None if weight is None else weight[order]
        self._cumulative = None if weight is None else np.cumsum(weight)

    def draw(self, keys: npt.NDArray[np.uint64], moments: npt.NDArray[np.number] | None) -> IdArray:
        """A node for each key, int64 [n], at the moments [n]. The earliest node if none is there, or none of weight."""
        x = (draw_word(keys, self._draw) >> np.uint64(11)) * 2.0**-53
        there = np.full(len(keys), len(self._order))
        if self._time is not None and moments is not None:
            there = np.searchsorted(self._time, moments, side="right")
        if self._cumulative is None:
            return self._order[(x * there).astype(np.int64)]
        below = np.where(there > 0, self._cumulative[there - 1], 0.0)
        return self._order[np.where(below > 0, np.searchsorted(self._cumulative, x * below, side="right"), 0)]


def _negative_sampling(given: Any, ratio: float | None) -> Any:
    """PyG's `NegativeSampling`, or None."""
    from torch_geometric.sampler import NegativeSampling

    try:
        if ratio:
            return NegativeSampling("binary", ratio)
        return NegativeSampling.cast(given)
    except (TypeError, ValueError) as e:
        raise InputError(f"neg_sampling is {given!r}: {e}") from None
