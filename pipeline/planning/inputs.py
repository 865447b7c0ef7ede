"""Inputs of a plan: the size of a dataset, a cluster, and the job under every system."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ...storage.dataset import MATRIX_TASKS, Dataset, Task
from ...storage.errors import InputError, whole_number
from ...storage.plural import counted
from ..config.load import Job, resolve
from ..config.systems import SYSTEMS
from .network import Link

MOST_EDGES, MOST_FEATURE_BYTES = 6_000_000, 1 << 30
"""Limits of a trial's graph; a generated one stands in for a larger one."""


@dataclass(frozen=True)
class Numbers:
    """Size of a dataset, which need not be on this machine."""

    nodes: int
    """V."""
    edges: int
    """E, counting both directions."""
    features: int = 100
    """F."""
    classes: int = 16
    """C."""
    train: float = 0.1
    """Share of train nodes; where pairs are labelled, train pairs for each node, of which there may be several."""
    task: Task = "multiclass"
    """Task of the labels; `classes` are the targets of a regression."""
    edge_features: int = 0
    """D, columns of the edges' features; 0: they have none."""
    node_types: int = 1
    relations: int = 1
    pairs: int = 0
    """N, pairs of all sets, given negatives too; 0: nodes are labelled."""
    pair_bytes: int = 24
    """Bytes of a pair, with its label and features."""

    def __post_init__(self) -> None:
        for name, least in (("nodes", 2), ("edges", 0), ("features", 1), ("classes", 1)):
            value: float = getattr(self, name)
            if not isinstance(value, Real) or not value >= least:
                raise InputError(f"{name} is {value!r}; expected a whole number of at least {least}")
        if not isinstance(self.train, Real) or not self.train > 0 or (self.train > 1 and not self.of_pairs):
            raise InputError(f"the share of train nodes is {self.train!r}; expected a number above 0, at most 1")

    @property
    def of_pairs(self) -> bool:
        return self.task == "link" or self.pairs > 0

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> "Numbers":
        """The size of a dataset."""
        edges, width = dataset.has_edge_labels, dataset.num_classes
        of_labels = 4 * width if dataset.task in MATRIX_TASKS else 8
        n, types = dataset.num_nodes, dataset.graph.types
        node_types, relations = (1, 1) if types.is_single else (len(types.node_types), types.num_relations)
        size = n, dataset.graph.num_edges, dataset.num_features, dataset.num_classes
        share, pairs = dataset.split_sizes["train"] / max(1, n), len(dataset.labels) if dataset.of_pairs else 0
        pair_bytes = 16 + of_labels + 4 * dataset.num_pair_features if edges else 24
        kinds = dataset.num_edge_features, node_types, relations
        return cls(*size, share, dataset.task, *kinds, pairs, pair_bytes)

    @property
    def is_large(self) -> bool:
        """True if a generated graph stands in for the dataset in trials."""
        rows = max(self.nodes * self.features, self.edges * self.edge_features)
        return self.edges > MOST_EDGES or 4 * rows > MOST_FEATURE_BYTES

    def stand_in(self) -> str:
        """Spec of a generated graph with the same density, small enough for a trial."""
        density = max(1.0, self.edges / self.nodes)
        edges = min(MOST_EDGES, MOST_FEATURE_BYTES // (4 * max(1, self.edge_features)))
        nodes = min(self.nodes, MOST_FEATURE_BYTES // (4 * self.features), edges / density)
        scale = max(1, min(30, int(math.log2(max(2, nodes)))))
        return (
            f"rmat:scale={scale},edge_factor={max(1, round(density / 2))},features={self.features},"
            f"classes={self.classes},train={min(0.9, self.train):g}"
        )


@dataclass(frozen=True)
class Cluster:
    """Cluster that a run is planned for: machines like this one."""

    hosts: int = 1
    """Machines that share the ranks evenly; this one is one of them."""
    memory_bytes: int | None = None
    """Memory for a rank; None: its share of this machine's."""
    link: Link | None = None
    """Link between ranks; None: this machine's loopback, as measured by the trial."""
    device_bytes: int | None = None
    """Memory of a rank's GPU; None: its share of what is free on this machine's."""

    def check(self, ranks: int) -> "Cluster":
        """The cluster itself. Raises InputError if `ranks` ranks cannot run on it."""
        if not 1 <= whole_number("hosts", self.hosts) <= ranks:
            raise InputError(f"hosts is {self.hosts} for {counted(ranks, 'rank')}; expected from 1 to {ranks}")
        for of, size in (("a rank", self.memory_bytes), ("a rank's GPU", self.device_bytes)):
            if size is not None and not (isinstance(size, Real) and 0 < size < math.inf):
                raise InputError(f"the memory of {of} is {size!r} bytes; expected a finite number above 0")
        if self.link and not self.link.is_sound:
            raise InputError(f"the link is {self.link}; expected a bandwidth above 0 and a latency of at least 0")
        if self.hosts > 1 and not self.link:
            advice = "give a link, or a bandwidth and a latency"
            raise InputError(f"hosts is {self.hosts}, but no link connects them; {advice}")
        return self


def variants() -> dict[str, dict[str, Any]]:
    """Candidates of a plan: the system and other keys of a job, by label."""
    return {
        label: {"system": name, **keys}
        for name, entry in SYSTEMS.available().items()
        for label, keys in entry.planned.items()
    }


def candidates(table: Mapping[str, Any]) -> dict[str, Job]:
    """The resolved job under every system, without keys that a system does not use.

    Raises:
        InputError: the configuration is invalid, or a plan cannot predict it.
    """
    for section, entry in SYSTEMS.available().items():
        for key, usual in entry.unpredicted.items():
            if (given := table.get(section, {}).get(key, usual)) != usual:
                raise unpredicted(f"{section}.{key} is {given!r}", "leave it out, and expect other bytes and memory")
    resolve({k: table[k] for k in ("system", "executor") if k in table})  # Every system is planned; typos are refused.
    default = next(iter(SYSTEMS))
    own = dict(table.get(default, {}))
    common = {k: v for k, v in table.items() if k not in ("system", "executor")}
    common |= {default: {k: v for k, v in own.items() if k == "prefetch_bytes"}, "system": default}
    if common.get("features") == "owned":
        common["features"] = "memory"
    sampled = resolve(common)
    if sampled.model.get("norm") == "batch" and sampled.ranks > 1:
        raise unpredicted('model.norm is "batch"', "use another norm, or one rank")
    found = {}
    for label, changes in variants().items():
        wanted, unused = {"train": {}, **common, **changes}, set[str]()
        if default in changes:  # a way to share out the data
            if sampled.ranks == 1:
                continue
            wanted[default] = {**own, **changes[default]}
        if changes["system"] != default:
            unused |= {"queue", "minibatches_per_step"}
        if not SYSTEMS.find(changes["system"]).samples:
            wanted["model"] = sampled.model
            unused |= {"sampler", "batch_size"}
        wanted["train"] = {k: v for k, v in wanted["train"].items() if k not in unused}
        found[label] = resolve({k: v for k, v in wanted.items() if k not in unused})
        if SYSTEMS.find(changes["system"]).unmapped(found[label]):
            found[label] = found[label].model_copy(update={"graph": "memory"})
    return found


def unpredicted(what: str, advice: str) -> InputError:
    """The error about an option whose traffic or memory no formula predicts."""
    return InputError(f"{what}: plan does not predict that in this version; {advice}")
