"""Bytes and memory of a table of learnt features: owners' rows, those that travel, and all at a checkpoint."""

from dataclasses import dataclass

from ...stages.comm.gloo import ring_bytes
from ...stages.comm.nccl import even_ring_bytes
from ...stages.learned.optimizers import OPTIMIZERS
from ...stages.partition.cut_counts import ID_BYTES
from ...stages.reduce.seed_weighted import EXTRA_NUMBERS
from ..machine.gpus import backend
from ..setup.model import TORCH_DTYPES
from .candidate import Candidate
from .trial import TrialResult


def row_bytes_of(s: Candidate) -> int:
    """Bytes of a learnt row; 0: there are none."""
    return s.job.learned.width * TORCH_DTYPES[s.job.dtype].itemsize


def state_rows(s: Candidate) -> int:
    """Numbers that the optimiser keeps for one of the table."""
    return len(OPTIMIZERS[s.job.learned.optimizer].moments)


def least_table(s: Candidate) -> int:
    """Bytes by which a rank decides whether its rows go to its GPU; 0 without learnt features."""
    return round((2 + state_rows(s)) * row_bytes_of(s) * s.at.numbers.nodes / s.ranks)


def _table(s: Candidate, nodes: float) -> float:
    """Bytes of all rows, with the state of their optimiser and the copy of the best epoch."""
    return (1 + state_rows(s) + s.validates) * row_bytes_of(s) * nodes


def _is_on_device(s: Candidate) -> bool:
    """True if rows are in the memory of GPUs, for a candidate that was `forecast.placed`."""
    return s.at.gpus > 0 and s.job.gpu.features == "device"


def table_on_device(s: Candidate, nodes: float, ranks: int) -> float:
    """Memory of a rank's rows on its GPU, if they are there. See `table_memory`."""
    return _table(s, nodes) / ranks if _is_on_device(s) else 0.0


def table_memory(s: Candidate, nodes: float, ranks: int, gathers: bool) -> dict[str, int]:
    """Host memory of a rank's rows, and of all rows where the first rank makes a checkpoint and does not hold them all
    there anyway, by use. None without learnt features.

    Args:
        s: the run.
        nodes: V.
        ranks: P.
        gathers: True for the first rank.
    """
    if not row_bytes_of(s):
        return {}
    whole, there = round(_table(s, nodes)), _is_on_device(s)
    own = {} if there else {"learned": round(whole / ranks)}
    return own | ({"checkpoint": whole} if gathers and (ranks > 1 or there) else {})


@dataclass(frozen=True)
class Travelled:
    """Bytes of learnt rows that ranks sent each other in a trial."""

    rows: float = 0.0
    gradients: float = 0.0
    ids: float = 0.0
    """Bytes of the ids of rows that were asked for, and of gradients."""


def travelled(s: Candidate, seen: TrialResult) -> Travelled:
    """Bytes of learnt rows in a trial: its gradients beyond the sums of the model's, and its rows. Where the dataset's
    rows travel too, those of a minibatch are in proportion to the gradients, one for each distinct row of a step."""
    if not (row := row_bytes_of(s)) or seen.ranks == 1:
        return Travelled()
    parameters = [p for p in s.model.parameters() if p.requires_grad]
    numel, itemsize = sum(p.numel() for p in parameters) + EXTRA_NUMBERS, parameters[0].element_size()
    ring = even_ring_bytes if backend(s.job) == "nccl" else ring_bytes
    of_model = seen.steps * sum(ring(numel, itemsize, r, seen.ranks) for r in range(seen.ranks))
    gradients = max(0.0, float(seen.bytes["network"]["gradients"] - of_model))
    share = distinct_share(seen, s.in_turn(seen.ranks))
    rows = gradients / share if s.exchanges else float(seen.bytes["network"]["features"])
    return Travelled(rows, gradients, (rows + gradients) / row * ID_BYTES)


def distinct_share(seen: TrialResult, minibatches: int) -> float:
    """Distinct nodes of so many minibatches of a rank, relative to the sum of their nodes."""
    nodes = seen.nodes[:minibatches]
    return nodes[-1] / (len(nodes) * nodes[0]) if nodes else 1.0
