"""Every function of an aggregation backend on the same random inputs."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millrace.stages.kernels import aggregation_backend
from millrace.stages.kernels.aggregation.attention_args import AttentionEdges, AttentionRule
from millrace.stages.kernels.aggregation.lists import InLists, WeightedLists
from millrace.stages.neighbourhood.gradients import attend, attend_backward
from millrace.tests.oracles import aggregation as reference

HOST_KERNELS: dict[str, Any] = {"cpu": aggregation_backend("cpu"), "reference": reference}
"""Backends over tensors in host memory, and their oracle."""


def random_lists(n: int, S: int, e: int, seed: int, index: type = np.int32) -> InLists:
    rng = np.random.default_rng(seed)
    kept = np.bincount(rng.integers(0, max(n, 1), e if n else 0), minlength=n)
    return InLists.from_arrays(np.cumsum([0, *kept]), rng.integers(0, S, int(kept.sum())).astype(index), S)


def results(
    kernels: Any, lists: InLists, width: int, dtype: torch.dtype, dropout: float, seed: int = 0, device: str = "cpu"
) -> list[Tensor]:
    """Results of every function of a backend on the same random inputs; tensors on `device`."""
    g = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(device, dtype)

    n, S, heads = lists.num_dst, lists.num_src, 3
    x, grad, scale, own, coef = rand(S, width), rand(n, width), rand(n), rand(n), rand(lists.num_edges).float()
    found = []
    # Each pair of types is a compiled version more, and seconds: of wide ids one is enough.
    few = lists.indices.dtype == np.int64
    for c in (coef,) if few else (None, coef):
        for r in (scale,) if few else (None, scale):
            of, both = WeightedLists(lists, c, r), torch.cat([grad, grad + 1], 1)
            found += [kernels.spmm(of, x), kernels.spmm_backward(of, grad)]
            beside = replace(of, beside=True)
            found += [kernels.spmm(beside, x), kernels.spmm_backward(beside, both)]
    of = WeightedLists(lists, coef, scale)
    found += [kernels.spmm(of, x, own), kernels.spmm_backward(of, grad, own)]
    largest, arg = kernels.maximum(lists, x)
    found += [largest, arg, kernels.maximum_from(WeightedLists(lists), arg, grad)]
    z, a, logit, upstream = rand(S, heads, width), rand(heads, width), rand(n, heads), rand(n, heads, width)
    edges = AttentionEdges(lists, AttentionRule(0.2, dropout, 12345 + seed))
    out, log_sum = attend(kernels, edges, z, a, logit)
    found += [out, log_sum, *attend_backward(kernels, edges, (z, a, logit, out, log_sum), upstream)]
    b = rand(heads, width)
    made = kernels.attend_shared(edges, x, a, b)
    found += [*made, *kernels.attend_shared_backward(edges, x, a, b, made, upstream, True)]
    dx, *constant = kernels.attend_shared_backward(edges, x, a, b, made, upstream, False)
    assert dx is None
    return found + constant
