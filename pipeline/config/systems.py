"""Training systems: the contract of one, and the registry. Each is a module of `pipeline.systems`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import nn

from ...stages.partition.base import Partitioner
from ...stages.policies import FetchPolicy, PartitionPolicy, ReducePolicy, SamplePolicy, SchedulePolicy
from ...stages.sample.base import Sampler
from ...storage.errors import InputError
from ...storage.registry import Registry, imported
from .job import Job
from .schema import Section

Clients = int | Literal["ranks", "nodes"]


@dataclass(frozen=True)
class System:
    """A training system: five policies. The loop runs any of them the same way."""

    name: str
    partition: PartitionPolicy
    sample: SamplePolicy
    fetch: FetchPolicy
    reduce: ReducePolicy
    schedule: SchedulePolicy
    options: Mapping[str, Any] = field(default_factory=dict)
    """What it was asked for beside sampler and partitioner, as its section of the configuration has it."""

    @property
    def replication(self) -> int:
        """c, how many ranks open each part."""
        return self.options.get("replication", 1) if self.partition.partitioner is not None else 1

    def parts_before(self, rank: int) -> int:
        """Parts of the ranks before this one; before the rank P there are all of them."""
        return rank * self.options.get("chunks", 1) // self.replication

    @property
    def clients(self) -> Clients:
        """Who is simulated by the ranks: themselves, so many clients, or a client for each node."""
        return self.options.get("clients", "ranks")


@dataclass(frozen=True)
class Inputs:
    """What other sections of the configuration give to a system."""

    sampler: Sampler | None = None
    partitioner: Partitioner | None = None
    owned_features: bool = False
    """Whether ranks hold a share of the features each."""
    queue_bytes: int = 512 << 20
    """Of sampled minibatches that may wait."""


class Registered:
    """A training system as configuration, checks, planning and reports know it.

    Another package derives from this and names an instance in its entry points ``millrace.systems``. The name is also
    the section of the configuration that holds the system's options.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """A clause for the reference: ``minibatches on samples that are drawn many at a time``."""
    options: ClassVar[type[Section]]
    """The keys of the system's section. What `System.options` holds validates as such a section."""
    samples: ClassVar[bool] = True
    """Whether it trains on a sampler's minibatches. Otherwise a step takes all train nodes, and keys of `sampler`,
    `queue` and the size of a step are refused."""
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    compiles: ClassVar[bool] = True
    """Whether its models can be trained through ``torch.compile``."""
    exchanges: ClassVar[Literal["background", "within", "beside"]] = "background"
    """When ranks exchange rows: in a thread, for which `fetch` waits; within forward and backward; or beside them."""
    epochs_decide: ClassVar[bool] = False
    """Whether the number of epochs decides the parameters of epochs before the last, so that a resumed run keeps it."""
    needs_parts: ClassVar[bool] = False
    """Whether several ranks always train on parts of the graph."""
    for_slow_links: ClassVar[bool] = False
    """Whether it sends less than others and learns otherwise for it."""
    planned: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Candidates of a plan: keys of a job by label. A system without any is not planned."""
    unpredicted: ClassVar[Mapping[str, Any]] = {}
    """Options that no plan can predict, each with the value that one can."""
    plan_note: ClassVar[str] = ""
    """A sentence for plans that have this system."""
    options_decide: ClassVar[bool] = False
    """Whether options decide the parameters of a run, beside what its sampler, seeds and parts do; a checkpoint then
    goes on under the same ones only."""
    free_options: ClassVar[tuple[str, ...]] = ()
    """Options that leave the parameters alone all the same, and may change when a run goes on."""

    def complete(self, job: Job) -> Job:
        """The job with what depends on other keys filled in.

        Raises:
            InputError: keys do not go together.
        """
        return job

    def build(self, options: Any, inputs: Inputs) -> System:
        """The system that a section of `options` describes.

        Raises:
            InputError: it does not go with `inputs`.
        """
        raise NotImplementedError

    def cuts(self, options: Any) -> bool:
        """Whether `build` takes a partitioner."""
        return self.needs_parts

    def owning(self, system: System) -> System:
        """The system with features of which each rank owns a share.

        Raises:
            InputError: there is none.
        """
        raise InputError(
            f"features is 'owned', but system '{self.name}' keeps each row where its node is trained; leave it out"
        )

    def owns_features(self, system: System) -> bool:
        """Whether the system asks for features of which each rank owns a share."""
        return False

    def check(self, job: Job, system: System, model: nn.Module) -> None:
        """Refuse what does not go together in a job of this system.

        Raises:
            InputError: names the key to change.
        """

    def no_samples(self, system: System) -> str:
        """Why it trains from no store of samples, where it has no queue, and what to do instead."""
        return f"but system '{self.name}' trains on no minibatches; leave it out"

    def absent_nodes(self, system: System) -> tuple[str, ...]:
        """The splits whose nodes are not in the graph that is trained on."""
        return ()


SYSTEMS: Registry[Registered] = Registry(
    "system",
    deferred={
        name: imported(f"..systems.{name}", "SYSTEM", __name__.rpartition(".")[0])
        for name in ("bulk", "grappa", "sar", "retexo")
    },
)
"""The first is the default."""
