"""Training systems: each is a frozen record of five policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..stages.base import NeighbourhoodPolicy, PartitionPolicy, ReducePolicy, SamplePolicy, SchedulePolicy
from ..stages.fetch.gather import Gathered
from ..stages.fetch.lazy import Lazily
from ..stages.fetch.visit import AHEAD_BYTES, Mode, Visited
from ..stages.models.lazy import V1, Phases
from ..stages.partition.base import Partitioner
from ..stages.partition.boundary import WithBoundary
from ..stages.partition.metis import MetisWork
from ..stages.partition.replicated import Replicated
from ..stages.partition.sharded import Sharded
from ..stages.reduce.federated import LocalSteps
from ..stages.reduce.seed_weighted import AllSeedsMean, SeedWeightedMean
from ..stages.rounding import Payload
from ..stages.sample.base import Sampler
from ..stages.sample.full import Whole
from ..stages.sample.neighbor import NeighborSampler
from ..stages.sample.produce import Sampled
from ..storage.errors import InputError
from .schedule import Epochs, LayerByLayer

Clients = int | Literal["ranks", "nodes"]


@dataclass(frozen=True)
class System:
    """A training system. The loop runs any of them the same way."""

    name: str
    partition: PartitionPolicy
    sample: SamplePolicy
    neighbourhood: NeighbourhoodPolicy
    reduce: ReducePolicy
    schedule: SchedulePolicy
    clients: Clients = "ranks"
    """Who is simulated by the ranks: themselves, so many clients, or a client for each node."""


def bulk(sampler: Sampler | None = None) -> System:
    """Minibatch training on samples that are drawn many at a time (Tripathy, Yelick, Buluc, MLSys 2024).

    The topology is replicated; features are fetched per minibatch; gradients are the mean over the seeds of a step.
    """
    return System("bulk", Replicated(), Sampled(sampler or NeighborSampler()), Gathered(), SeedWeightedMean(), Epochs())


def sar(
    mode: Mode | Literal["auto"] | Sequence[Mode] = "auto",
    *,
    partitioner: Partitioner | None = None,
    memory_bytes: int | None = None,
    ahead_bytes: int = AHEAD_BYTES,
    prune: bool = True,
) -> System:
    """Full-batch training with sequential aggregation and rematerialisation (SAR; Mostafa, MLSys 2022).

    Every rank holds one part of the nodes, and visits those of the others one rank after the other.

    Args:
        mode: how layers see other ranks' rows, one for all or one for each; ``auto`` takes the fastest that fit in `memory_bytes`.
        partitioner: cuts the graph, by default METIS with nodes and edges balanced together.
        memory_bytes: of tensors, for each rank; None: what the machine has to spare.
        ahead_bytes: rows that may be under way before they are needed.
        prune: leave out of each layer what the seeds' results do not depend on.
    """
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    return System(
        "sar",
        Sharded(partitioner or MetisWork(), prune),
        Whole(),
        Visited(modes, memory_bytes, ahead_bytes),
        AllSeedsMean(),
        Epochs(),
    )


def retexo(
    mode: Literal["v3", "v1"] = "v3",
    *,
    partitioner: Partitioner | None = None,
    base: Literal["none", "mlp"] | None = None,
    hands_on: Literal["hidden", "logits"] | None = None,
    head: Literal["normed", "linear", "none"] | None = None,
    residual: bool = False,
    select_by: Literal["val_accuracy", "val_loss"] | None = None,
    local_steps: int | None = None,
    rounding: Payload = "full",
    inductive: bool = False,
    folds: int = 0,
    clients: Clients = "ranks",
) -> System:
    """Lazy message passing: layer after layer, with one exchange of rows for each (RETEXO; Kolluri et al., arXiv 2302.13053).

    ``epochs`` are those of each layer. What is None is as `mode` has it.

    Args:
        mode: ``v3`` hands on hidden rows and trains each layer with a layer norm and a head; ``v1`` trains an MLP first and hands on
            logits, so that no raw feature leaves its owner.
        partitioner: cuts the graph, by default METIS with nodes and edges balanced together.
        base: ``mlp`` trains an MLP on the features before the first layer.
        hands_on: what a finished layer hands on.
        head: what a layer is trained with.
        residual: see `stages.models.lazy.Phases`.
        select_by: what the best epoch of a layer is chosen by.
        local_steps: steps that each client takes by itself before parameters are averaged; None: gradients are summed in every step.
        rounding: of rows that are handed on.
        inductive: train without validation and test nodes in the graph.
        folds: hand on, of each train node, logits from a training without its fold of the labels.
        clients: who trains and is counted: the ranks, so many simulated clients, or each node.

    Raises:
        InputError: hidden rows cannot be handed on where the layer gives logits.
    """
    preset = V1 if mode == "v1" else Phases()
    cut = Phases(base or preset.base, hands_on or preset.hands_on, head or preset.head, residual, rounding, folds)
    if cut.head == "none" and cut.hands_on == "hidden":
        raise InputError('retexo.head is "none", so a layer gives logits and has no hidden rows; use retexo.hands_on = "logits" with it')
    if folds and cut.hands_on == "hidden":
        told = f"retexo.folds is {folds}, but hidden rows of different trainings have nothing in common"
        raise InputError(f'{told}; use retexo.hands_on = "logits" with it')
    chosen = select_by or ("val_loss" if mode == "v1" else "val_accuracy")
    return System(
        "retexo",
        WithBoundary(partitioner or MetisWork(), inductive=inductive),
        Whole(),
        Lazily(chosen, clients=clients != "ranks" and local_steps is not None),
        AllSeedsMean() if local_steps is None else LocalSteps(local_steps),
        LayerByLayer(cut),
        clients,
    )
