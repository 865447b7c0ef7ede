"""Contract and registry of training systems. Each system is a module of `pipeline.systems`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import nn

from ...stages.capabilities import Cannot, Need
from ...stages.links.train_pairs import Negatives
from ...stages.partition.base import Partitioner
from ...stages.placement.base import PartitionPolicy
from ...stages.policies import FetchPolicy, ReducePolicy, SamplePolicy, SchedulePolicy
from ...stages.sample.base import Sampler
from ...storage.registry import Registry, imported
from .capabilities import OF_SYSTEM, Form, rows
from .job import Job
from .schema import Section

Clients = int | Literal["ranks", "nodes"]
NODES_ONLY = (
    Cannot(OF_SYSTEM, Need.LINKS, "trains on labelled nodes"),
    Cannot(OF_SYSTEM, Need.EDGE_LABELS, "trains on labelled nodes"),
    Cannot(OF_SYSTEM, Need.OWNED, "keeps each row on the rank that trains its node"),
    Cannot(OF_SYSTEM, Need.MAPPED, "arranges the edges of parts in memory"),
)
"""Rows of a system that brings none."""
NO_MINIBATCHES = (
    Cannot(OF_SYSTEM, Need.QUEUE, "has no minibatches to queue", False),
    Cannot(OF_SYSTEM, Need.STORED, "trains on no minibatches", False),
    Cannot(OF_SYSTEM, Need.DEVICE_DRAWS, "samples nothing", False),
)
"""Rows of a system that samples nothing."""
FULL_BATCHES = (
    Cannot(OF_SYSTEM, Need.LINKS, "trains all pairs at once, each of which would see its own edge"),
    Cannot(OF_SYSTEM, Need.TIMES, "samples nothing", False),
    Cannot(OF_SYSTEM, Need.OWNED, "keeps each row on the rank that trains its node"),
    Cannot(OF_SYSTEM, Need.COMPILE, "trains on full batches, whose layers exchange rows between ranks or are fixed"),
    *NO_MINIBATCHES,
)
"""Rows of a system whose steps are over all edges of all ranks."""


@dataclass(frozen=True)
class System:
    """A training system: five policies. The same loop runs every system."""

    name: str
    partition: PartitionPolicy
    sample: SamplePolicy
    fetch: FetchPolicy
    reduce: ReducePolicy
    schedule: SchedulePolicy
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options besides sampler and partitioner, as in the system's section of the configuration."""

    @property
    def replication(self) -> int:
        """c, the number of ranks that open each part."""
        return self.options.get("replication", 1) if self.partition.partitioner is not None else 1

    def parts_before(self, rank: int) -> int:
        """Number of parts of all ranks before `rank`; for rank P, the number of all parts."""
        return rank * self.options.get("chunks", 1) // self.replication

    def cut_by(self, partitioner: Partitioner) -> "System":
        """The system with another partitioner."""
        # pyrefly: ignore[bad-specialization]
        return replace(self, partition=replace(self.partition, partitioner=partitioner))

    def drawn_by(self, sampler: Sampler) -> "System":
        """The system with another sampler."""
        # pyrefly: ignore[bad-specialization]
        return replace(self, sample=replace(self.sample, sampler=sampler))

    @property
    def clients(self) -> Clients:
        """Simulated clients: the ranks themselves, a number of clients, or one for each node."""
        return self.options.get("clients", "ranks")


@dataclass(frozen=True)
class Inputs:
    """Values from other sections of the configuration that a system is built with."""

    sampler: Sampler | None = None
    partitioner: Partitioner | None = None
    owned_features: bool = False
    """True if each rank holds a share of the features."""
    queue_bytes: int = 512 << 20
    """Most bytes of sampled minibatches that wait."""


class Registered:
    """A training system as configuration, checks, planning and reports see it.

    Another package derives from this and names an instance in its entry points ``millrace.systems``. The name is also
    the section of the configuration with the system's options.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """Clause for the reference, such as ``minibatches on samples that are drawn many at a time``."""
    options: ClassVar[type[Section]]
    """Keys of the system's section. `System.options` validates as such a section."""
    samples: ClassVar[bool] = True
    """True if the system trains on a sampler's minibatches. Otherwise a step takes all train nodes, and keys of
    `sampler`, `queue` and the size of a step are refused."""
    cannot: ClassVar[tuple[Cannot, ...]] = NODES_ONLY
    """What the system cannot do, whatever its options; the part of a row is `OF_SYSTEM`."""
    forms: ClassVar[tuple[Form, ...]] = ()
    """Forms of it that cannot do more."""
    exchanges: ClassVar[Literal["background", "within", "beside"]] = "background"
    """Time at which ranks exchange rows: in a thread, for which `fetch` waits; within forward and backward; or beside
    them."""
    epochs_decide: ClassVar[bool] = False
    """True if the number of epochs affects the parameters of epochs before the last, so that a resumed run keeps it."""
    needs_parts: ClassVar[bool] = False
    """True if several ranks always train on parts of the graph."""
    for_slow_links: ClassVar[bool] = False
    """True if the system sends less than others and learns differently for it."""
    planned: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Candidates of a plan: keys of a job by label. A system without candidates is not planned."""
    unpredicted: ClassVar[Mapping[str, Any]] = {}
    """Options that plans cannot predict, each with the value that they can."""
    plan_note: ClassVar[str] = ""
    """A sentence for plans with this system."""
    options_decide: ClassVar[bool] = False
    """True if options affect the parameters of a run, besides its sampler, seeds and parts; a checkpoint then continues
    under the same options only."""
    free_options: ClassVar[tuple[str, ...]] = ()
    """Options that do not affect the parameters, and may change when a run is resumed."""

    def complete(self, job: Job) -> Job:
        """The job with values filled in that depend on other keys.

        Raises:
            InputError: keys do not go together.
        """
        return job

    def build(self, options: Any, inputs: Inputs) -> System:
        """Build the system from a section of `options`.

        Raises:
            InputError: the options do not go with `inputs`.
        """
        raise NotImplementedError

    def draws(self, job: Job) -> bool:
        """True if steps of this job train on a sampler's minibatches."""
        return self.samples

    def cuts(self, options: Any) -> bool:
        """True if `build` takes a partitioner."""
        return self.needs_parts

    def unmapped(self, job: Job) -> str:
        """Reason, as a verb and its objects, why ranks cannot map the edges of their parts; empty: they make all large
        arrays by `RankJob.arrays`."""
        return next((row.because for row, _ in rows(self, job) if row.need is Need.MAPPED), "")

    def owning(self, system: System) -> System:
        """The system with features shared out over the ranks.

        Raises:
            InputError: the system has no such form.
        """
        raise NotImplementedError

    def with_links(self, system: System, negatives: Negatives | None, hidden: bool = True) -> System:
        """The system for pairs; for one that trains on links, or on labels of edges.

        Args:
            system: of this kind.
            negatives: the law of the pairs' negatives; None: pairs are labelled.
            hidden: minibatches are drawn without the pairs' own edges.

        Raises:
            InputError: this form of the system trains nodes only.
        """
        raise NotImplementedError

    def owns_features(self, system: System) -> bool:
        """True if the system has features shared out over the ranks."""
        return False

    def check_data(self, job: Job, system: System) -> None:
        """Refuse jobs of this system whose keys on the distribution of data and samples do not go together.

        Raises:
            InputError: names the key to change.
        """

    def check(self, job: Job, system: System, model: nn.Module) -> None:
        """Refuse jobs of this system whose keys do not go together.

        Raises:
            InputError: names the key to change.
        """

    def absent_nodes(self, system: System) -> tuple[str, ...]:
        """Splits whose nodes are not in the graph that is trained on."""
        return ()


SYSTEMS: Registry[Registered] = Registry(
    "system",
    deferred={
        name: imported(f"..systems.{name}", "SYSTEM", __name__.rpartition(".")[0])
        for name in ("bulk", "grappa", "sar", "retexo")
    },
)
"""All systems; the first is the default."""
