"""Fetches for layer-by-layer training (RETEXO): rows of other ranks come once for each phase, and stay fixed while it
is trained.

At the end of a phase every rank computes the outputs of its own rows, in evaluation mode, and one all-to-all brings
each rank the rows of others that its edges read. Both are stored with the phase and a digest of the parameters that
made them: a resumed run continues from there, and other rows are refused.

On a GPU, rows are computed, rounded and exchanged there. Those that a phase reads are uploaded when it begins, with its
lists and labels.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...storage.array_kinds import IdArray, IntArray
from ...storage.errors import RunError
from ..evaluate.layerwise import evaluating
from ..evaluate.measures import Measures
from ..memory.quantize import Payload, decode, encode, rounded, row_bytes
from ..messages import Fetched, RankJob, Validation
from ..models.phased import FrozenInputs, PhaseModule
from ..neighbourhood.full_batch import FullBatch
from ..placement.boundary import ABSENT, BoundaryShare
from ..placement.clients import open_clients
from ..policies import Fetcher, FetchPolicy, RecordPart
from .phase_store import PhaseStore, kind

ROWS_AT_ONCE = 1 << 16
"""Rows that are computed together at the end of a phase."""
SAID = "said"
"""Array of the logits that the next phase learns from, [N, C], beside the rows that it reads."""
TEMPERATURE = 0.5
"""Divisor of those logits (sharpening: Berthelot et al., MixMatch, arXiv 1905.02249, section 3.2): a phase whose
best epoch is an early one is right more often than it is sure."""


@dataclass(frozen=True)
class PhaseFetch(FetchPolicy):
    """Exchanges rows of other ranks once before each phase that reads neighbours."""

    select_by: Literal["val_accuracy", "val_loss"] = "val_accuracy"
    """Criterion of a phase's best epoch: the task's main metric, such as the highest accuracy, or the lowest loss."""
    clients: bool = False
    """Divide the work by clients, for policies that train each client by itself."""

    def fetcher(self, placement: BoundaryShare, job: RankJob, module: nn.Module) -> "PhaseRows":
        """See `FetchPolicy.fetcher`.

        Raises:
            StoreError: rows of the previous phase are missing, damaged, or made by other parameters.
        """
        assert isinstance(module, PhaseModule)
        client = None if not self.clients else open_clients(job.folder or Path(), placement.graph.names)
        return PhaseRows(self, placement, job, module, client)


class PhaseRows(Fetcher):
    """Rows that one phase reads on one rank."""

    def __init__(
        self, policy: PhaseFetch, share: BoundaryShare, job: RankJob, module: PhaseModule, client: IntArray | None
    ) -> None:
        """`module` is trained by the phase. `client`: [N], the client of each row, if clients are simulated."""
        self._policy, self._share, self._job, self._client = policy, share, job, client
        self._device = job.device or torch.device("cpu")
        self._edges = share.boundary
        self._waited_s = 0.0
        self._rounding: Payload = module.model.phases.rounding
        self._store = PhaseStore(job, self._edges.names)
        self._rows = self._opened(module)
        self._taught = self._count_taught() if module.is_taught else (0, 0)

    def fetch(self, work: FullBatch) -> Fetched:
        clients = tuple(replace(c, epoch=work.epoch) for c in self._work.clients)
        return replace(self._work, epoch=work.epoch, clients=clients)

    @property
    def exchange_s(self) -> float:
        return self._waited_s

    def validated(self, module: nn.Module, whole: Callable[[], Validation]) -> Validation:
        """See `Fetcher.validated`. Uses the rows that the phase reads, so only counts are exchanged."""
        assert isinstance(module, PhaseModule)
        inputs, y = self._validation
        with evaluating(module):
            logits = module.logits(inputs)
        measures = self._job.measures or Measures("multiclass" if y.ndim == 1 else "multilabel")
        by_loss = self._policy.select_by == "val_loss"
        asked = replace(measures, names=(*measures.names, "loss")) if by_loss else measures
        with self._job.group.counting("evaluation"):
            scored = asked.over_ranks(logits, y, self._job.group)
        kept = {name: scored.values[name] for name in measures.all_names}
        return measures.validation(replace(scored, values=kept), -scored.values["loss"] if by_loss else None)

    def finish(self, module: nn.Module, record: RecordPart) -> None:
        record(lambda: self._handed_to_next(module))

    def _handed_to_next(self, module: nn.Module) -> dict[str, Any]:
        """Exchange and store the rows that the next phase reads."""
        assert isinstance(module, PhaseModule)
        model, group = module.model, self._job.group
        message: dict[str, Any] = {
            "phase": module.number,
            "parameters": sum(p.numel() for p in module.parameters()),
            "graphs": len(self._edges.graphs),
            "remote_rows": 0,
            "width": model.phase_widths[module.number],
            "row_bytes": 0,
            "taught_rows": self._taught[1],
        }
        if module.passes_messages:
            remote = torch.tensor([float(sum(self._edges.counts))], dtype=torch.float64)
            group.all_reduce(remote, "control")
            message["remote_rows"] = int(remote)
            message["row_bytes"] = row_bytes(message["width"], self._rounding, self._job.dtype)
        if module.last:
            return message
        after = model.phase(module.number + 1)
        if self._store.stand(after, replaceable=True):
            return message
        with evaluating(module):
            unrounded = {name: self._handed_on(module, name) for name in self._edges.graphs}
            own = {name: rounded(rows, self._rounding) for name, rows in unrounded.items()}
            rows = unrounded[self._graph("train")]
            arrays = {SAID: module.logits_of_rows(rows).cpu().numpy()} if after.is_taught else {}
        for name, rows in own.items():
            arrays[name] = rows.cpu().numpy()
            arrays[f"{name}-remote"] = self._exchanged(rows, after).numpy()
        self._store.write(after, arrays)
        return message

    def _graph(self, name: str) -> str:
        """The graph to train or validate on."""
        return name if name in self._edges.graphs else "whole"

    @cached_property
    def _seeds(self) -> IdArray:
        """Rows whose labels are learnt."""
        return np.arange(self._share.graph.num_seeds)

    @cached_property
    def _work(self) -> Fetched:
        seeds = self._seeds
        if self._module.is_taught:
            return self._fetched_taught(seeds)
        whole = self._fetched(seeds, 0)
        if self._client is None:
            return whole
        of = self._client[seeds]
        clients = tuple(self._fetched(seeds[of == c], int(c)) for c in np.unique(of))
        return replace(whole, clients=clients)

    def _fetched(self, rows: IdArray, index: int) -> Fetched:
        still = self._frozen_inputs("train", rows)
        neighbourhoods: Any = (still,)
        labels = self._share.labels[torch.from_numpy(rows)].to(self._device)
        return Fetched(0, index, neighbourhoods, still.h, labels)

    def _fetched_taught(self, seeds: IdArray) -> Fetched:
        """All rows, with what is to be said of each, and what each counts: (1 - s) / T of a label and s / N of what the
        phase before has said, times N, for T labels and N rows over all ranks and distillation's share s."""
        rows, (labels, taught), share = self._taught_rows, self._taught, self._module.model.phases.distill
        said = torch.from_numpy(self._store.read(self._module).read(SAID))[torch.from_numpy(rows)]
        y = self._share.labels[torch.from_numpy(seeds)]
        said = said / TEMPERATURE
        target = share * (said.softmax(1) if y.ndim == 1 else said.sigmoid())
        # Cross entropy is linear in the target, so one forward pass serves both.
        of_label = (1 - share) * taught / max(1, labels)
        at = torch.from_numpy(np.searchsorted(rows, seeds))
        target[at] += of_label * (F.one_hot(y, said.shape[1]) if y.ndim == 1 else y).to(target.dtype)
        weight = torch.full((len(rows),), share, dtype=torch.float64)
        weight[at] += of_label
        still = self._frozen_inputs("train", rows)
        neighbourhoods: Any = (still,)
        target, weight = (target / weight.to(target.dtype)[:, None]).to(self._device), weight.to(self._device)
        return Fetched(0, 0, neighbourhoods, still.h, target, weight)

    @cached_property
    def _taught_rows(self) -> IdArray:
        """Rows that are present in training, ascending."""
        present = np.ones(self._share.graph.whole.num_dst, bool)
        if self._graph("train") == "train":
            for split in ABSENT["train"]:
                present[self._share.splits[split].numpy()] = False
        return np.flatnonzero(present)

    def _count_taught(self) -> tuple[int, int]:
        """Number of labels and rows that are learnt from, over all ranks. All of them call this at the same time."""
        counts = torch.tensor([len(self._seeds), len(self._taught_rows)], dtype=torch.float64)
        self._job.group.all_reduce(counts, "control")
        return int(counts[0]), int(counts[1])

    @cached_property
    def _validation(self) -> tuple[FrozenInputs, Tensor]:
        rows = self._share.splits["val"]
        return self._frozen_inputs("val", rows.numpy()), self._share.labels[rows].to(self._device)

    def _frozen_inputs(self, graph: str, rows: IdArray) -> FrozenInputs:
        module, graph = self._module, self._graph(graph)
        neighbourhood, src = self._edges.graphs[graph].around(rows, module.passes_messages, self._device)
        return module.frozen_inputs(neighbourhood, self._rows[graph][torch.from_numpy(src).to(self._device)])

    def _handed_on(self, module: PhaseModule, graph: str) -> Tensor:
        n, step = self._share.graph.whole.num_dst, ROWS_AT_ONCE
        pieces = (np.arange(first, min(first + step, n)) for first in range(0, max(1, n), step))
        return torch.cat([module.hand_on(self._frozen_inputs(graph, rows)) for rows in pieces])

    def _exchanged(self, own: Tensor, phase: PhaseModule) -> Tensor:
        """Rows of other ranks, for `phase`: [N, D] -> [B, D] on the host."""
        self._agree(phase.number)
        start = time.perf_counter()
        message = self._edges.ask(encode(own, self._rounding), kind(phase), self._job.group).cpu()
        self._waited_s += time.perf_counter() - start
        return decode(message, self._rounding, own.dtype)

    def _agree(self, phase: int) -> None:
        """Refuse to exchange with a rank that is at another phase."""
        group, generation = self._job.group, self._job.generation
        mine = torch.tensor([phase, generation])
        for rank, theirs in enumerate(group.all_to_all([mine] * group.size, "control", None)):
            if theirs.tolist() != mine.tolist():
                raise RunError(
                    f"rank {rank} hands on rows for phase {int(theirs[0])} (start {int(theirs[1])} of the run), but "
                    f"rank {group.rank} "
                    f"expects those for phase {phase} (start {generation}); end all of them and go on with --resume"
                )

    def _opened(self, module: PhaseModule) -> dict[str, Tensor]:
        """Rows that the phase reads of each graph, [N + B, D] on the device."""
        self._module = module
        graphs = self._edges.graphs
        if module.number == 0:
            x = self._share.x.to(self._device)
            if not module.passes_messages:
                # Raw features stay with their owner.
                return dict.fromkeys(graphs, x)
            x = rounded(x, self._rounding)
            if not self._store.stand(module):
                self._store.write(module, {"remote": self._exchanged(x, module).numpy()})
            remote = torch.from_numpy(self._store.read(module).read("remote")).to(self._device)
            return dict.fromkeys(graphs, torch.cat([x, remote]) if len(remote) else x)
        store, found = self._store.read(module), {}
        for name in graphs:
            own, remote = (torch.from_numpy(store.read(array)) for array in (name, f"{name}-remote"))
            found[name] = torch.cat([own, remote]).to(self._device)
        return found
