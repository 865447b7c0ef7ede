"""Products of the layers of a minibatch of 1024 seeds by `kernels.products_cuda`, with bias and activation, beside
cuBLAS's product in float32 alone.

Of each the error is measured beside float64, relative to the norm. The floor has every byte once at a copy's rate.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpu_lab import Lab
from torch import Tensor

from millrace.stages.kernels import products_cuda


@dataclass(frozen=True)
class Shape:
    """[H, n, K] rows by weights [H, D, K]."""

    name: str
    n: int
    heads: int
    width: int
    columns: int
    activation: str = "none"


SHAPES = (
    Shape("layer 1 of SAGE", 92_415, 1, 200, 256, "relu"),
    Shape("layer 2 of SAGE", 10_950, 1, 512, 256, "relu"),
    Shape("layer 1 of GAT", 92_415, 4, 100, 64, "elu"),
    Shape("layer 2 of GAT", 10_950, 4, 256, 64, "elu"),
    Shape("logits of GAT", 322_166, 1, 100, 4),
)
"""Of the epoch's first minibatch."""
WORST, NOISE = 2, 3e-7
"""Largest error, in cuBLAS's; errors below the second are float32's own."""


def products(lab: Lab) -> None:
    """Part "products"."""
    for shape in SHAPES:
        with lab.attempt(f"products: {shape.name}"):
            _compare(lab, shape)
        lab.clear()


def _compare(lab: Lab, shape: Shape) -> None:
    n = max(1, shape.n * lab.batch // 1024)
    draw = lab.generator(3)

    def rows(width: int) -> Tensor:
        """[H, n, width], a row's heads side by side."""
        return torch.randn(n, shape.heads, width, device=lab.device, generator=draw).transpose(0, 1)

    x, grad, result = rows(shape.width), rows(shape.columns), rows(shape.columns)
    weight = torch.randn(shape.heads, shape.columns, shape.width, device=lab.device, generator=draw) / 8
    bias, of = weight[..., 0].flatten().contiguous(), shape.activation

    def before(y: Tensor, g: Tensor) -> Tensor:
        """Gradient before the activation whose result is y."""
        return g if of == "none" else torch.where(y > 0, g, 0 * g if of == "relu" else g * (y + 1))

    def forward(dtype: torch.dtype) -> Tensor:
        out = torch.bmm(x.to(dtype), weight.to(dtype).transpose(1, 2)).transpose(0, 1).flatten(1) + bias.to(dtype)
        return {"none": lambda y: y, "relu": torch.relu, "elu": torch.nn.functional.elu}[of](out)

    def to_rows(dtype: torch.dtype) -> Tensor:
        g = before(result.to(dtype), grad.to(dtype))
        return torch.bmm(g, weight.to(dtype)).transpose(0, 1).flatten(1)

    def to_weight(dtype: torch.dtype) -> Tensor:
        return torch.bmm(before(result.to(dtype), grad.to(dtype)).transpose(1, 2), x.to(dtype))

    turned = weight.transpose(1, 2)
    ways: dict[str, tuple[Callable[[], Tensor], Callable[[torch.dtype], Tensor], Callable[[], Tensor]]] = {
        "": (lambda: products_cuda.rows_by_weight(x, weight, bias, of), forward, lambda: torch.bmm(x, turned)),
        ", gradient of rows": (
            lambda: products_cuda.rows_by_weight(grad, turned, result=result, of=of),
            to_rows,
            lambda: torch.bmm(grad, weight),
        ),
        ", gradient of weights": (
            lambda: products_cuda.sums_over_rows(grad, x, result, of, True)[0],
            to_weight,
            lambda: torch.bmm(grad.transpose(1, 2), x),
        ),
    }
    moved = {"": x.numel() + grad.numel()}
    for name, (ours, exact, theirs) in ways.items():
        want = exact(torch.float64)
        errors = [float((found.double() - want).norm() / want.norm()) for found in (ours(), exact(torch.float32))]
        del want
        label = f"product of {shape.name}{name}"
        lab.details.setdefault("products", {})[label] = errors
        least = 4000 * moved.get(name, x.numel() + 2 * grad.numel()) / lab.copy_bytes_per_s
        lab.add(label, lab.ms(ours), "ms", floor=least, peer=lab.ms(theirs), against="cuBLAS")
        lab.say(f"    error {errors[0]:.1e}, of cuBLAS {errors[1]:.1e}")
        if not errors[0] <= max(WORST * errors[1], NOISE):
            raise AssertionError(f"the error of the {label} is {errors[0]:.1e}; that of cuBLAS is {errors[1]:.1e}")
