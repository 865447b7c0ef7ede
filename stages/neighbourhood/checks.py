"""Checks of the arguments that layers pass to their neighbourhoods."""

import torch
from torch import Tensor

from ...storage.errors import InputError
from ..kernels.aggregation.attention_args import AttentionRule
from ..memory.lazy_rows import LazyRows


def full_precision(x: Tensor) -> Tensor:
    """Cast to float32 if it is bfloat16: under autocast products are in bfloat16, but aggregations in float32."""
    return x.float() if x.dtype == torch.bfloat16 and torch.is_autocast_enabled(x.device.type) else x


def check_dtype(x: Tensor, name: str) -> None:
    """Raise InputError unless x is float32 or float64, on the CPU or a CUDA device."""
    if x.dtype not in (torch.float32, torch.float64) or x.device.type not in ("cpu", "cuda"):
        raise InputError(f"{name} is {x.dtype} on {x.device}; expected float32 or float64 on the cpu or a cuda device")


def as_matrix(h: Tensor, rows: int, name: str) -> Tensor:
    """`h` as contiguous [rows, D]; lazy rows stay lazy.

    Raises:
        InputError: another number of rows, or see `check_dtype`.
    """
    h = full_precision(h)
    check_dtype(h, name)
    if h.ndim < 1 or len(h) != rows:
        raise InputError(f"{name} has shape {list(h.shape)}; expected {rows} rows, one for each source")
    return h if isinstance(h, LazyRows) else h.reshape(rows, h.shape[1:].numel()).contiguous()


def absent_rows() -> Tensor:
    """Features of edges that have none. Raises InputError."""
    raise no_edge_features()


def no_edge_features() -> InputError:
    """The error for a model that reads features of edges that have none."""
    return InputError(
        "the model reads features of edges, but there are none here; give edge_features= (mr.from_edges), edge_attr "
        "(PyG, .npz) or columns of edges, and reads_edges = True in a module of your own"
    )


def check_edge(edge: Tensor | None, num_edges: int) -> None:
    """Raise InputError unless the argument is None or has a row for each edge."""
    if edge is not None and (edge.ndim < 1 or len(edge) != num_edges):
        raise InputError(f"edge has shape {list(edge.shape)}; expected {num_edges} rows, one for each edge")


def check_own(own: Tensor | None, num_dst: int) -> None:
    """Raise InputError unless the argument is None or has a row for each destination."""
    if own is not None and (own.ndim < 1 or len(own) != num_dst):
        raise InputError(f"own has shape {list(own.shape)}; expected {num_dst} rows, one for each destination")


def check_scale(values: Tensor | None, rows: int, name: str) -> None:
    """Raise InputError unless the argument is None or [rows]."""
    if values is not None and values.shape != (rows,):
        raise InputError(f"{name} has shape {list(values.shape)}; expected [{rows}]")


def alike(**given: Tensor) -> list[Tensor]:
    """The tensors in `full_precision` and contiguous. Raises InputError for different dtypes or devices."""
    given = {name: full_precision(x) for name, x in given.items()}
    first = next(iter(given))
    for name, x in given.items():
        check_dtype(x, name)
        if x.dtype != given[first].dtype:
            raise InputError(f"{name} is {x.dtype} and {first} is {given[first].dtype}; expected one dtype")
        if x.device != given[first].device:
            raise InputError(f"{name} is on {x.device} and {first} on {given[first].device}; expected one device")
    return [x.contiguous() for x in given.values()]


def check_attention(z: Tensor, a_src: Tensor, logit_dst: Tensor, num_src: int, num_dst: int) -> None:
    """Refuse arguments of `attend` that do not fit together."""
    if not (
        z.ndim == 3 and len(z) == num_src and a_src.shape == z.shape[1:] and logit_dst.shape == (num_dst, z.shape[1])
    ):
        raise InputError(
            f"attend got z {list(z.shape)}, a_src {list(a_src.shape)}, logit_dst {list(logit_dst.shape)}; "
            f"expected [{num_src}, H, D], [H, D], [{num_dst}, H]"
        )


def check_both(z: Tensor, a_src: Tensor, a_dst: Tensor, num_src: int) -> None:
    """Refuse arguments of `attend_both` that do not fit together."""
    if not (z.ndim == 3 and len(z) == num_src and a_src.shape == a_dst.shape == z.shape[1:]):
        raise InputError(
            f"attend_both got z {list(z.shape)}, a_src {list(a_src.shape)}, a_dst {list(a_dst.shape)}; "
            f"expected [{num_src}, H, D], [H, D], [H, D]"
        )


def check_shared(h: Tensor, a_src: Tensor, a_dst: Tensor, num_src: int) -> None:
    """Refuse arguments of `attend_shared` that do not fit together."""
    if (
        h.ndim != 2
        or len(h) != num_src
        or a_src.ndim != 2
        or a_src.shape != a_dst.shape
        or a_src.shape[1] != h.shape[1]
    ):
        raise InputError(
            f"attend_shared got h {list(h.shape)}, a_src {list(a_src.shape)}, a_dst {list(a_dst.shape)}; "
            f"expected [{num_src}, F], [H, F], [H, F]"
        )


def check_reduce(reduce: str) -> None:
    """Refuse an unknown reduction."""
    if reduce not in ("sum", "mean", "max", "plain"):
        raise InputError(f"apply cannot reduce by '{reduce}'; expected 'sum', 'mean', 'max' or 'plain'")


def attention_rule(slope: float, dropout: float) -> AttentionRule:
    """Constants of one attention call; dropout takes one key from torch's CPU generator."""
    if not 0 <= dropout < 1:
        raise InputError(f"attention dropout is {dropout}; expected at least 0 and below 1")
    return AttentionRule(slope, dropout, int(torch.randint(2**62, ()).item()) if dropout else 0)
