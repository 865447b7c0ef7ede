"""Lazy message passing: layers are trained one after the other, with one exchange of rows for each."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from ...stages.capabilities import Cannot, Need
from ...stages.feed.full_batch_feed import FullBatchWork
from ...stages.fetch.phase_fetch import PhaseFetch
from ...stages.memory.quantize import Payload
from ...stages.models.phased import V1, Phases
from ...stages.partition.base import Partitioner
from ...stages.partition.metis import MetisWork
from ...stages.placement.boundary import WithBoundary
from ...stages.reduce.federated import LocalSteps
from ...stages.reduce.seed_weighted import AllSeedsMean
from ...stages.schedule.policies import LayerByLayer
from ...storage.errors import InputError
from ..config.capabilities import OF_SYSTEM, Form
from ..config.schema import Section
from ..config.systems import FULL_BATCHES, Clients, Inputs, Registered, System


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
    """Lazy message passing: trains layers one after the other, with one exchange of rows per layer (RETEXO; Kolluri
    et al., arXiv 2302.13053).

    Each layer trains for ``epochs`` epochs. Options that are None follow from `mode`.

    Args:
        mode: ``v3`` passes on hidden rows and trains each layer with a layer norm and a head; ``v1`` trains an MLP
            first and passes on logits, so that no raw feature leaves its owner. The best epoch of a layer has the
            highest validation accuracy under ``v3``, the lowest validation loss under ``v1``.
        partitioner: cuts the graph; by default METIS with nodes and edges balanced together.
        base: ``mlp`` trains an MLP on the features before the first layer.
        propagate: rows that a finished layer passes on.
        head: head that a layer is trained with.
        local_steps: steps that each client takes by itself before parameters are averaged; None: gradients are summed
            in every step.
        rounding: rounding of the rows that are passed on.
        inductive: train without validation and test nodes in the graph.
        distill: weight in a layer's loss, in [0, 1), of the cross entropy with the previous layer's predictions for
            every node, labelled or not.
        clients: who trains, with bytes counted for each: the ranks, a number of simulated clients, or each node.

    Raises:
        InputError: a layer that gives logits cannot pass on hidden rows, or distillation does not go with
            `local_steps`, or takes all of the loss.
    """
    preset = V1 if mode == "v1" else Phases()
    cut = Phases(base or preset.base, propagate or preset.propagate, head or preset.head, rounding, distill)
    if cut.head == "none" and cut.propagate == "hidden":
        raise InputError(
            'retexo.head is "none", so a layer gives logits and has no hidden rows; use retexo.propagate = "logits" '
            "with it"
        )
    if not 0 <= distill < 1:
        raise InputError(f"retexo.distill is {distill}; expected a share of the loss, at least 0 and below 1")
    if distill and local_steps is not None:
        message = (
            f"retexo.distill is {distill}, and retexo.local_steps is {local_steps}, but a share of the loss is one "
            "of all clients' nodes"
        )
        raise InputError(f"{message} together; leave one of them out")
    return System(
        "retexo",
        WithBoundary(partitioner or MetisWork(), inductive=inductive),
        FullBatchWork(),
        PhaseFetch(
            "val_loss" if mode == "v1" else "val_accuracy", clients=clients != "ranks" and local_steps is not None
        ),
        AllSeedsMean() if local_steps is None else LocalSteps(local_steps),
        LayerByLayer(cut),
        options={**asdict(cut), "mode": mode, "local_steps": local_steps, "inductive": inductive, "clients": clients},
    )


class RetexoOptions(Section):
    """Layer-by-layer training under ``system = "retexo"``. Options that are left out follow from `mode`."""

    mode: Literal["v3", "v1"] = "v3"
    """``v3``: each layer trains with a layer norm and a head, and passes on hidden rows. ``v1``: an MLP trains first,
    and layers pass on logits, so that no raw feature leaves its owner."""
    base: Literal["none", "mlp"] | None = None
    """Train an MLP on the features before the first layer, or not."""
    propagate: Literal["hidden", "logits"] | None = None
    """Rows that a finished layer passes on to the next."""
    head: Literal["normed", "linear", "none"] | None = None
    """Head that a layer trains with: layer norm and linear layer, linear layer, or none (the layer gives logits)."""
    local_steps: int | None = Field(default=None, ge=1)
    """Steps that each client takes by itself before all clients average their parameters (FedAvg). By default clients
    sum gradients in every step."""
    rounding: Literal["full", "fp16", "int8"] = "full"
    """Rounding of rows before they are passed on."""
    inductive: bool = False
    """Train without validation and test nodes in the graph, and validate without test nodes."""
    distill: float = Field(default=0.0, ge=0, lt=1)
    """From the second layer on: weight in the loss of the cross entropy with the previous layer's predictions for each
    node, labelled or not. 0: labels only."""
    clients: int | Literal["ranks", "nodes"] = "ranks"
    """Who trains, with bytes counted for each: the ranks, a number of simulated clients, or each node."""

    @field_validator("clients", mode="before")
    @classmethod
    def _clients(cls, clients: Any) -> Any:
        if clients not in ("ranks", "nodes") and (type(clients) is not int or clients < 1):
            raise PydanticCustomError("clients", "expected a whole number of at least 1, ranks, or nodes")
        return clients


class _Retexo(Registered):
    name = "retexo"
    about = "layer after layer, one exchange for each"
    options = RetexoOptions
    samples = False
    cannot = (
        Cannot(
            OF_SYSTEM,
            Need.EDGE_LABELS,
            "trains each node on the rank that has it, and an edge's two ends may be on two",
        ),
        Cannot(
            OF_SYSTEM, Need.TYPES, "trains each layer on aggregates of all in-edges, which do not tell relations apart"
        ),
        Cannot(OF_SYSTEM, Need.EDGE_FEATURES, "gives its layers rows of nodes only"),
        Cannot(OF_SYSTEM, Need.LEARNED, "does not train one set of rows in steps of all ranks together"),
        *FULL_BATCHES,
    )
    forms = tuple(
        Form(name, chosen, "leave graph out", (Cannot(OF_SYSTEM, Need.MAPPED, because),))
        for name, chosen, because in (
            ("one rank", lambda job: job.ranks == 1, "arranges the edges of one rank in memory"),
            (
                "inductive",
                lambda job: job.options.inductive,
                "copies the edges without the nodes to come in memory (retexo.inductive)",
            ),
            (
                "simulated clients",
                lambda job: job.options.clients != "ranks",
                "counts the rows of simulated clients in memory",
            ),
        )
    )
    exchanges = "beside"
    epochs_decide = True
    needs_parts = True
    options_decide = True
    for_slow_links = True
    planned = {"retexo": {}}  # noqa: RUF012
    unpredicted = {"clients": "ranks", "local_steps": None, "inductive": False, "distill": 0.0}  # noqa: RUF012
    plan_note = (
        "retexo trains one layer after the other, each for `epochs` epochs of one step: its seconds an epoch are a "
        "mean over layers."
    )

    def build(self, options: RetexoOptions, inputs: Inputs) -> System:
        return retexo(partitioner=inputs.partitioner, **options.model_dump())

    def absent_nodes(self, system: System) -> tuple[str, ...]:
        return ("test",) if system.options["inductive"] else ()


SYSTEM = _Retexo()
