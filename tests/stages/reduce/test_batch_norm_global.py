"""Batch normalisation over the rows of all ranks: what one rank that held every row would compute."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from millrace.stages.comm.base import Group
from millrace.stages.comm.solo import Solo
from millrace.stages.reduce import batch_norm
from millrace.stages.reduce.batch_norm import GlobalBatchNorm
from millrace.storage.errors import InputError
from millrace.tests.contracts.process_ranks import run_ranks

STEPS = 3
SIZES = (7, 0, 5, 1)
"""Rows of each rank: one has none, the last a single one, with which it could not normalise alone."""
KEPT = ("running_mean", "running_var", "num_batches_tracked")


class Net(nn.Module):
    """Every kind of batch normalisation that a model may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 2)
        self.raw = nn.BatchNorm1d(5)
        self.plain = nn.BatchNorm1d(4)
        self.cumulative = nn.BatchNorm1d(4, momentum=None, affine=False)
        self.twice = nn.BatchNorm1d(4, momentum=0.25)
        self.stateless = nn.BatchNorm1d(4, track_running_stats=False)
        self.frozen = nn.BatchNorm1d(4)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn_like(p))

    def train(self, mode: bool = True) -> "Net":
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        h = self.stateless(self.cumulative(torch.relu(self.plain(self.first(self.raw(x))))))
        return self.last(self.frozen(self.twice(torch.tanh(self.twice(h)))))


def rows_of(step: int, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [
        torch.randn(n, 5, dtype=torch.float64, generator=generator) * (1 + step) + r for r, n in enumerate(SIZES[:size])
    ]


def train(rows: list[Tensor], group: Group, frozen_input: bool = False, device: str = "cpu") -> list[dict[str, Tensor]]:
    """Outputs, gradients and buffers of each step, for this rank's rows."""
    torch.manual_seed(0)
    net = Net().double().train().to(device)
    norms, seen = GlobalBatchNorm(net, group), []
    for step, own in enumerate(rows):
        net.zero_grad()
        x = own.clone().to(device).requires_grad_(not frozen_input)
        with norms.minibatch(group.rank, group.size):
            y = net(x)
            (y.sin() * (step + 1)).sum().backward()
        norms.finish(group.size)
        grads = {f"grad.{name}": p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
        x_grad = {} if x.grad is None else {"x": x.grad}
        seen.append({"y": y.detach(), **x_grad, **grads, **{name: b.clone() for name, b in net.named_buffers()}})
    assert not any("forward" in vars(m) for m in net.modules())
    return seen


@pytest.mark.usefixtures("on_device")
def test_on_a_device_as_on_the_host() -> None:
    rows = [torch.cat(rows_of(step, 4)) for step in range(STEPS)]
    for got, want in zip(train(rows, Mute(), device="cuda"), train(rows, Mute()), strict=True):
        for name, value in want.items():
            assert got[name].is_cuda, name
            torch.testing.assert_close(got[name].cpu(), value, rtol=1e-12, atol=1e-12)


def train_rank(group: Group, frozen_input: bool) -> tuple[list[dict[str, Tensor]], int, int]:
    ledger: Any = group._ledger
    seen = train([rows_of(step, group.size)[group.rank] for step in range(STEPS)], group, frozen_input)
    return seen, ledger.get("network", "activations"), sum(sum(kinds.values()) for kinds in ledger.as_record().values())


@pytest.mark.parametrize(("size", "frozen_input"), [(2, False), (3, False), (4, True)])
def test_ranks_compute_what_one_would(size: int, frozen_input: bool) -> None:
    dense = train([torch.cat(rows_of(step, size)) for step in range(STEPS)], Solo(), frozen_input)
    ranks = run_ranks(train_rank, size, frozen_input)
    for step, expected in enumerate(dense):
        of_ranks = [seen[step] for seen, _, _ in ranks]
        for name, value in expected.items():
            parts = [of_rank[name] for of_rank in of_ranks]
            if name.rpartition(".")[2] in KEPT:
                assert all(torch.equal(part, parts[0]) for part in parts), name
                got = parts[0]
            else:
                got = torch.stack(parts).sum(0) if name.startswith("grad.") else torch.cat(parts)
            torch.testing.assert_close(got, value, rtol=1e-12, atol=1e-12, msg=lambda m, at=(name, step): f"{at}: {m}")
    # Sum and count, squares, and two sums of gradients, for each call; nothing else travels. In a ring, 2 (P-1) vectors
    # in all.
    calls = (5, 4, 4, 4, 4, 4)
    assert sum(sent for _, sent, _ in ranks) == STEPS * 2 * (size - 1) * 8 * sum(1 + 4 * c for c in calls)
    assert all(sent == everything for _, sent, everything in ranks)


def test_blocks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [torch.cat(rows_of(step, 4)) for step in range(STEPS)]
    expected = train(rows, Mute())
    monkeypatch.setattr(batch_norm, "BLOCK_ELEMENTS", 8)
    for got, want in zip(train(rows, Mute()), expected):
        for name, value in want.items():
            torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-12)


class Mute(Solo):
    """Two ranks, of which the other has no rows; counts what would travel."""

    size = 2

    def __init__(self) -> None:
        self.reduced: list[tuple[int, str]] = []

    def all_reduce(self, flat: Tensor, kind: str, overlap: object = None) -> None:
        assert flat.is_contiguous()
        assert flat.dtype == torch.float64
        self.reduced.append((flat.numel(), kind))


@pytest.mark.parametrize(
    ("shape", "make"), [((6, 3), nn.BatchNorm1d), ((4, 3, 2), nn.BatchNorm1d), ((2, 3, 2, 3), nn.BatchNorm2d)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_shape_and_dtype_is_as_torch_has_it(
    shape: tuple[int, ...], make: type[nn.Module], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    x = torch.randn(shape).to(dtype)
    outcomes = []
    for group in (Mute(), Solo()):
        norm = make(3).double() if dtype == torch.float64 else make(3)
        own = x.clone().requires_grad_()
        with GlobalBatchNorm(norm, group).minibatch(0, 1):
            y = norm(input=own)
            y.float().sin().sum().backward()
        outcomes.append((y, own.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var))
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-6, torch.bfloat16: 3e-2}[dtype]
    for got, want in zip(*outcomes):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_a_mean_far_from_zero_keeps_its_variance() -> None:
    torch.manual_seed(0)
    x = (1e4 + 0.01 * torch.randn(5000, 3, dtype=torch.float64)).float()
    norm = nn.BatchNorm1d(3, momentum=1.0, eps=0.0)
    with GlobalBatchNorm(norm, Mute()).minibatch(0, 1):
        y = norm(x)
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_var.double(), x.double().var(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(norm.running_var.double(), torch.full((3,), 1e-4, dtype=torch.float64), rtol=0.1, atol=0)
    torch.testing.assert_close(y.double().var(0), torch.ones(3, dtype=torch.float64), rtol=1e-3, atol=0)


def far_from_zero(group: Group) -> Tensor:
    norm = nn.BatchNorm1d(3, momentum=1.0)
    generator = torch.Generator().manual_seed(group.rank)
    x = 1e4 + 0.01 * torch.randn(2000, 3, dtype=torch.float64, generator=generator)
    with GlobalBatchNorm(norm, group).minibatch(group.rank, group.size):
        norm(x.float())
    assert norm.running_var is not None
    return torch.stack([norm.running_var.double(), x.float().double().mean(0), x.float().double().square().mean(0)])


def test_a_mean_far_from_zero_keeps_its_variance_over_ranks() -> None:
    ranks = run_ranks(far_from_zero, 2)
    mean, square = (sum(r[i] for r in ranks) / 2 for i in (1, 2))
    for r in ranks:
        torch.testing.assert_close(r[0], (square - mean**2) * 4000 / 3999, rtol=1e-3, atol=0)


def one_row_in_total(group: Group) -> tuple[list[int], int, str]:
    norm, alone = nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)
    x = torch.ones(1 if group.rank == 1 else 0, 3)
    with GlobalBatchNorm(norm, group).minibatch(0, 1):
        out = norm(x)
    torch.testing.assert_close(out, norm.eval()(x))
    with pytest.raises(InputError) as caught, GlobalBatchNorm(alone, group).minibatch(0, 1):
        alone(x)
    assert "forward" not in vars(norm)
    assert norm.num_batches_tracked is not None
    return list(out.shape), int(norm.num_batches_tracked), str(caught.value)


def test_one_row_in_total_is_normalised_by_running_statistics_or_refused_on_all_ranks() -> None:
    first, second = run_ranks(one_row_in_total, 2)
    assert first[1:] == second[1:] and (first[0], second[0]) == ([0, 3], [1, 3])
    assert "keeps no running statistics" in first[2]


def test_no_rows_at_all_change_nothing() -> None:
    norm = nn.BatchNorm1d(3)
    x = torch.empty(0, 3, requires_grad=True)
    with GlobalBatchNorm(norm, Mute()).minibatch(0, 1):
        norm(x).sum().backward()
    assert x.grad is not None
    for name, value in nn.BatchNorm1d(3).state_dict().items():
        assert name == "num_batches_tracked" or torch.equal(norm.state_dict()[name], value)
    assert norm.weight.grad is not None
    assert norm.weight.grad.tolist() == [0, 0, 0]


def test_other_channels_are_refused() -> None:
    norm, group = nn.BatchNorm1d(3, affine=False), Mute()
    with pytest.raises(InputError, match="got 1 channels; expected 3"), GlobalBatchNorm(norm, group).minibatch(0, 1):
        norm(torch.ones(4, 1))
    with pytest.raises(ValueError, match="expected 2D or 3D input"), GlobalBatchNorm(norm, group).minibatch(0, 1):
        norm(torch.ones(4))
    assert group.reduced == []


def test_only_training_modules_are_touched_and_all_are_put_back() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2).eval(), nn.LayerNorm(2))
    own = nn.BatchNorm1d(3)
    own.forward = lambda x: x + 1.0
    model.append(own)
    before = [vars(m).get("forward") for m in model]

    def fail(inside: list[Any]) -> None:
        with GlobalBatchNorm(model, Mute()).minibatch(0, 2):
            inside += [vars(m).get("forward") for m in model]
            raise KeyError("no")

    inside: list[Any] = []
    with pytest.raises(KeyError, match="no"):
        fail(inside)
    assert [a is not b for a, b in zip(inside, before)] == [True, False, False, False, True]
    assert [vars(m).get("forward") for m in model] == before


def test_one_rank_and_models_without_batch_normalisation_are_left_alone() -> None:
    for model, group in ((nn.BatchNorm1d(3), Solo()), (nn.Linear(3, 3), Mute()), (nn.BatchNorm1d(3).eval(), Mute())):
        norms = GlobalBatchNorm(model, group)
        with norms.minibatch(0, 1):
            assert "forward" not in vars(model)
            model(torch.randn(4, 3)).sum().backward()
        norms.finish(1)
        assert not isinstance(group, Mute) or group.reduced == []
