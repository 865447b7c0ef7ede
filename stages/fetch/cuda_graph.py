"""Training steps recorded once as CUDA graphs and replayed for every minibatch, without the host.

On a GPU the host spends more time on launching a step than the device on computing it. A recording needs the same
memory and the same sizes each time, which `kernels.minibatch_cuda.frames` provides. A replay computes what
`train.forward_backward` does, with the same numbers except for how products of more rows are split into sums.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..forward_backward import loss_of, summed_loss
from ..kernels.aggregation.lists import CHUNK
from ..kernels.minibatch_cuda.bulk import ResidentBulk
from ..kernels.minibatch_cuda.frames import Frame, Layout, NoListsBySourceError
from ..messages import StepRules, WorkDone
from ..models.base import Stack, keeps_edges
from ..nn.dropout import draw_key, keys_from
from ..policies import ReducePolicy
from ..random import Purpose, stream, torch_seed
from ..sample.resident import ResidentMiniBatch
from .fetch import MinibatchFetcher

FIRST = 2
"""Steps that run unrecorded first: a short run needs no recording."""
MOST = 4
"""Maximum number of recordings, each with room for larger minibatches than the one before."""


def can_record(module: nn.Module) -> bool:
    """True if a step of this model depends on nothing but the frame, and rows beyond a minibatch's end do not affect
    it."""
    if type(module) is not Stack or any(isinstance(m, _BatchNorm) for m in module.modules()):
        return False
    # These, and other convolutions, may look at every edge, and a frame has padding edges.
    if keeps_edges(module):
        return False
    if not all(type(conv).__module__.startswith(Stack.__module__.rpartition(".")[0]) for conv in module.convs):
        return False
    return not any(getattr(m, "attention_dropout", 0.0) for m in module.modules())


class StepGraph:
    """Forward and backward of one minibatch, recorded. One thread uses it."""

    def __init__(
        self,
        module: nn.Module,
        gather: MinibatchFetcher,
        reduce: ReducePolicy,
        rules: StepRules,
        parameters: list[nn.Parameter],
        alone: bool,
    ) -> None:
        """See `Fetcher.recorded`: parameters stay where they are. `alone`: a step has one minibatch, and the next may
        overwrite its gradients."""
        self._module, self._gather, self._reduce, self._rules = module, gather, reduce, rules
        self._parameters, self._alone = parameters, alone
        self._seen = self._recorded = 0
        self._hops: set[int] = set()
        """Hops whose lists by source the gradients need."""
        self._layout: Layout | None = None
        self._rows: tuple[ResidentBulk, Tensor] | None = None
        self._seeds: int | None = None
        """Seeds of every replayed minibatch: as many as the first has."""
        self._stale = False
        """True if the frame is new and nothing is recorded on it."""
        self._draws = module.num_layers if isinstance(module, Stack) and module.dropout else 0
        """Dropout keys that a step draws."""
        self._keys = torch.zeros(max(self._draws, 1), dtype=torch.int64, device=parameters[0].device)
        self._weight: Tensor | None = None
        """float64 [B], weights of the seeds in the frame; None: they have none."""

    def contribute(self, work: object) -> WorkDone | None:
        """`ReducePolicy.contribute` of one minibatch. None if it cannot be replayed and must be trained on without a
        recording."""
        if not isinstance(work, ResidentMiniBatch) or not self._suits(work):
            return None
        if self._seen < FIRST:
            self._seen += 1
            return None
        weight = self._gather.weights.seed_weights(work)
        if weight is not None and self._weight is None:
            self._weight = torch.zeros_like(weight, device=self._keys.device)
        work.bulk.await_here()
        while (rows := self._laid_out(work.bulk)) is not None:
            self._frame.words.copy_(rows[work.q])
            self._fill_keys(work)
            if not self._stale or self._record():
                break
        else:
            return None
        count = None
        if weight is not None and self._weight is not None:
            # Only now that nothing can stop the replay: ranks may wait for each other here, once a minibatch.
            weight, count = self._reduce.weigh(weight, self._rules.group)
            _send(weight, self._weight)
        self._play()
        for p, grad in zip(self._parameters, self._grads):
            if grad is None:
                continue
            if p.grad is None:
                p.grad = grad if self._alone else grad.clone()
            else:
                p.grad.add_(grad)
        loss = self._loss if self._loss.is_cuda else float(self._loss)
        return WorkDone(loss, int(work.bulk.node_ends[0][work.q]), count)

    def _suits(self, work: ResidentMiniBatch) -> bool:
        bulk = work.bulk
        seeds = int(bulk.node_ends[0][work.q])
        if self._seeds is None:
            self._seeds = seeds
        return (
            bulk.longest <= CHUNK
            and bulk.nodes.dtype == torch.int32
            and seeds == int(bulk.node_ends[0].max()) == self._seeds
        )

    def _laid_out(self, bulk: ResidentBulk) -> Tensor | None:
        """Rows of the bulk's minibatches; None if they do not fit and no further recording may be made."""
        if self._rows is not None and self._rows[0] is bulk:
            return self._rows[1]
        if self._layout is None or not self._layout.holds(bulk):
            if self._recorded >= MOST:
                return None
            self._lay_out(bulk)
        assert self._layout is not None
        self._rows = bulk, self._layout.rows(bulk)
        return self._rows[1]

    def _lay_out(self, bulk: ResidentBulk) -> None:
        # Free the memory of the last recording first.
        self._graph, self._grads, self._rows = None, [], None
        self._layout = Layout.with_room_for(bulk, tuple(sorted(self._hops)), self._layout)
        self._frame = Frame(self._layout, bulk.device)
        self._stale = True

    def _fill_keys(self, work: ResidentMiniBatch) -> None:
        """Draw the keys that `forward_backward` would draw for this minibatch."""
        if self._draws:
            torch.default_generator.manual_seed(
                torch_seed(stream(self._rules.seed, Purpose.DROPOUT, work.epoch, work.index))
            )
            keys = np.array([draw_key() for _ in range(self._draws)], np.uint64).view(np.int64)
            _send(torch.from_numpy(keys), self._keys)

    def _compute(self) -> tuple[Tensor, list[Tensor | None]]:
        taken = iter(self._keys.split(1))
        on_gpu = self._keys.is_cuda
        with keys_from(lambda: next(taken) if on_gpu else int(next(taken)) & 0xFFFF_FFFF_FFFF_FFFF):
            fetched = self._gather.framed(self._frame)
            task = self._rules.task
            loss, logits = loss_of(self._module, fetched, task, self._rules.matmul_precision, self._weight)
            grads = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            if self._weight is not None:
                loss = summed_loss(logits.detach(), fetched.y, task)
            # Optimisers expect gradients with the layout of their parameters; accumulating into `.grad` would ensure
            # it.
            return loss.detach(), [None if g is None else g.contiguous() for g in grads]

    def _record(self) -> bool:
        """Record the step over the frame. False if the layout was too small; it has been replaced."""
        try:
            self._compute()
        except NoListsBySourceError as e:
            self._hops.add(e.hop)
            self._layout = self._rows = None
            return False
        self._recorded, self._stale = self._recorded + 1, False
        if not self._frame.words.is_cuda:
            return True
        aside = torch.cuda.Stream(self._frame.words.device)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # Kernels for these shapes are chosen and compiled first: a recording may not wait.
            for _ in range(2):
                self._compute()
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads launch and allocate at the same time.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._loss, self._grads = self._compute()
        return True

    def _play(self) -> None:
        if self._frame.words.is_cuda:
            assert self._graph is not None
            self._graph.replay()
        else:
            # Without a frame there is nothing to record on.
            self._loss, self._grads = self._compute()


def _send(numbers: Tensor, there: Tensor) -> None:
    """Copy numbers of the host into a tensor, without waiting for its device."""
    # New memory each time: the last numbers may still be under way, and page-locked memory is not reused before they
    # have arrived.
    there.copy_(numbers.pin_memory() if there.is_cuda else numbers, non_blocking=True)
