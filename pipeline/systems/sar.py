"""Full-batch training with sequential aggregation and rematerialisation."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from torch import nn

from ...stages.capabilities import Cannot, Need
from ...stages.feed.full_batch_feed import FullBatchWork
from ...stages.fetch.visit import PREFETCH_BYTES, Mode, VisitFetch
from ...stages.links.train_pairs import Negatives
from ...stages.models.base import layered, reads_blocks
from ...stages.partition.base import Partitioner
from ...stages.partition.metis import MetisWork
from ...stages.placement.sharded import Sharded
from ...stages.reduce.seed_weighted import AllSeedsMean
from ...stages.schedule.policies import Epochs
from ...storage.errors import InputError
from ..config.capabilities import OF_SYSTEM, Form
from ..config.job import Job
from ..config.schema import Section
from ..config.systems import FULL_BATCHES, Inputs, Registered, System


def sar(
    mode: Mode | Literal["auto"] | Sequence[Mode] = "auto",
    *,
    partitioner: Partitioner | None = None,
    memory_bytes: int | None = None,
    prefetch_bytes: int = PREFETCH_BYTES,
    prune: bool = True,
) -> System:
    """Full-batch training with sequential aggregation and rematerialisation (SAR; Mostafa, MLSys 2022).

    Every rank holds one part of the nodes, and reads the rows of the other ranks one rank after the other.

    Args:
        mode: the way layers read other ranks' rows, one for all layers or one for each; ``auto`` takes the fastest ways
            that fit in `memory_bytes`.
        partitioner: cuts the graph; by default METIS with nodes and edges balanced together.
        memory_bytes: memory for each rank's tensors; None: half of the machine's free memory, shared by its ranks,
            or of the rank's GPU.
        prefetch_bytes: rows that may be under way before they are needed.
        prune: leave out of each layer the rows that do not affect the seeds.
    """
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    return System(
        "sar",
        Sharded(partitioner or MetisWork(), prune),
        FullBatchWork(),
        VisitFetch(modes, memory_bytes, prefetch_bytes),
        AllSeedsMean(),
        Epochs(),
        options={
            "mode": mode if isinstance(mode, str) else list(mode),
            "memory_bytes": memory_bytes,
            "prefetch_bytes": prefetch_bytes,
            "prune": prune,
        },
    )


class SarOptions(Section):
    """Reading of other ranks' rows under ``system = "sar"``."""

    mode: Literal["auto", "rematerialize", "keep", "halo"] | list[Literal["rematerialize", "keep", "halo"]] = "auto"
    """How a layer reads other ranks' rows. ``rematerialize``: one rank after the other, and again in the backward pass;
    ``keep``: one after the other, kept for the backward pass; ``halo``: all in one exchange. One mode for all layers,
    or a list with one for each; ``auto`` takes the fastest modes that fit in `memory_bytes`."""
    memory_bytes: int | None = Field(default=None, ge=1)
    """Memory for a rank's tensors; by default half of the machine's free memory, divided by its ranks, or of the rank's
    GPU."""
    prefetch_bytes: int = Field(default=64 << 20, ge=0)
    """Bytes of other ranks' rows that may be under way before they are needed."""
    prune: bool = True
    """Leave out of each layer the rows that do not affect the seeds."""

    @field_validator("mode", mode="before")
    @classmethod
    def _known(cls, mode: Any) -> Any:
        """Give one error sentence; pydantic's would name each of the two forms."""
        each = ("rematerialize", "keep", "halo")
        if mode != "auto" and not all(
            isinstance(m, str) and m in each for m in (mode if isinstance(mode, list) else [mode])
        ):
            raise PydanticCustomError(
                "mode", "expected rematerialize, keep, halo or auto, or a list of the first three, one for each layer"
            )
        return mode


class _Sar(Registered):
    name = "sar"
    about = "full batch, each rank visiting the others in turn"
    options = SarOptions
    samples = False
    cannot = FULL_BATCHES
    forms = (
        Form(
            "one rank",
            lambda job: job.ranks == 1,
            "leave graph out",
            (Cannot(OF_SYSTEM, Need.MAPPED, "arranges the edges of one rank in memory"),),
        ),
    )
    exchanges = "within"
    needs_parts = True
    planned = {"sar": {}}  # noqa: RUF012
    plan_note = "An epoch of sar is one step over all train nodes, and runs take hundreds."
    free_options = tuple(SarOptions.model_fields)

    def with_links(self, system: System, negatives: Negatives | None, hidden: bool = True) -> System:
        """See `Registered.with_links`: labelled edges are in the share of each rank."""
        assert negatives is None
        if hidden:
            raise InputError(
                "read.labelled_edges is hidden, but under system 'sar' a step is over all edges at once, each of which "
                'would see itself; use "seen", or bulk'
            )
        return system

    def build(self, options: SarOptions, inputs: Inputs) -> System:
        return sar(partitioner=inputs.partitioner, **dict(options))

    def check(self, job: Job, system: System, model: nn.Module) -> None:
        """See `Registered.check`. The modes must match the layers, and suit the model."""
        assert isinstance(system.fetch, VisitFetch)
        modes = system.fetch.for_layers(layered(model).num_layers)
        if job.ranks > 1 and reads_blocks(model) and (one := set(modes) - {"auto", "halo"}):
            raise InputError(
                f'sar.mode is "{min(one)}", but the model reads the rows of all ranks in one block; use '
                '"halo", or "auto"'
            )


SYSTEM = _Sar()
