"""Rows that are named but not gathered: any operation sees an ordinary tensor, and pays for the gather once."""

import copy

import numpy as np
import pytest
import torch

from millrace.stages.memory.lazy_rows import LazyRows, LazyTypedRows, base_and_ids, head
from millrace.storage.features import ArrayFeatures
from millrace.storage.typed.features import TypedFeatures

BASE = np.random.default_rng(0).standard_normal((50, 6))
IDS = np.array([3, 49, 0, 3, 17], np.int32)
WANT = torch.from_numpy(BASE[IDS])


def named() -> LazyRows:
    return LazyRows(BASE, IDS)


def is_gathered(x: LazyRows) -> bool:
    return base_and_ids(x)[1] is None


def test_its_shape_is_known_without_a_gather() -> None:
    x = named()
    assert isinstance(x, torch.Tensor)
    assert (x.shape, x.dtype, x.ndim, len(x), x.device.type, x.requires_grad) == (
        (5, 6),
        torch.float64,
        2,
        5,
        "cpu",
        False,
    )
    assert x.is_contiguous() and "LazyRows" in repr(x)
    assert not is_gathered(x)
    base, ids = base_and_ids(x)
    assert base is BASE and ids is IDS


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x @ torch.ones(6, 2, dtype=torch.float64),
        lambda x: torch.nn.functional.linear(x, torch.ones(3, 6, dtype=torch.float64)),
        lambda x: x[torch.tensor([4, 0])],
        lambda x: x[1:3],
        lambda x: torch.cat([x, x]),
        lambda x: x.to(torch.float32),
        lambda x: 2 * x + 1,
        lambda x: x.t(),
        lambda x: torch.narrow(x, 0, 0, 2),
        lambda x: torch.relu(x),
        lambda x: x.clone(),
        lambda x: torch.from_numpy(x.numpy()),
        lambda x: x.reshape(5, 2, 3),
    ],
)
def test_operations_see_the_rows(operation) -> None:
    x = named()
    got, want = operation(x), operation(WANT)
    assert type(got) is torch.Tensor
    assert torch.equal(got, want)
    assert is_gathered(x)


def test_what_is_no_operation_sees_the_rows_too() -> None:
    assert named().tolist() == WANT.tolist()
    assert torch.equal(copy.deepcopy(named()), WANT)
    assert np.array_equal(np.asarray(named()), BASE[IDS])
    x = named()
    assert x.data_ptr() == x.gathered().data_ptr() != 0
    x.mul_(2)
    assert torch.equal(x + 0, 2 * WANT) and np.array_equal(BASE[IDS], WANT.numpy())
    leaf = named().requires_grad_()
    (leaf @ torch.ones(6, 2, dtype=torch.float64)).sum().backward()
    assert torch.equal(leaf.grad, torch.full((5, 6), 2.0, dtype=torch.float64))


def test_gradients_reach_the_weights() -> None:
    weight = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    (named() @ weight).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, WANT.t() @ torch.ones(5, 2, dtype=torch.float64))


def test_modules_work_on_it_as_on_any_tensor() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    ).double()
    assert torch.equal(model(named()), model(WANT))


def test_the_gather_happens_once() -> None:
    base = BASE.copy()
    x = LazyRows(base, IDS)
    first = x.gathered()
    base[:] = 0
    assert torch.equal(x + 0, WANT) and x.gathered() is first
    assert torch.equal(head(x, 2), WANT[:2])


def test_the_head_gathers_no_others() -> None:
    x = named()
    assert torch.equal(head(x, 2), WANT[:2]) and torch.equal(head(WANT, 2), WANT[:2])
    assert not is_gathered(x)


def test_no_rows() -> None:
    x = LazyRows(BASE, IDS[:0])
    assert (x @ torch.ones(6, 2, dtype=torch.float64)).shape == (0, 2)


def test_rows_of_several_types_are_those_that_the_store_gathers() -> None:
    parts = (BASE, BASE[:20, :2].copy(), np.empty((4, 0)))
    offsets = (0, 50, 70, 74)
    ids = np.array([3, 73, 69, 49, 50, 3], np.int64)
    wanted = torch.from_numpy(TypedFeatures(tuple(map(ArrayFeatures, parts)), offsets).gather(ids))
    x = LazyTypedRows(parts, offsets, ids)
    assert (x.shape, x.dtype) == (wanted.shape, wanted.dtype)
    assert torch.equal(x.of_type(0, torch.tensor([0, 3])), wanted[[0, 3]])
    assert torch.equal(x.of_type(1, torch.tensor([2, 4])), wanted[[2, 4], :2])
    assert torch.equal(head(x, 3), wanted[:3])
    assert x._rows is None
    base, none = base_and_ids(x)
    assert none is None and np.array_equal(base, wanted.numpy())
    assert torch.equal(x * 2, wanted * 2) and torch.equal(head(x, 2), wanted[:2])
