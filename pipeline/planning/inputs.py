"""What a plan is asked for: numbers of a dataset, a cluster, and the job under every system."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.plural import counted
from ..config.load import Job, resolve
from .network import Link

MOST_EDGES, MOST_FEATURE_BYTES = 6_000_000, 1 << 30
"""Of a graph that is rehearsed on; a generated one stands for a larger one."""
CANDIDATES: dict[str, dict[str, Any]] = {
    "bulk": {"system": "bulk"},
    "bulk, owned features": {"system": "bulk", "features": "owned"},
    "grappa": {"system": "grappa"},
    "sar": {"system": "sar"},
    "retexo": {"system": "retexo"},
}


@dataclass(frozen=True)
class Numbers:
    """What is known of a dataset that is not at hand."""

    nodes: int
    """V."""
    edges: int
    """E, in both directions."""
    features: int = 100
    """F."""
    classes: int = 16
    """C."""
    train: float = 0.1
    """Share of the nodes."""

    def __post_init__(self) -> None:
        for name, least in (("nodes", 2), ("edges", 0), ("features", 1), ("classes", 1)):
            if (value := getattr(self, name)) < least:
                raise InputError(f"{name} is {value}; expected a whole number of at least {least}")
        if not 0 < self.train <= 1:
            raise InputError(f"the share of train nodes is {self.train}; expected a number above 0, at most 1")

    @classmethod
    def of(cls, dataset: Dataset) -> "Numbers":
        """Of a dataset."""
        share = len(dataset.split.train) / max(1, dataset.num_nodes)
        return cls(
            dataset.num_nodes, dataset.graph.num_edges, dataset.features.num_features, dataset.num_classes, share
        )


@dataclass(frozen=True)
class Cluster:
    """Where the run is to be: machines like this one."""

    hosts: int = 1
    """Machines that share the ranks evenly; one of them is this one."""
    memory_bytes: int | None = None
    """What a rank may take; None: its share of this machine's."""
    link: Link | None = None
    """Between ranks; None: they talk over this machine's loopback, which the rehearsal has measured."""

    def check(self, ranks: int) -> "Cluster":
        """Raises InputError: what cannot be."""
        if not 1 <= self.hosts <= ranks:
            raise InputError(f"hosts is {self.hosts} for {counted(ranks, 'rank')}; expected from 1 to {ranks}")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise InputError(f"the memory of a rank is {self.memory_bytes} bytes; expected more than 0")
        if self.link is not None and (self.link.bandwidth <= 0 or self.link.latency_s < 0):
            raise InputError(f"the link is {self.link}; expected a bandwidth above 0 and a latency of at least 0")
        if self.hosts > 1 and self.link is None:
            raise InputError(
                f"hosts is {self.hosts}, but nothing says how they are connected; give a link, or a bandwidth and a latency"
            )
        return self


def candidates(table: Mapping[str, Any]) -> dict[str, Job]:
    """The job under every system, resolved: what a system has no use for is left out.

    Raises:
        InputError: the configuration does not hold together.
    """
    table = {k: v for k, v in table.items() if k not in ("system", "executor")}
    _check_known(table)
    bulk = {k: v for k, v in dict(table.get("bulk", {})).items() if k == "prefetch_bytes"}
    features = table.get("features", "memory")
    common = {**table, "features": "memory" if features == "owned" else features, "bulk": bulk}
    sampled = resolve({**common, "system": "bulk"})
    found = {}
    for label, changes in CANDIDATES.items():
        if sampled.ranks == 1 and changes.get("features") == "owned":
            continue
        wanted = {**common, **changes}
        if wanted.get("features") == "owned":
            wanted["bulk"] = dict(table.get("bulk", {})) | {"topology": "replicated"}
        if changes["system"] != "bulk":
            wanted.pop("queue", None)
        if changes["system"] == "grappa" and "train" in wanted:
            wanted["train"] = {k: v for k, v in wanted["train"].items() if k != "minibatches_per_step"}
        if changes["system"] in ("sar", "retexo"):
            wanted["model"] = sampled.model
            wanted = {k: v for k, v in wanted.items() if k != "sampler"}
            wanted["train"] = {
                k: v for k, v in wanted.get("train", {}).items() if k not in ("batch_size", "minibatches_per_step")
            }
        found[label] = resolve(wanted)
    return found


def _check_known(table: Mapping[str, Any]) -> None:
    """Raises InputError: options that change what travels, by no law that is known here."""
    bulk, retexo = table.get("bulk", {}), table.get("retexo", {})
    known = {("bulk", "topology"): "replicated", ("retexo", "clients"): "ranks"}
    known |= {
        ("retexo", "local_steps"): None,
        ("retexo", "inductive"): False,
        ("retexo", "distill"): 0.0,
    }
    for (section, key), usual in known.items():
        given = (bulk if section == "bulk" else retexo).get(key, usual)
        if given != usual:
            raise InputError(
                f"{section}.{key} is {given!r}, which plan cannot predict; leave it out, and expect other bytes and memory"
            )
    if table.get("device", "cpu") != "cpu":
        raise InputError(
            f"device is '{table['device']}', but plan predicts CPUs only in this version; leave device out to plan for them"
        )
    if table.get("model", {}).get("norm") == "batch" and table.get("ranks", 1) > 1:
        raise InputError('model.norm is "batch", whose traffic plan cannot predict; use another norm, or one rank')


def stand_in(numbers: Numbers) -> str:
    """A generated graph as dense as these numbers say, and small enough to rehearse on."""
    nodes = min(numbers.nodes, MOST_FEATURE_BYTES // (4 * numbers.features))
    density = max(1.0, numbers.edges / numbers.nodes)
    scale = max(1, min(30, int(math.log2(max(2, min(nodes, MOST_EDGES / density))))))
    options = {
        "scale": scale,
        "edge_factor": max(1, round(density / 2)),
        "features": numbers.features,
        "classes": numbers.classes,
        "train": min(0.9, numbers.train),
    }
    return "rmat:" + ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items())
