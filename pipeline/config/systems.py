"""Training systems: each is a frozen record of five policies."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ...stages.feed.collective_feed import SampledByOwners
from ...stages.feed.full_batch_feed import FullBatchWork
from ...stages.feed.local_feed import Local
from ...stages.feed.queue_feed import Sampled
from ...stages.fetch.exchange import PREFETCH_BYTES as PREFETCH_ROWS_BYTES
from ...stages.fetch.exchange import ExchangeFetch
from ...stages.fetch.feature_cache import HotBy
from ...stages.fetch.gather import GatherFetch
from ...stages.fetch.isolated import Correction, CoverageFetch
from ...stages.fetch.lazy import LazyFetch
from ...stages.fetch.visit import PREFETCH_BYTES, Mode, VisitFetch
from ...stages.memory.quantize import Payload
from ...stages.models.lazy import V1, Phases
from ...stages.partition.base import Partitioner
from ...stages.partition.contiguous import Contiguous
from ...stages.partition.metis import MetisWork
from ...stages.placement.boundary import WithBoundary
from ...stages.placement.chunk_schedule import Rotation
from ...stages.placement.chunks import Chunks
from ...stages.placement.replicated import Replicated
from ...stages.placement.row_blocks import Blocks
from ...stages.placement.sharded import Sharded
from ...stages.policies import FetchPolicy, PartitionPolicy, ReducePolicy, SamplePolicy, SchedulePolicy
from ...stages.reduce.corrected import CoverageCorrected, Shrink
from ...stages.reduce.federated import LocalSteps
from ...stages.reduce.seed_weighted import AllSeedsMean, SeedWeightedMean
from ...stages.sample.base import Sampler
from ...stages.sample.neighbor import NeighborSampler
from ...stages.schedule.policies import Epochs, LayerByLayer, SuperEpochs
from ...storage.errors import InputError

Clients = int | Literal["ranks", "nodes"]


@dataclass(frozen=True)
class System:
    """A training system. The loop runs any of them the same way."""

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


def bulk(
    sampler: Sampler | None = None,
    *,
    topology: Literal["replicated", "partitioned"] = "replicated",
    replication: int = 1,
    cache_fraction: float = 0.0,
    hot_by: HotBy = "samples",
    prefetch_bytes: int = PREFETCH_ROWS_BYTES,
    features: Literal["shared", "owned"] = "shared",
    partitioner: Partitioner | None = None,
) -> System:
    """Minibatch training on samples that are drawn many at a time (Tripathy, Yelick, Buluc, MLSys 2024).

    Gradients are the mean over the seeds of a step. Minibatches are the same ones, whoever holds what.

    Args:
        sampler: draws minibatches.
        topology: ``replicated``: every rank has the whole graph; ``partitioned``: each has a block of rows, with their
            features, and those who own a row draw in it.
        replication: c: how many ranks hold each block, of a partitioned topology or of owned features.
        cache_fraction: the share of all rows that a rank keeps of the others' where features are owned.
        hot_by: what is hot: what the rank's own minibatches name most, or what the most in-neighbour lists hold.
        prefetch_bytes: rows of others that may lie ready or be under way before they are needed.
        features: ``shared``: every rank reads all; ``owned``: each holds a block of rows and sends the others what they
            need. Those of a partitioned topology are owned.
        partitioner: cuts a partitioned topology into contiguous blocks, by default with nodes and edges balanced
            together.
    """
    drawn = sampler or NeighborSampler()
    options = {
        "topology": topology,
        "replication": replication,
        "cache_fraction": cache_fraction,
        "hot_by": hot_by,
        "prefetch_bytes": prefetch_bytes,
    }
    exchanged = ExchangeFetch(replication, cache_fraction, hot_by, prefetch_bytes)
    if topology == "partitioned":
        blocks = Blocks(replication, partitioner or Contiguous())
        return System("bulk", blocks, SampledByOwners(drawn), exchanged, SeedWeightedMean(), Epochs(), options)
    fetch = exchanged if features == "owned" else GatherFetch()
    return System("bulk", Replicated(), Sampled(drawn), fetch, SeedWeightedMean(), Epochs(), options)


def sar(
    mode: Mode | Literal["auto"] | Sequence[Mode] = "auto",
    *,
    partitioner: Partitioner | None = None,
    memory_bytes: int | None = None,
    prefetch_bytes: int = PREFETCH_BYTES,
    prune: bool = True,
) -> System:
    """Full-batch training with sequential aggregation and rematerialisation (SAR; Mostafa, MLSys 2022).

    Every rank holds one part of the nodes, and visits those of the others one rank after the other.

    Args:
        mode: how layers see other ranks' rows, one for all or one for each; ``auto`` takes the fastest that fit in
            `memory_bytes`.
        partitioner: cuts the graph, by default METIS with nodes and edges balanced together.
        memory_bytes: of tensors, for each rank; None: what the machine has to spare.
        prefetch_bytes: rows that may be under way before they are needed.
        prune: leave out of each layer what the seeds' results do not depend on.
    """
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    return System(
        "sar",
        Sharded(partitioner or MetisWork(), prune),
        FullBatchWork(),
        VisitFetch(modes, memory_bytes, prefetch_bytes),
        AllSeedsMean(),
        Epochs(),
        {
            "mode": mode if isinstance(mode, str) else list(mode),
            "memory_bytes": memory_bytes,
            "prefetch_bytes": prefetch_bytes,
            "prune": prune,
        },
    )


def grappa(
    sampler: Sampler | None = None,
    *,
    partitioner: Partitioner | None = None,
    chunks: int = 1,
    rotation: Rotation = "sweep",
    reshuffle_fraction: float = 0.0,
    repartition_every: int = 50,
    halo: float = 1,
    ahead: bool = True,
    correction: Correction = "batch",
    shrink: Shrink = "none",
) -> System:
    """Isolated ranks that send each other gradients only (Grappa; Xu, Siebenbrunner, Bindschaedler, arXiv 2602.01872).

    Args:
        sampler: draws minibatches within what a rank sees.
        partitioner: cuts the graph into chunks, by default METIS with nodes and edges balanced together.
        chunks: m, for each rank.
        rotation: whose chunks a rank sees beside its own: each other rank's in turn, always the next one's, or none.
        reshuffle_fraction: the share of all chunks that is dealt to the ranks anew whenever these change.
        repartition_every: epochs until then.
        halo: the share of nodes one hop outside that are seen too.
        ahead: read what the next super-epoch sees while the one before it trains, and hold both.
        correction: how missing neighbours are made up for.
        shrink: how the weight of a rank's minibatch is drawn towards that of all.
    """
    return System(
        "grappa",
        Chunks(partitioner or MetisWork(), rotation, halo, chunks, reshuffle_fraction, ahead),
        Local(sampler or NeighborSampler()),
        CoverageFetch(correction),
        CoverageCorrected(correction == "batch", shrink),
        SuperEpochs(repartition_every),
        {
            "chunks": chunks,
            "rotation": rotation,
            "reshuffle_fraction": reshuffle_fraction,
            "repartition_every": repartition_every,
            "halo": halo,
            "ahead": ahead,
            "correction": correction,
            "shrink": shrink,
        },
    )


def retexo(
    mode: Literal["v3", "v1"] = "v3",
    *,
    partitioner: Partitioner | None = None,
    base: Literal["none", "mlp"] | None = None,
    propagate: Literal["hidden", "logits"] | None = None,
    head: Literal["normed", "linear", "none"] | None = None,
    local_steps: int | None = None,
    rounding: Payload = "full",
    inductive: bool = False,
    distill: float = 0.0,
    clients: Clients = "ranks",
) -> System:
    """Lazy message passing: layer after layer, with one exchange of rows for each (RETEXO; Kolluri et al., arXiv
    2302.13053).

    ``epochs`` are those of each layer. What is None is as `mode` has it.

    Args:
        mode: ``v3`` hands on hidden rows and trains each layer with a layer norm and a head; ``v1`` trains an MLP first
            and hands on logits, so that no raw feature leaves its owner. The best epoch of a layer has most validation
            accuracy under ``v3``, least validation loss under ``v1``.
        partitioner: cuts the graph, by default METIS with nodes and edges balanced together.
        base: ``mlp`` trains an MLP on the features before the first layer.
        propagate: what a finished layer hands on.
        head: what a layer is trained with.
        local_steps: steps that each client takes by itself before parameters are averaged; None: gradients are summed
            in every step.
        rounding: of rows that are handed on.
        inductive: train without validation and test nodes in the graph.
        distill: share of a layer's loss that is cross entropy with what the layer before says of every node, labelled
            or not, in [0, 1).
        clients: who trains and is counted: the ranks, so many simulated clients, or each node.

    Raises:
        InputError: hidden rows cannot be handed on where the layer gives logits, or distillation does not go with
            `local_steps`, or takes all of the loss.
    """
    preset = V1 if mode == "v1" else Phases()
    cut = Phases(base or preset.base, propagate or preset.propagate, head or preset.head, rounding, distill)
    if cut.head == "none" and cut.propagate == "hidden":
        raise InputError(
            'retexo.head is "none", so a layer gives logits and has no hidden rows; use retexo.propagate = "logits" with it'
        )
    if not 0 <= distill < 1:
        raise InputError(f"retexo.distill is {distill}; expected a share of the loss, at least 0 and below 1")
    if distill and local_steps is not None:
        message = f"retexo.distill is {distill}, and retexo.local_steps is {local_steps}, but a share of the loss is one of all clients' nodes"
        raise InputError(f"{message} together; leave one of them out")
    return System(
        "retexo",
        WithBoundary(partitioner or MetisWork(), inductive=inductive),
        FullBatchWork(),
        LazyFetch(
            "val_loss" if mode == "v1" else "val_accuracy", clients=clients != "ranks" and local_steps is not None
        ),
        AllSeedsMean() if local_steps is None else LocalSteps(local_steps),
        LayerByLayer(cut),
        {
            **asdict(cut),
            "mode": mode,
            "local_steps": local_steps,
            "inductive": inductive,
            "clients": clients,
        },
    )
