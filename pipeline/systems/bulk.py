"""Minibatch training on samples that are drawn many at a time."""

from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ...stages.capabilities import Cannot, Need
from ...stages.feed.collective_feed import Algorithm, SampledByOwners
from ...stages.feed.link_feed import LinksByOwners, SampledLinks
from ...stages.feed.queue_feed import Sampled
from ...stages.fetch.exchange import OwnedFeatures
from ...stages.fetch.feature_cache import HotBy
from ...stages.fetch.fetch import Fetch
from ...stages.fetch.gather import InPlace
from ...stages.links.exclude import WithoutOwnEdges
from ...stages.links.train_pairs import Negatives
from ...stages.partition.base import Partitioner
from ...stages.partition.contiguous import Contiguous
from ...stages.placement.replicated import Replicated
from ...stages.placement.row_blocks import Blocks, Grid
from ...stages.reduce.seed_weighted import SeedWeightedMean
from ...stages.sample import SAMPLERS
from ...stages.sample.base import Sampler, check_kernel, reads_times
from ...stages.sample.neighbor import NeighborSampler
from ...stages.schedule.policies import Epochs
from ...storage.errors import InputError
from ..config.capabilities import Form
from ..config.job import Job
from ..config.records import device_topology_only, record_type
from ..config.schema import Section
from ..config.systems import Inputs, Registered, System


def bulk(
    sampler: Sampler | None = None,
    *,
    topology: Literal["replicated", "partitioned"] = "replicated",
    replication: int = 1,
    cache_fraction: float = 0.0,
    hot_by: HotBy = "samples",
    prefetch_bytes: int | Literal["auto"] = "auto",
    features: Literal["shared", "owned"] = "shared",
    partitioner: Partitioner | None = None,
    local_seeds: bool = False,
    algorithm: Algorithm = "owners",
) -> System:
    """Minibatch training that samples many minibatches at a time (Tripathy, Yelick, Buluc, MLSys 2024).

    Gradients are the mean over a step's seeds. Given the order of nodes, minibatches do not depend on how graph and
    features are distributed.

    Args:
        sampler: draws minibatches.
        topology: ``replicated``: every rank has the whole graph; ``partitioned``: each has a block of rows with their
            features, and rows are sampled by the ranks that own them.
        replication: c, the number of ranks that hold each block, of a partitioned topology or of owned features.
        cache_fraction: with owned features, the other ranks' rows that each rank caches, as a share of all rows.
        hot_by: choice of the cached rows: those that the rank's own minibatches need most often, or those in most
            in-neighbour lists.
        prefetch_bytes: rows of other ranks, or on disk, that may be ready or under way before they are needed; see
            `BulkOptions.prefetch_bytes`.
        features: ``shared``: every rank reads all; ``owned``: each holds a block of rows and sends rows to the others.
            A partitioned topology implies ``owned``.
        partitioner: cuts a partitioned topology into blocks; by default into ranges of ids, with nodes and edges
            balanced together. With other cuts, a run equals one on the dataset that `reorder` makes by the same book.
        local_seeds: each rank trains on a step's seeds that it owns, as far as minibatches keep equal sizes.
        algorithm: for a partitioned topology: the ``owners`` of rows sample them, or rows travel in the stages of
            ``1.5d`` products; ``auto`` takes the one that should be faster. Minibatches are the same.
    """
    given = locals()
    options = {name: given[name] for name in BulkOptions.model_fields}
    drawn = sampler or NeighborSampler()
    owned = Fetch(OwnedFeatures(replication, cache_fraction, hot_by, prefetch_bytes))
    if topology == "partitioned":
        blocks = Blocks(replication, partitioner or Contiguous(), rows_meet=algorithm != "owners")
        return System(
            "bulk",
            blocks,
            # pyrefly: ignore[bad-argument-type]
            SampledByOwners(drawn, local_seeds=local_seeds, algorithm=algorithm),
            owned,
            SeedWeightedMean(),
            Epochs(),
            options=options,
        )
    fetch = owned if features == "owned" else Fetch(InPlace(prefetch_bytes), by_time=reads_times(drawn))
    return System("bulk", Replicated(), Sampled(drawn), fetch, SeedWeightedMean(), Epochs(), options=options)


class BulkOptions(Section):
    """Distribution of graph and features under ``system = "bulk"`` with several ranks."""

    topology: Literal["replicated", "partitioned"] = "replicated"
    """``replicated``: every rank has the whole graph; ``partitioned``: each has a block of rows, with their
    features."""
    replication: int = Field(default=1, ge=1)
    """c, the number of ranks that hold each block, of a partitioned topology or of owned features. It divides the
    ranks."""
    cache_fraction: float = Field(default=0.0, ge=0, le=1)
    """If features are owned or the topology is partitioned: the other ranks' feature rows that each rank caches, as a
    share of all rows."""
    hot_by: Literal["samples", "degree"] = "samples"
    """Choice of the cached rows: those that the rank's own minibatches of the first epoch need most often, or those in
    most in-neighbour lists."""
    prefetch_bytes: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Bytes of rows that are fetched ahead. For rows that other ranks own: those ready or under way, besides those
    being trained on, by default 512 MiB. For rows on disk: all rows in memory, by default a quarter of what the system
    and its control groups leave, shared by the ranks; the more minibatches are read together, the better. With 0, or
    less than a step's rows, fetching and training take turns."""
    local_seeds: bool = False
    """For a partitioned topology: each rank trains on the step's seeds that it owns, as far as minibatches keep equal
    sizes, so fewer rows travel. A step has the same seeds either way, but minibatches then depend on the number of
    ranks."""
    algorithm: Algorithm = "owners"
    """Algorithm that samples a partitioned topology; minibatches are the same. ``owners``: ids travel to the rows'
    owners and drawn edges come back; ``1.5d``: rows travel along the columns of the grid, each once for the bulks of a
    grid row; ``auto``: by the expected cost, as ``millrace plan`` prints it."""


def _fetch(system: System) -> Fetch:
    assert isinstance(system.fetch, Fetch)
    return system.fetch


def _draws_on_device(job: Job) -> bool:
    """True if the sampler has kernels for GPUs that draw from the job's topology."""
    if job.options.topology == "replicated":
        return not device_topology_only(job)
    return getattr(record_type("sampler", SAMPLERS, dict(job.sampler)), "draws_by_owners_on_device", False)


def _check_draws_on_device(job: Job, sampler: Any) -> None:
    """Refuse what owners of rows do not draw on GPUs."""
    where = 'kernel is "cuda" and bulk.topology is "partitioned", where the owners of rows draw on their GPUs'
    if job.device != "cuda":
        raise InputError(f'{where}, but device is "{job.device}"; set device = "cuda" or leave kernel out')
    if not getattr(sampler, "draws_by_owners_on_device", False):
        able = " or ".join(
            name for name, kind in SAMPLERS.available().items() if getattr(kind, "draws_by_owners_on_device", False)
        )
        raise InputError(f"{where} for {able} only, but the sampler is {sampler.name}; leave kernel out")


def _by_products(algorithm: Algorithm) -> Form:
    """The form whose owners may sample by products of matrices."""
    row = Cannot(f"bulk.algorithm is '{algorithm}', whose rows", Need.TYPES, "travel without relations")
    return Form(
        f"a partitioned topology by {algorithm}",
        lambda job: job.options.topology == "partitioned" and job.options.algorithm == algorithm,
        "use owners",
        (row,),
    )


class _Bulk(Registered):
    name = "bulk"
    about = "minibatches on samples that are drawn many at a time"
    cannot = ()
    options = BulkOptions
    forms = (
        Form(
            "a partitioned topology",
            lambda job: job.options.topology == "partitioned",
            "leave it out",
            (
                Cannot('bulk.topology is "partitioned", where', Need.TIMES, "no rank has all edges of a seed"),
                Cannot('bulk.topology is "partitioned", where', Need.PACKED_EDGES, "no rank has those of all edges"),
            ),
        ),
        *(_by_products(algorithm) for algorithm in ("1.5d", "auto")),
        Form(
            "owned features",
            lambda job: job.features == "owned",
            "leave it out",
            (
                Cannot("features is 'owned', whose rows", Need.TIMES, "come with degrees of the whole graph"),
                Cannot("features is 'owned', where", Need.PACKED_EDGES, "no rank reads those of all edges"),
            ),
        ),
    )
    planned = {  # noqa: RUF012
        "bulk": {},
        "bulk, owned features": {"features": "owned", "bulk": {"topology": "replicated"}},
        "bulk, partitioned": {"bulk": {"topology": "partitioned"}},
    }
    unpredicted = {"algorithm": "owners", "local_seeds": False}  # noqa: RUF012

    def complete(self, job: Job) -> Job:
        if job.device == "cuda" and "kernel" not in job.model_fields_set and _draws_on_device(job):
            job = job.with_defaults(kernel="cuda")
        if self.cuts(job.options) and job.partition.method is None:
            job = job.model_copy(update={"partition": job.partition.model_copy(update={"method": "contiguous"})})
        return job

    def cuts(self, options: BulkOptions) -> bool:
        """See `Registered.cuts`. A partitioned topology is cut into blocks of rows."""
        return options.topology == "partitioned"

    def build(self, options: BulkOptions, inputs: Inputs) -> System:
        cut = inputs.partitioner if self.cuts(options) else None
        features = "owned" if inputs.owned_features else "shared"
        system = bulk(inputs.sampler, features=features, partitioner=cut, **options.model_dump())
        if isinstance(system.sample, SampledByOwners):
            system = replace(system, sample=replace(system.sample, max_bytes=inputs.queue_bytes))
        return system

    def owning(self, system: System) -> System:
        known = {f.name for f in fields(OwnedFeatures)}
        rows = OwnedFeatures(**{k: v for k, v in system.options.items() if k in known})
        return replace(system, fetch=replace(_fetch(system), rows=rows))

    def with_links(self, system: System, negatives: Negatives | None, hidden: bool = True) -> System:
        """See `Registered.with_links`. In a partitioned topology every rank has all pairs."""
        sample = system.sample
        if isinstance(sample, SampledByOwners):
            if negatives is not None and negatives.law == "degree":
                raise InputError(
                    'link.negatives is "degree", but bulk.topology is "partitioned", where no rank has the degrees of '
                    'all nodes; use "uniform" or "destinations"'
                )
            if sample.local_seeds:
                raise InputError(
                    "bulk.local_seeds is true, but minibatches are of pairs, whose two ends have owners of their own; "
                    "leave it out"
                )
            options = {f.name: getattr(sample, f.name) for f in fields(SampledByOwners)}
            if hidden and not reads_times(sample.sampler):
                options["sampler"] = WithoutOwnEdges(sample.sampler)
            sample = LinksByOwners(**options, negatives=negatives)
        else:
            assert isinstance(sample, Sampled)
            sample = SampledLinks.of_sampler(sample.sampler, negatives, hidden)
        fetch = replace(_fetch(system), pairs=sample, by_time=reads_times(sample.sampler))
        # pyrefly: ignore[bad-argument-type]
        return replace(system, sample=sample, fetch=fetch)

    def owns_features(self, system: System) -> bool:
        """See `Registered.owns_features`. A partitioned topology owns them anyway."""
        return _fetch(system).rows.is_owned and system.sample.uses_queue

    def check_data(self, job: Job, system: System) -> None:
        """See `Registered.check_data`. Refuses options that do not go with the distribution."""
        partitioned = 'bulk.topology is "partitioned"'
        if _fetch(system).rows.is_owned:
            _ = Grid(job.ranks, system.options.get("replication", 1))
        else:
            for name in ("replication", "cache_fraction"):
                if system.options.get(name) != BulkOptions.model_fields[name].default:
                    message = f"bulk.{name} is {system.options[name]}, but every rank has all features"
                    raise InputError(f'{message}; use features = "owned" or bulk.topology = "partitioned" with it')
        if not isinstance(system.sample, SampledByOwners):
            if (algorithm := system.options.get("algorithm")) != "owners":
                raise InputError(
                    f'bulk.algorithm is "{algorithm}", but every rank samples from the whole graph; use '
                    'bulk.topology = "partitioned" with it'
                )
            if system.options.get("local_seeds"):
                raise InputError(
                    "bulk.local_seeds is true, but every rank samples from the whole graph; use bulk.topology = "
                    '"partitioned" with it'
                )
            return
        check_kernel(system.sample.sampler, "cpu", partitioned=True)
        if job.kernel not in ("cpu", "cuda"):
            raise InputError(
                f'kernel is "{job.kernel}", which samples from a whole graph, but {partitioned}; leave kernel out'
            )
        if job.kernel == "cuda":
            _check_draws_on_device(job, system.sample.sampler)
        if system.sample.uses_queue and system.sample.local_seeds:
            raise InputError(
                "bulk.local_seeds is true, so that minibatches depend on the ranks that train, but they come from a "
                "store (queue.kind, --samples); leave one of them out"
            )


SYSTEM = _Bulk()
