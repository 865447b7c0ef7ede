"""`LinkNeighborLoader`, PyG's loader of that name on Millrace's sampler. Only the import of a script changes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...stages.random import Purpose, branches, draw_word, stream
from ...storage.errors import InputError
from . import pyg_arguments as arguments
from .export import SampledGraph, require_pyg
from .pyg_loader import NeighborLoader
from .pyg_subgraphs import as_pyg

IdArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SampledPairs(SampledGraph):
    """A minibatch with the positions of its pairs' ends."""

    ends: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
    """Positions of the sources and of the destinations in `node`, negatives last. Triplets have fewer sources."""


class LinkNeighborLoader(NeighborLoader):
    """Iterates over minibatches of pairs of nodes of a homogeneous `torch_geometric.data.Data`, each with the sampled
    neighbourhood of its ends, like PyG's `LinkNeighborLoader`.

    The seeds of a minibatch are the distinct ends of its pairs and of their negatives, ascending. Each minibatch is a
    `Data` as that of `NeighborLoader`, without ``batch_size``, and

    * ``input_id`` int64 [B]: positions of the pairs in `edge_label_index`, or their `input_id`;
    * without negatives and with binary ones: ``edge_label_index`` int64 [2, B + n], positions in ``n_id``, the n
      negatives last, and ``edge_label``, 0 for negatives;
    * with triplets: ``src_index`` [B], ``dst_pos_index`` [B] and ``dst_neg_index`` [B], or [B, amount];
    * ``batch``: position of a node's pair, if `disjoint`.

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
            edge_label_index: [2, N], sources and destinations of the pairs; None: all edges.
            edge_label: [N], labels of the pairs. With binary negatives, labels that begin at 0 are raised by 1.
            edge_label_time: refused, like all arguments of temporal sampling.
            replace: draw with replacement.
            subgraph_type: see `NeighborLoader`.
            disjoint: each end grows its own tree.
            temporal_strategy: "uniform".
            neg_sampling: "binary": ``ceil(amount * B)`` random pairs; "triplet": `amount` random destinations for each
                pair; or PyG's `NegativeSampling`, whose weights are those of nodes as sources and destinations.
            neg_sampling_ratio: deprecated; the amount of binary negatives.
            time_attr: None.
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
        for name, given in (("edge_label_time", edge_label_time), ("time_attr", time_attr)):
            if given is not None:
                raise InputError(
                    f"{name} is not supported: leave it out, or use torch_geometric.loader.LinkNeighborLoader for it"
                )
        if "input_nodes" in loader:
            raise InputError("input_nodes is an argument of NeighborLoader; expected pairs, as edge_label_index")
        self.neg_sampling = _negative_sampling(neg_sampling, neg_sampling_ratio)
        self.edge_label_index = edge_label_index
        super().__init__(
            data,
            num_neighbors,
            edge_label_index,
            None,
            replace,
            subgraph_type,
            disjoint,
            temporal_strategy,
            time_attr,
            weight_attr,
            transform,
            transform_sampler_output,
            is_sorted,
            filter_per_worker,
            neighbor_sampler,
            directed,
            **loader,
        )
        self._labels = self._checked_labels(edge_label)
        self._cumulative = {name: self._checked_weights(name) for name in ("src_weight", "dst_weight")}

    @property
    def _is_triplet(self) -> bool:
        return self.neg_sampling is not None and self.neg_sampling.is_triplet()

    def _inputs(self, given: Any) -> tuple[IdArray, Tensor]:
        """The pairs, int64 [N, 2], and the `input_id` of each."""
        if isinstance(given, tuple | list) and given and isinstance(given[0], str | tuple):
            raise InputError("edge_label_index names an edge type, which is not supported; expected pairs [2, N]")
        if given is None and self.data.edge_index is None:
            raise InputError("edge_label_index is None, and data has no edges; expected pairs [2, N]")
        pairs = arguments.tensor("edge_label_index", self.data.edge_index if given is None else given).numpy()
        if pairs.ndim != 2 or pairs.shape[0] != 2 or (pairs.size and pairs.dtype.kind not in "iu"):
            raise InputError(f"edge_label_index is {pairs.dtype}{list(pairs.shape)}; expected integer node ids [2, N]")
        nodes = self._graph.num_nodes
        if pairs.size and (pairs.min() < 0 or pairs.max() >= nodes):
            raise InputError(f"edge_label_index lies in [{pairs.min()}, {pairs.max()}]; expected [0, {nodes})")
        return np.ascontiguousarray(pairs.T, np.int64), torch.arange(pairs.shape[1])

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
        return labels + 1 if shifted else labels

    def _checked_weights(self, name: str) -> npt.NDArray[np.float64] | None:
        """float64 [V], cumulative weights of nodes as ends of negatives; None: uniform."""
        given = getattr(self.neg_sampling, name, None)
        if given is None:
            return None
        weights = arguments.tensor(f"neg_sampling.{name}", given).double().numpy()
        sound = weights.shape == (self._graph.num_nodes,) and np.isfinite(weights).all() and (weights >= 0).all()
        if not sound or not weights.sum():
            raise InputError(
                f"neg_sampling.{name} has shape {list(weights.shape)}; expected [{self._graph.num_nodes}] numbers from "
                "0, not all 0"
            )
        return np.cumsum(weights)

    def _drawn(self, name: str, key: int, count: int) -> IdArray:
        """int64 [count], ends of negatives."""
        x = (draw_word(branches(key, np.arange(count)), int(name == "dst_weight")) >> np.uint64(11)) * 2.0**-53
        cumulative = self._cumulative[name]
        if cumulative is None:
            return (x * self._graph.num_nodes).astype(np.int64)
        return np.searchsorted(cumulative, x * cumulative[-1], side="right")

    def _ends(self, cut: IdArray, key: int) -> tuple[IdArray, IdArray]:
        """Sources and destinations of a minibatch, negatives last."""
        source, destination = self._seeds[cut].T
        if self.neg_sampling is None:
            return source, destination
        count = math.ceil(len(cut) * self.neg_sampling.amount)
        destination = np.concatenate([destination, self._drawn("dst_weight", key, count)])
        if not self._is_triplet:
            source = np.concatenate([source, self._drawn("src_weight", key, count)])
        return source, destination

    def _sample(
        self, seed: int, epoch: int, number: int, first: int, cuts: Sequence[IdArray], workspace: Any
    ) -> list[SampledGraph]:
        keys = [stream(seed, Purpose.NEGATIVE, epoch & 0xFFFF_FFFF, first + i) for i in range(len(cuts))]
        ends = [self._ends(cut, key) for cut, key in zip(cuts, keys, strict=True)]
        seeds, places = [], []
        for source, destination in ends:
            both = np.concatenate([source, destination])
            found, place = (both, np.arange(len(both))) if self._disjoint else np.unique(both, return_inverse=True)
            seeds.append(found)
            places.append(tuple(torch.from_numpy(part) for part in np.split(place, [len(source)])))
        graphs = self._sampled(seed, epoch, number, first, seeds, workspace)
        return [
            SampledPairs(**{f.name: getattr(graph, f.name) for f in fields(SampledGraph)}, ends=place)
            for graph, place in zip(graphs, places, strict=True)
        ]

    def _output(self, found: SampledGraph, cut: IdArray) -> Any:
        assert isinstance(found, SampledPairs)
        at = torch.from_numpy(cut)
        out, (source, destination), count = as_pyg(found, self._ids[at]), found.ends, len(cut)
        if out.batch is not None:
            # By position among the sources or the destinations: PyG's is the same where the amount is a whole number.
            out.batch = torch.where(out.batch < len(source), out.batch, out.batch - len(source)) % max(1, count)
        if self._is_triplet:
            negative = destination[count:]
            # A pair's negatives are those of its row; in disjoint trees, those whose positions are its own modulo B.
            negative = negative.view(-1, max(1, count)).t() if self._disjoint else negative.view(count, -1)
            out.metadata = (self._ids[at], source, destination[:count], negative.squeeze(-1), None)
            return out
        labels = None if self._labels is None else self._labels[at]
        if self.neg_sampling is not None:
            labels = torch.ones(count) if labels is None else labels
            labels = torch.cat([labels, labels.new_zeros(len(source) - count, *labels.shape[1:])])
        out.metadata = (self._ids[at], torch.stack([source, destination]), labels, None)
        return out

    def _describe(self, batch: Any, metadata: Any) -> None:
        if self._is_triplet:
            batch.input_id, batch.src_index, batch.dst_pos_index, batch.dst_neg_index, batch.seed_time = metadata
            for name in ("edge_label_index", "edge_label_time"):
                if name in batch:
                    del batch[name]
            return
        batch.input_id, batch.edge_label_index, batch.edge_label, batch.edge_label_time = metadata


def _negative_sampling(given: Any, ratio: float | None) -> Any:
    """PyG's `NegativeSampling`, or None."""
    from torch_geometric.sampler import NegativeSampling

    try:
        if ratio:
            return NegativeSampling("binary", ratio)
        return NegativeSampling.cast(given)
    except (TypeError, ValueError) as e:
        raise InputError(f"neg_sampling is {given!r}: {e}") from None
