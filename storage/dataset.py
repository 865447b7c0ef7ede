"""The dataset message: graph, features, labels and split."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from .array_kinds import AnyArray, Float32Array, IdArray, Mask
from .errors import InputError, MissingExtraError, install
from .features import FeatureStore
from .graph import ALWAYS, Graph, check_times
from .links.pairs import PairLabels, Pairs, by_relation, check_pairs, node_ranges
from .optional import present_items, when_present
from .plural import are, counted

Task = Literal["multiclass", "multilabel", "binary", "regression", "link"]
TASKS: tuple[Task, ...] = get_args(Task)
MATRIX_TASKS = ("multilabel", "regression")
"""Tasks whose labels are a matrix of floating-point numbers; those of the others are class numbers."""
WITHOUT_ACCURACY = ("regression", "link")
"""Tasks whose outputs are no classes."""
SPLITS = ("train", "val", "test")
"""The sets of a `Split`, in its order."""
Check = Callable[["Dataset", AnyArray], None]
"""Raises InputError if an array does not fit a dataset."""


@dataclass(frozen=True)
class ArrayOfPairs:
    """Declaration of an array of pairs, beside its field: what writers, readers, digests and reorderings know of it."""

    digested_as: str
    """Its entry in the record of the labels' digest, which has it if the array is there."""
    check: Check


def _of_pairs(digested_as: str, check: Check) -> dict[str, ArrayOfPairs]:
    return {"array": ArrayOfPairs(digested_as, check)}


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets (train, val, test) of ids of labelled nodes, or of positions of labelled pairs."""

    train: IdArray
    """int64, ascending, distinct."""
    val: IdArray
    test: IdArray

    def __repr__(self) -> str:
        return f"Split(train={len(self.train):,}, val={len(self.val):,}, test={len(self.test):,})"

    def check(self, num_nodes: int, unit: str = "node") -> "Split":
        """Check that the sets are sorted, distinct, in range and disjoint: ids of so many nodes, or of another `unit`.
        Raises InputError otherwise."""
        for name in SPLITS:
            ids = getattr(self, name)
            if ids.dtype != np.int64 or ids.ndim != 1:
                raise InputError(
                    f"split '{name}' is {ids.dtype}{list(ids.shape)}; expected an int64 vector of {unit} ids"
                )
            if len(ids) and (ids[0] < 0 or ids[-1] >= num_nodes):
                raise InputError(f"split '{name}' holds ids outside [0, {num_nodes}); correct the split")
            if (np.diff(ids) <= 0).any():
                raise InputError(f"split '{name}' is not strictly ascending: it repeats ids or is unsorted")
        for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
            both = np.intersect1d(getattr(self, a), getattr(self, b), assume_unique=True)
            if len(both):
                raise InputError(
                    f"{counted(len(both), unit)} (first: {both[0]}) {are(len(both))} in the {a} and the {b} split; "
                    "make them disjoint"
                )
        return self


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training data. Node v of the graph is row v of `features` and of `labels`."""

    name: str
    graph: Graph
    features: FeatureStore
    """[V, F] rows; memory, memory-mapped or Zarr."""
    labels: AnyArray
    """Multi-class and binary: int64 [V], -1 for unlabelled. Multi-label: float32 [V, C] of 0 and 1. Regression: float32
    [V, C]. NaN in a matrix is not known. With `pairs` they have N rows in place of V. Link: int64 [N, 3], pairs in
    place of nodes, see `storage.links.pairs`."""
    split: Split
    num_classes: int
    """C: classes, 2 if binary; targets of a regression; 1 of links, the score of a pair."""
    task: Task = "multiclass"
    notes: tuple[str, ...] = field(default=())
    """Findings and changes while the input was read (duplicates merged, self loops kept, ...), one sentence each."""
    node_names: Sequence[str] | None = None
    """Name of each node in the input: `NodeNames` if they were read. None if nodes are called by their numbers."""
    class_names: tuple[str, ...] | None = None
    """Name of each class, or target, in the input. None if they are called by their numbers."""
    pair_time: AnyArray | None = field(
        default=None,
        metadata=_of_pairs("times", lambda data, a: check_times("pair_time", a, len(data.pair_table))),
    )
    """int64 or float64 [N], of links and labelled edges: the time of each pair, which is predicted from earlier edges
    only. None: pairs have no times."""
    pairs: IdArray | None = field(
        default=None,
        metadata=_of_pairs("pairs", lambda data, a: check_pairs(a, data.num_nodes, data.graph.types, columns=2)),
    )
    """int64 [N, 2], source and destination of the edges that `labels` and `split` are of. None: they are of nodes, or
    the task is link."""
    pair_features: Float32Array | None = field(
        default=None, metadata=_of_pairs("features", lambda data, a: _check_pair_features(a, len(data.pair_table)))
    )
    """float32 [N, K], of `pairs`, which their prediction reads; None: they have none."""
    hides_pairs: bool = False
    """True if a pair of `pairs` is predicted without its own edge: those of val and test are left out of the graph, and
    those of a minibatch out of its samples."""
    read_as: Mapping[str, Any] = field(default_factory=dict)
    """Options that the input was read with, by name, other than the defaults; tomorrow's input is read likewise."""
    card: Mapping[str, Any] | None = None
    """What was read, filled and scaled, as plain values (see `storage.stored.data_card`); None: it was not read."""

    @property
    def num_nodes(self) -> int:
        """V."""
        return self.graph.num_nodes

    @property
    def of_pairs(self) -> bool:
        """True if labels and split belong to pairs of nodes: the task is link, or edges are labelled."""
        return self.task == "link" or self.pairs is not None

    @property
    def has_edge_labels(self) -> bool:
        """True if labels are of edges, with a class or a target each."""
        return self.of_pairs and self.task != "link"

    @property
    def num_pair_features(self) -> int:
        """K, columns of `pair_features`; 0 without any."""
        return 0 if self.pair_features is None else self.pair_features.shape[1]

    @property
    def pair_table(self) -> IdArray:
        """int64 [N, 2], `pairs`; of a link task [N, 3], `labels`."""
        return self.labels if self.pairs is None else self.pairs

    @property
    def num_targets(self) -> int:
        """Number of nodes that a model predicts. V if the graph has one type or pairs are labelled; else the number of
        nodes of the first type."""
        types = self.graph.types
        return self.num_nodes if types.is_single or self.of_pairs else types.num_nodes(0)

    @property
    def num_outputs(self) -> int:
        """Outputs of a model for a node or a pair: C, and 1 if binary."""
        return outputs_of(self.task, self.num_classes)

    @property
    def num_features(self) -> int:
        """F."""
        return self.features.num_features

    @property
    def num_edge_features(self) -> int:
        """D, columns of the edges' features (`Graph.edge_features`); 0 without any."""
        return self.graph.num_edge_features

    @property
    def has_pair_times(self) -> bool:
        """True if pairs have times."""
        return self.pair_time is not None

    @property
    def split_sizes(self) -> dict[str, int]:
        """Number of nodes, or of pairs, in each set of the split."""
        return {name: len(getattr(self.split, name)) for name in SPLITS}

    @property
    def has_unknown(self) -> bool:
        """True if some value of a multi-label matrix is not known."""
        return self.task == "multilabel" and bool(np.isnan(self.labels).any())

    @property
    def arrays(self) -> dict[str, AnyArray]:
        """Arrays beside the graph and the features, by their names in a store: labels, sets and those of pairs."""
        sets = {name: getattr(self.split, name) for name in SPLITS}
        return {"labels": self.labels, **sets, **present_items({name: getattr(self, name) for name in PAIR_ARRAYS})}

    @property
    def known_digests(self) -> Mapping[str, str]:
        """Digests known without reading the arrays, by the names of `fingerprint.DatasetDigests`."""
        return {}

    def __len__(self) -> int:
        """V."""
        return self.num_nodes

    def __repr__(self) -> str:
        features = counted(self.num_features, "feature")
        classes = counted_outputs(self.task, self.num_classes, self.has_edge_labels)
        edges = counted(self.graph.num_edges, "edge")
        if self.num_edge_features:
            edges += f" with {counted(self.num_edge_features, 'feature')}"
        return (
            f"Dataset({self.name!r}: {counted(self.num_nodes, 'node')}, {edges}, {features}, {classes}, {self.split})"
        )

    def to_pyg(self) -> Any:
        """The whole dataset in memory as a `torch_geometric.data.Data`: x, edge_index, y, the three masks, and
        edge_weight, edge_attr, edge_time and node_time if there are any. A graph with types is a `HeteroData`: see
        `from_pyg`. Links have ``train_edge_label_index``, ... in place of y and masks, of a `HeteroData` at their edge
        type; labelled edges also ``train_edge_label``, ..., and ``train_edge_label_attr`` if they have features.

        Raises:
            MissingExtraError: PyTorch Geometric is not installed.
        """
        try:
            from torch_geometric.data import Data, HeteroData
        except ImportError:
            raise MissingExtraError(
                f"to_pyg needs PyTorch Geometric, which is not installed: {install('pyg')}"
            ) from None
        import torch

        graph, nodes = self.graph, np.arange(self.num_nodes)
        ends = np.stack([graph.indices.astype(np.int64), np.repeat(nodes, graph.in_degree)])
        types = graph.types
        if types.is_single:
            # Copies, so that changes there do not reach this dataset.
            data = target = Data(x=torch.from_numpy(np.array(self.features.gather(nodes))))
            data.edge_index = torch.from_numpy(ends)
        else:
            data, features = HeteroData(), self.features
            widths = getattr(features, "widths", (features.num_features,) * len(types.node_types))
            for name, first, stop, width in zip(types.node_types, types.offsets, types.offsets[1:], widths):
                data[name].num_nodes = stop - first
                if width:
                    data[name].x = torch.from_numpy(features.gather(np.arange(first, stop))[:, :width].copy())
            starts = np.array(types.offsets)[types.ends]
            for r, relation in enumerate(types.relations):
                own = graph.edge_type == r
                data[relation].edge_index = torch.from_numpy(ends[:, own] - starts[r][:, None])
                if graph.edge_weight is not None:
                    data[relation].edge_weight = torch.from_numpy(graph.edge_weight[own])
                if graph.edge_features is not None and (width := types.edge_widths[r]):
                    rows = graph.edge_features.gather(np.flatnonzero(own))
                    data[relation].edge_attr = torch.from_numpy(rows[:, :width].copy())
            target = data[types.node_types[0]]
        if self.of_pairs:
            self._add_pairs(data)
        else:
            target.y = torch.from_numpy(np.array(self.labels[: self.num_targets]))
        for name in () if self.of_pairs else SPLITS:
            mask = torch.zeros(self.num_targets, dtype=torch.bool)
            mask[torch.from_numpy(np.array(getattr(self.split, name)))] = True
            target[f"{name}_mask"] = mask
        if graph.edge_weight is not None and types.is_single:
            data.edge_weight = torch.from_numpy(np.array(graph.edge_weight))
        if graph.edge_features is not None and types.is_single:
            data.edge_attr = torch.from_numpy(np.array(graph.edge_features.gather(np.arange(graph.num_edges))))
        for name in ("edge_time", "node_time"):
            if (times := getattr(graph, name)) is None:
                continue
            if types.is_single:
                data[name] = torch.from_numpy(np.array(times))
                continue
            kinds = graph.edge_type if name == "edge_time" else types.types_of(nodes)
            keys: tuple[Any, ...] = types.relations if name == "edge_time" else types.node_types
            for kind, key in enumerate(keys):
                own = times[kinds == kind]
                if (own > ALWAYS[times.dtype]).any():
                    data[key][name] = torch.from_numpy(own)
        return data

    def _add_pairs(self, data: Any) -> None:
        """Add the pairs of each set, with labels and features if they have some, to PyG's data."""
        import torch

        for types, rows in by_relation(self.pair_table, self.graph.types):
            target = data if types.is_single else data[types.relations[types.one_predicted]]
            own = np.zeros(len(self.pair_table), bool)
            own[rows] = True
            for name in SPLITS:
                chosen = getattr(self.split, name)
                chosen = chosen[own[chosen]]
                pairs = self.pair_table[chosen, :2] - [e.start for e in node_ranges(types, self.num_nodes)]
                target[f"{name}_edge_label_index"] = torch.from_numpy(np.ascontiguousarray(pairs.T))
                of_pairs = {"": self.labels, "_attr": self.pair_features} if self.has_edge_labels else {}
                for suffix, values in present_items(of_pairs).items():
                    target[f"{name}_edge_label{suffix}"] = torch.from_numpy(values[chosen])

    def check(self) -> "Dataset":
        """Check that the parts fit together. Raises InputError otherwise."""
        self.graph.check()
        n = self.num_nodes
        if self.features.num_rows != n:
            raise InputError(f"features have {self.features.num_rows} rows; the graph has {n} nodes: give a row each")
        if self.task not in TASKS or type(self.num_classes) is not int or self.num_classes < 0:
            seen = f"task is '{str(self.task)[:80]}' of {str(self.num_classes)[:80]} classes"
            raise InputError(f"{seen}; expected a task of {', '.join(TASKS)}, and a whole number")
        if self.task == "link":
            check_pairs(self.labels, n, self.graph.types)
        arrays = {name: getattr(self, name) for name in PAIR_ARRAYS} if self.of_pairs else {}
        for name, array in present_items(arrays).items():
            PAIR_ARRAYS[name].check(self, array)
        if self.task == "link":
            self.split.check(len(self.labels), "pair")
            return self._check_names()
        rows = n if self.pairs is None else len(self.pairs)
        want, dtype = (2, np.float32) if self.task in MATRIX_TASKS else (1, np.int64)
        if self.labels.ndim != want or len(self.labels) != rows:
            raise InputError(
                f"labels have shape {list(self.labels.shape)}; expected {counted(want, 'dimension')} and "
                f"{counted(rows, 'row')}"
            )
        if self.labels.dtype != dtype:
            raise InputError(f"labels are {self.labels.dtype}; expected {np.dtype(dtype)}")
        self.split.check(rows, self._unit)
        self._check_labels()
        return self._check_names()

    @property
    def _unit(self) -> str:
        return "edge" if self.has_edge_labels else "node"

    def _check_names(self) -> "Dataset":
        n = self.num_nodes
        if self.node_names is not None and len(self.node_names) != n:
            raise InputError(f"there are {len(self.node_names)} node names for {n} nodes; expected one for each")
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise InputError(
                f"there are {len(self.class_names)} class names for {self.num_classes} classes; expected one for each"
            )
        return self

    def _check_labels(self) -> None:
        bare = ~is_labelled(self.labels)
        for name in SPLITS if bare.any() else ():
            ids = getattr(self.split, name)
            if len(bad := ids[bare[ids]]):
                raise InputError(
                    f"{counted(len(bad), self._unit)} of the {name} split (first: {bad[0]}) {are(len(bad))} "
                    f"unlabelled ({'NaN' if self.task in MATRIX_TASKS else '-1'}); leave them out of the split"
                )
        if self.task not in MATRIX_TASKS:
            if len(self.labels) and (self.labels.max() >= self.num_classes or self.labels.min() < -1):
                seen = f"[{self.labels.min()}, {self.labels.max()}]"
                raise InputError(f"labels lie in {seen}; expected at least -1 and below num_classes={self.num_classes}")
            if self.task == "binary" and self.num_classes != 2:
                raise InputError(f"the task is binary, but num_classes is {self.num_classes}; expected 2")
            return
        what = "multi-label matrix" if self.task == "multilabel" else "matrix of targets"
        if self.labels.shape[1] != self.num_classes:
            raise InputError(f"{what} has {self.labels.shape[1]} columns; expected {self.num_classes}")
        if self.task == "regression":
            if np.isinf(self.labels).any():
                raise InputError(f"the {what} holds infinite values; correct them, or make them NaN (not known)")
        elif not (np.isin(self.labels, (0, 1)) | np.isnan(self.labels)).all():
            raise InputError("the multi-label matrix holds values other than 0 and 1; correct the labels")


PAIR_ARRAYS: dict[str, ArrayOfPairs] = {f.name: f.metadata["array"] for f in fields(Dataset) if f.metadata}
"""Arrays of pairs, as they are declared."""


def _check_pair_features(rows: AnyArray, count: int) -> None:
    if rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise InputError(
            f"features of labelled edges are {rows.dtype}{list(rows.shape)}; expected float32 [{count}, K]"
        )
    if not np.isfinite(rows).all():
        bad = int(np.argmin(np.isfinite(rows).all(1)))
        raise InputError(f"features of labelled edges hold NaN or infinite values (first: row {bad}); correct them")


def is_labelled(labels: AnyArray) -> Mask:
    """[V], True for rows with a label: a class number from 0, or some value of a matrix that is not NaN."""
    return np.asarray(labels >= 0 if labels.ndim == 1 else ~np.isnan(labels).all(axis=1))


def pairs_of(dataset: Dataset, dtype: npt.DTypeLike = np.float32) -> Pairs | None:
    """The pairs of a dataset, with labels and features in the floating-point `dtype`; None if nodes are labelled."""
    if not dataset.of_pairs:
        return None
    labels = None
    if dataset.has_edge_labels:
        values, features = dataset.labels, dataset.pair_features
        labels = PairLabels(
            values.astype(dtype, copy=False) if dataset.task in MATRIX_TASKS else values,
            when_present(lambda rows: rows.astype(dtype, copy=False), features),
            dataset.hides_pairs,
        )
    return Pairs(dataset.pair_table, {name: getattr(dataset.split, name) for name in SPLITS}, labels=labels)


def outputs_of(task: Task, num_classes: int) -> int:
    """Outputs of a model for a task: C, and 1 if binary."""
    return 1 if task == "binary" else num_classes


def counted_outputs(task: str, number: int, of_edges: bool = False) -> str:
    """``3 classes``, or ``2 targets``, or ``3 classes of edges``."""
    if task == "link":
        return "links"
    found = counted(number, "target") if task == "regression" else counted(number, "class", "classes")
    return f"{found} of edges" if of_edges else found


def check_one_type(dataset: Dataset, doing: str) -> None:
    """Raise InputError if the graph has several types of nodes or edges, which `doing`, such as ``cutting it into
    parts``, does not know."""
    if not (types := dataset.graph.types).is_single:
        counts = f"{counted(len(types.node_types), 'node type')} and {counted(types.num_relations, 'relation')}"
        raise InputError(f"{dataset.name} has {counts}, and {doing} is for graphs with one type of nodes and edges")


def require_dataset(value: object) -> None:
    """Raise InputError unless the argument is a `Dataset`."""
    if not isinstance(value, Dataset):
        raise InputError(f"dataset is a {type(value).__name__}; expected a Dataset: pass open_dataset(...) of it")


def require_nodes(dataset: Dataset, work: str) -> None:
    """Raise InputError if a dataset has links to predict, or labelled edges, where `work` (a clause such as ``reorder
    renumbers``) takes the labels of nodes."""
    if dataset.of_pairs:
        links = dataset.task == "link"
        raise InputError(
            f"{f'the task of {dataset.name} is link' if links else f'the labels of {dataset.name} are of edges'}, and "
            f"{work} nodes with their labels; give it the dataset before "
            f"{'links are made of it (task=link)' if links else 'edges get labels (labels_of=edges)'}"
        )
