"""`LinkNeighborLoader`, PyG's loader of that name on Millrace's sampler. Only the import of a script changes."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ...storage.errors import InputError
from . import pyg_arguments as arguments
from .pyg_loader import BulkLoader
from .pyg_sampler import sampler_of


class LinkNeighborLoader(BulkLoader):
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

    of_pyg, begun_as = "link_neighbor_loader:LinkNeighborLoader", "link_loader:LinkLoader"

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
        **dataloader: Any,
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
            neighbor_sampler: see `NeighborLoader`.
            directed: deprecated.
            dataloader: other arguments of `NeighborLoader`, and of torch's DataLoader.

        Raises:
            InputError: an argument is unusable or not supported; the message names it.
            UnknownArgumentError: there is no such argument (also a TypeError).
            MissingExtraError: PyTorch Geometric is not installed.
        """
        given = arguments.given(locals())
        if "input_nodes" in given:
            raise InputError("input_nodes is an argument of NeighborLoader; expected pairs, as edge_label_index")
        laws = _negative_sampling(given.pop("neg_sampling"), given.pop("neg_sampling_ratio"))
        time, labels = given.pop("edge_label_time"), given.pop("edge_label")
        sampler = sampler_of(given)
        kind, chosen = sampler.source.input_edges(given.pop("edge_label_index"))
        pairs = arguments.tensor("edge_label_index", chosen)
        if pairs.ndim != 2 or pairs.shape[0] != 2 or (pairs.numel() and pairs.numpy().dtype.kind not in "iu"):
            shown = f"{pairs.numpy().dtype}{list(pairs.shape)}"
            raise InputError(f"edge_label_index is {shown}; expected integer node ids [2, N]")
        inputs = {"edge_label_index": pairs.long() if kind is None else (kind, pairs.long()), "neg_sampling": laws}
        inputs["edge_label"] = _checked_labels(labels, pairs.shape[1], laws)
        inputs["edge_label_time"] = None if time is None else arguments.tensor("edge_label_time", time)
        inputs["input_id"] = (
            named if (named := given.pop("input_id", None)) is None else arguments.tensor("input_id", named)
        )
        self._begin(sampler, given, data=given.pop("data"), **inputs)
        sampler.seeds_of_pairs(self.input_data, 0, None)
        if laws is not None:
            sampler.negatives(laws, kind)


def _checked_labels(given: Any, count: int, laws: Any) -> Tensor | None:
    if given is None:
        return None
    if laws is not None and laws.is_triplet():
        raise InputError("edge_label is given beside triplets, which tell positives by their names; leave it out")
    labels = arguments.tensor("edge_label", given)
    if labels.ndim < 1 or len(labels) != count:
        raise InputError(f"edge_label has shape {list(labels.shape)}; expected [{count}], one for each pair")
    if laws is not None and {0, 1} <= set(labels.unique().tolist()):
        warnings.warn(
            "edge_label has 0 already, as RandomLinkSplit labels negatives, and neg_sampling draws more: as in PyG the "
            f"given labels become 1 to {int(labels.max()) + 1}, and those drawn are 0; leave neg_sampling out, or use "
            "RandomLinkSplit(add_negative_train_samples=False)",
            stacklevel=3,
        )
    return labels if len(labels) else None


def _negative_sampling(given: Any, ratio: float | None) -> Any:
    """PyG's `NegativeSampling`, or None."""
    from torch_geometric.sampler import NegativeSampling

    try:
        if ratio:
            return NegativeSampling("binary", ratio)
        return NegativeSampling.cast(given)
    except (TypeError, ValueError) as e:
        raise InputError(f"neg_sampling is {given!r}: {e}") from None
