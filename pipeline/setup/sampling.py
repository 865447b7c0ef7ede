"""Assembly of a job as far as its minibatches: its data, and how they are drawn, before there is a model."""

from dataclasses import dataclass, replace
from typing import Any

from ...stages.capabilities import Need
from ...stages.feed.queue_feed import BulkSpan
from ...stages.sample.base import check_kernel, reads_times
from ...storage.dataset import Dataset
from ...storage.fingerprint import DatasetDigests
from ...storage.queue.seed_data import SampledDataset
from ...storage.typed.graph_types import GraphTypes
from ..assembly.sample_part import SamplePart
from ..config.capabilities import needs_of
from ..config.load import Job
from ..config.records import for_task, with_links
from ..config.refusals import refuse
from ..config.systems import SYSTEMS, System
from .checks import check_links, check_times, check_topology, check_types
from .fingerprint import sample_fingerprint
from .model import keeping_positions


@dataclass(frozen=True, eq=False, kw_only=True)
class Sampling:
    """A job with its data, as far as minibatches need them."""

    job: Job
    system: System
    whole: Dataset | None
    """The whole data; None if a rank has opened only its own part."""
    order: str = ""
    """Digest of the nodes' order, if a cut has renumbered them: see `storage.partition.book.order_digest`."""

    @property
    def dataset(self) -> Dataset:
        """The whole dataset, if it is open."""
        assert self.whole is not None, "this rank has its own part only"
        return self.whole

    @property
    def sample(self) -> SamplePart:
        """How minibatches are drawn."""
        job = self.job
        sizes = job.train.batch_size, job.queue.bulk_size, job.seed_of("minibatches")
        return SamplePart(self.system.sample, *sizes, job.kernel)

    @property
    def samples_fingerprint(self) -> dict[str, str]:
        """Digests of everything that decides the minibatches."""
        return sample_fingerprint(self.job, self.dataset, self.system) | self._numbering(self.dataset.graph.types)

    def _numbering(self, types: GraphTypes) -> dict[str, str]:
        """Entries of the fingerprint for nodes and edges that are numbered otherwise than in the dataset."""
        order = {"order": self.order} if self.order else {}
        # Ranks with blocks of rows name the relation of an edge with its position: see `sample.remote_nodewise`.
        return order | ({"edges": "with relations"} if not types.is_single and self.draws_by_owners else {})

    @property
    def reads_edges(self) -> bool:
        """True if the job has a model that reads features of edges."""
        return False

    @property
    def features_digest(self) -> str:
        """Digest of the features, which rows that are packed beside samples carry."""
        return DatasetDigests(self.dataset)["feature_sample"]

    @property
    def num_train(self) -> int:
        """Nodes, or pairs, to train on."""
        return self.dataset.split_sizes["train"]

    @property
    def minibatches_per_epoch(self) -> int:
        """Minibatches in an epoch, over all ranks."""
        return -(-self.num_train // self.job.train.batch_size)

    @property
    def bulks(self) -> BulkSpan:
        """Bulks of all epochs."""
        return BulkSpan(range(self.job.epochs), -(-self.minibatches_per_epoch // self.job.queue.bulk_size))

    @property
    def store_options(self) -> dict[str, Any]:
        """Arguments of `ZarrQueue.create` for these minibatches, whatever bounds them."""
        meta = {"minibatches_per_epoch": self.minibatches_per_epoch}
        return {"fingerprint": self.samples_fingerprint, "bulk_size": self.job.queue.bulk_size, "meta": meta}

    @property
    def has_minibatches(self) -> bool:
        """True if the system trains on sampled minibatches, which a queue holds."""
        return self.system.sample.uses_queue

    @property
    def draws_by_owners(self) -> bool:
        """True if ranks hold blocks of rows, and draw together."""
        return self.system.sample.by_owners

    @property
    def reads_times(self) -> bool:
        """True if minibatches are drawn, and models evaluated, at the times of seeds."""
        return reads_times(self.system.sample.sampler)

    @property
    def frees_steps(self) -> bool:
        """True if each step frees memory that the next one allocates again."""
        return self.system.sample.sampler is not None and not self.system.sample.is_isolated


def from_queue(job: Job, system: System, stored: bool) -> System:
    """The system, whose ranks with blocks of rows take minibatches from a queue on disk, if there is one: the job's, or
    a store (`stored`)."""
    if not system.sample.by_owners:
        return system
    # pyrefly: ignore[bad-specialization]
    return replace(system, sample=replace(system.sample, uses_queue=stored or job.queue.kind == "zarr"))


def sampling_of(job: Job, dataset: Dataset, system: System, *, stored: bool = False) -> Sampling:
    """A job as far as its minibatches; its system has the policies for the data.

    Args:
        job: a resolved configuration.
        dataset: the data.
        system: as the configuration describes it.
        stored: minibatches come from a store.

    Raises:
        InputError: the data, the system and the sampler do not go together.
    """
    system = from_queue(job, system, stored)
    job = for_task(job, dataset, system.sample.sampler)
    if job.features == "owned":
        refuse(Need.OWNED, needs_of(job, dataset, sampler=system.sample.sampler), job)
        system = SYSTEMS.find(system.name).owning(system)
    check_links(job, dataset)
    check_types(job, system, dataset)
    system = with_links(job, keeping_edges(system, dataset.graph.types), dataset)
    check_times(job, system, dataset)
    SYSTEMS.find(system.name).check_data(job, system)
    if system.sample.sampler is not None:
        check_kernel(system.sample.sampler, job.kernel)
        check_topology(job)
        system.sample.sampler.check(dataset.graph)
    order = ""
    if isinstance(dataset, SampledDataset):
        order, is_cut = dataset.order, system.partition.partitioner is not None
        dataset.check_use(is_cut=is_cut, is_read=stored, learns=bool(job.learned.width))
    return Sampling(job=job, system=system, whole=dataset, order=order)


def keeping_edges(system: System, types: GraphTypes) -> System:
    """The system with a sampler that keeps the positions of edges, by which a graph with types knows relations."""
    return system if types.is_single else keeping_positions(system, "the graph has several relations")
