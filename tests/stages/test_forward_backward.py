"""The start of a forward pass, done before the parameters are there: the rest gives the same bits as all of it in one
go."""

from typing import Any, Literal

import numpy as np
import pytest
import torch

from millrace.stages.forward_backward import begin, forward_backward
from millrace.stages.memory.lazy_rows import LazyRows
from millrace.stages.messages import Fetched
from millrace.stages.models.base import ModelConfig
from millrace.stages.models.gat import GAT
from millrace.stages.models.gcn import GCN
from millrace.stages.models.gin import GIN
from millrace.stages.models.sage import SAGE
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.storage.minibatch import Block


def fetched(layers: int) -> Fetched:
    """Rows that are only named; blocks with rows of no edges, self loops and multi-edges."""
    rng = np.random.default_rng(3)
    neighbourhoods, sizes = [], [9, 6, 3][3 - layers - 1 :] if layers < 3 else [12, 9, 6, 3]
    for num_src, num_dst in zip(sizes, sizes[1:]):
        kept = rng.integers(0, 4, num_dst)
        kept[0] = 0
        indptr = np.concatenate([[0], np.cumsum(kept)])
        block = Block(num_dst, np.arange(num_src), indptr, rng.integers(0, num_src, indptr[-1]).astype(np.int32))
        neighbourhoods.append(BlockNeighbourhood(block, torch.from_numpy(rng.integers(1, 9, num_src)).float()))
    rows = LazyRows(rng.standard_normal((40, 5)).astype(np.float32), rng.integers(0, 40, sizes[0]))
    return Fetched(2, 7, tuple(neighbourhoods), rows, torch.tensor([0, 2, 1]))


# Each pair of values at least once.
@pytest.mark.parametrize(
    ("kind", "norm", "dropout", "products", "layers"),
    [
        (kind, norm, 0.5 * d, ("float32", "bfloat16")[(i + j + d) % 2], (1, 3)[(i // 2 + j + d) % 2])
        for i, kind in enumerate((SAGE, GCN, GIN, GAT))
        for j, norm in enumerate(("none", "layer", "batch"))
        for d in (0, 1)
    ],
)
def test_what_was_begun_goes_on_with_the_same_bits(
    kind: type[ModelConfig], layers: int, norm: str, dropout: float, products: Literal["float32", "bfloat16"]
) -> None:
    def grads(early: bool) -> tuple[float, list[torch.Tensor]]:
        torch.manual_seed(0)
        extra: dict[str, Any] = {"attention_dropout": dropout} if kind is GAT else {}
        model = kind(hidden=8, layers=layers, dropout=dropout, norm=norm, **extra).build(5, 3).train()
        work = fetched(layers)
        if early:
            work = begin(model, work, 11, products)
            assert work.begun is not None
            # What comes between the two may draw, and change the parameters.
            torch.rand(5)
        done = forward_backward(model, work, 11, "multiclass", 1.0, products)
        return float(done.loss_sum), [p.grad for p in model.parameters() if p.grad is not None]

    (loss, want), (again, got) = grads(False), grads(True)
    assert loss == again and len(want) == len(got) > 0
    for a, b in zip(want, got):
        assert torch.equal(a, b)


def test_parameters_may_change_after_it() -> None:
    model = SAGE(hidden=8, layers=3, dropout=0.5).build(5, 3).train()
    work = begin(model, fetched(3), 1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.25)
    told = forward_backward(model, work, 1, "multiclass", 1.0).loss_sum
    assert told == forward_backward(model, fetched(3), 1, "multiclass", 1.0).loss_sum


def test_a_model_that_knows_no_beginning_begins_nothing() -> None:
    work = fetched(1)
    assert begin(torch.nn.Linear(2, 2), work, 0) is work
