"""Training on isolated ranks that send each other only gradients."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from ...stages.capabilities import Cannot, Need
from ...stages.feed.link_feed import LocalLinks
from ...stages.feed.local_feed import Local
from ...stages.feed.local_full_batch import LocalFullBatch
from ...stages.fetch.fetch import Fetch
from ...stages.fetch.gather import InPlace
from ...stages.fetch.isolated import Correction
from ...stages.fetch.visit import CoverageVisitFetch
from ...stages.links.exclude import WithoutOwnEdges
from ...stages.links.train_pairs import Negatives
from ...stages.partition.base import Partitioner
from ...stages.partition.metis import MetisWork
from ...stages.placement.chunk_schedule import Rotation
from ...stages.placement.chunks import Chunks
from ...stages.placement.whole_view import WholeChunks
from ...stages.reduce.corrected import CoverageCorrected, Shrink
from ...stages.sample.base import Sampler, reads_times
from ...stages.sample.neighbor import NeighborSampler
from ...stages.schedule.policies import SuperEpochs
from ...storage.errors import InputError
from ..config.capabilities import OF_SYSTEM, QUEUE_GIVEN, Form, needs_of
from ..config.job import Job
from ..config.records import device_topology_only
from ..config.refusals import refuse
from ..config.schema import Queue, Section
from ..config.systems import Inputs, Registered, System

IN_VIEW = InPlace(is_read=True)
"""Rows of a rank's view, which are read when it is placed."""


def grappa(
    sampler: Sampler | None = None,
    *,
    partitioner: Partitioner | None = None,
    chunks: int = 1,
    rotation: Rotation = "sweep",
    reshuffle_fraction: float = 0.0,
    repartition_every: int = 50,
    halo: float = 0,
    ahead: bool = True,
    correction: Correction = "batch",
    shrink: Shrink = "none",
    full_batch: bool = False,
) -> System:
    """Training on isolated ranks that send each other only gradients (Grappa; Xu, Siebenbrunner, Bindschaedler, arXiv
    2602.01872).

    Args:
        sampler: draws minibatches within the part of the graph that a rank sees.
        partitioner: cuts the graph into chunks; by default METIS with nodes and edges balanced together.
        chunks: m, the number of chunks of each rank.
        rotation: chunks that a rank sees besides its own: each other rank's in turn, always the next one's, or none.
        reshuffle_fraction: share of all chunks that are assigned to other ranks at random after each super-epoch.
        repartition_every: epochs in a super-epoch.
        halo: share of the nodes one hop outside that a rank sees too: 0 as in the paper's text. The paper's code reads
            all of them, so every coverage is 1, and every correction too.
        ahead: read the next super-epoch's data while the present one trains, and hold both.
        correction: weights that correct for missing neighbours.
        shrink: shrinkage of the weight of a rank's minibatch towards the mean weight.
        full_batch: without sampling, each rank trains on all its seeds in one step an epoch, over all in-edges that it
            sees.

    Raises:
        InputError: a sampler is given, but a full batch samples nothing.
    """
    given = locals()
    # Runs of earlier versions have no key full_batch, and go on.
    options = {name: given[name] for name in GrappaOptions.model_fields if name != "full_batch" or full_batch}
    if full_batch and sampler is not None:
        raise InputError("grappa is given a sampler, but full_batch samples nothing; leave one of them out")
    place = WholeChunks if full_batch else Chunks
    return System(
        "grappa",
        place(partitioner or MetisWork(), rotation, halo, chunks, reshuffle_fraction, ahead),
        LocalFullBatch() if full_batch else Local(sampler or NeighborSampler()),
        CoverageVisitFetch(correction=correction) if full_batch else Fetch(IN_VIEW, correction=correction),
        CoverageCorrected(correction == "batch", shrink),
        SuperEpochs(repartition_every),
        options=options,
    )


class GrappaOptions(Section):
    """Data seen by each rank under ``system = "grappa"``, and the correction for unseen neighbours."""

    chunks: int = Field(default=1, ge=1)
    """m, the number of chunks of each rank. The graph is cut into m P chunks."""
    rotation: Literal["sweep", "fixed", "none"] = "sweep"
    """Chunks that a rank sees besides its own: those of every other rank in turn, always those of the next rank, or
    none."""
    reshuffle_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of all chunks that move to a randomly drawn rank after each super-epoch. 0: ranks keep their chunks; 1:
    every chunk is drawn again."""
    repartition_every: int = Field(default=50, ge=1)
    """Epochs in a super-epoch."""
    halo: float = Field(default=0.0, ge=0, le=1)
    """Share of the nodes one hop outside that a rank sees too, drawn for each super-epoch; 0 as in the paper's text.
    With 1, as in the paper's code, seeds have all their neighbours, and no correction has an effect."""
    ahead: bool = True
    """Read and assemble the next super-epoch's data ahead of time; memory then holds both super-epochs."""
    correction: Literal["none", "batch", "node"] = "batch"
    """Weights that correct for missing neighbours: one for each rank's minibatch (the mean coverage of its seeds), one
    for each seed (its coverage), or none."""
    shrink: Literal["none", "empirical"] = "none"
    """Shrinkage of a minibatch's weight towards the mean weight: none, or by its noise (empirical Bayes)."""
    full_batch: bool = False
    """Sample nothing: in one step an epoch, each rank trains on all its seeds, over all in-edges that it sees."""


class _Grappa(Registered):
    name = "grappa"
    cannot = (
        Cannot(
            OF_SYSTEM,
            Need.TYPES,
            "corrects for the in-edges that a rank lacks by their number over all relations together",
        ),
        Cannot(OF_SYSTEM, Need.TIMES, "trains on a rank's own part without times"),
        Cannot(OF_SYSTEM, Need.LEARNED, "does not train one set of rows in steps of all ranks together"),
        Cannot(OF_SYSTEM, Need.OWNED, "keeps each row on the rank that trains its node"),
        Cannot(OF_SYSTEM, Need.QUEUE, "lets each rank sample for itself: only queue.bulk_size is used", False),
        Cannot(OF_SYSTEM, Need.STORED, "samples within what each rank sees, which changes as it trains", False),
    )
    forms = (
        Form(
            "several chunks",
            lambda job: job.options.chunks > 1,
            "leave graph out",
            (Cannot(OF_SYSTEM, Need.MAPPED, "joins the chunks of a rank in memory to evaluate them"),),
        ),
        Form(
            "full batches",
            lambda job: job.options.full_batch,
            "leave grappa.full_batch out",
            (
                Cannot(OF_SYSTEM, Need.MAPPED, "arranges the edges of a full batch in memory"),
                Cannot(OF_SYSTEM, Need.LINKS, "trains all pairs at once, each of which would see its own edge"),
                Cannot(OF_SYSTEM, Need.EDGE_LABELS, "has no minibatches of labelled edges"),
                Cannot(OF_SYSTEM, Need.COMPILE, "trains on full batches, whose layers are fixed"),
                Cannot(OF_SYSTEM, Need.DEVICE_DRAWS, "samples nothing", False),
            ),
        ),
    )
    about = "isolated ranks that send gradients only"
    options = GrappaOptions
    needs_parts = True
    options_decide = True
    free_options = ("ahead",)
    for_slow_links = True
    planned = {"grappa": {}}  # noqa: RUF012
    unpredicted = {"full_batch": False}  # noqa: RUF012

    def draws(self, job: Job) -> bool:
        return not job.options.full_batch

    def complete(self, job: Job) -> Job:
        if job.options.full_batch and job.queue != Queue():
            raise InputError(
                "configuration section 'queue' is given, but grappa.full_batch is true and nothing is sampled; leave "
                "one of them out"
            )
        if job.queue != Queue(bulk_size=job.queue.bulk_size):
            refuse(Need.QUEUE, needs_of(job) | {Need.QUEUE: QUEUE_GIVEN}, job)
        if job.train.minibatches_per_step not in (None, job.ranks):
            raise InputError(
                f"configuration key 'train.minibatches_per_step' is {job.train.minibatches_per_step}, but under system "
                f"'grappa' each of the {job.ranks} ranks trains on one minibatch of its own in every step; leave it out"
            )
        if job.options.full_batch:
            return job
        if job.device == "cuda" and "kernel" not in job.model_fields_set and not device_topology_only(job):
            job = job.with_defaults(kernel="cuda")
        return job

    def with_links(self, system: System, negatives: Negatives | None, hidden: bool = True) -> System:
        """See `Registered.with_links`. Every rank has all pairs, and trains on those of its own chunks."""
        assert isinstance(system.sample, Local)
        assert isinstance(system.fetch, Fetch)
        if negatives is not None and negatives.exclude_known:
            raise InputError(
                "link.exclude_known is true, but ranks of grappa know the train pairs of their own chunks only; leave "
                "it out"
            )
        sampler = system.sample.sampler
        drawn = sampler if reads_times(sampler) or not hidden else WithoutOwnEdges(sampler)
        # Its name is that of the sampler inside.
        # pyrefly: ignore[bad-argument-type]
        sample = LocalLinks(drawn, system.sample.max_bytes, negatives)
        return replace(system, sample=sample, fetch=replace(system.fetch, pairs=sample))

    def build(self, options: GrappaOptions, inputs: Inputs) -> System:
        system = grappa(inputs.sampler, partitioner=inputs.partitioner, **options.model_dump())
        if not isinstance(system.sample, Local):
            return system
        return replace(system, sample=replace(system.sample, max_bytes=inputs.queue_bytes))


SYSTEM = _Grappa()
