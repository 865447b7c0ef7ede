"""Softmax attention in a device's memory: the forward pass stores nothing per edge; the backward pass recomputes
coefficients and dropout, and stores the gradients of logits until they are summed.

Same names, arguments and results as `cpu.attention` and `cpu.attention_shared`, and the same coefficients are dropped.
See `cuda.backend` for the location of tensors and the division of work.

Source: the online softmax with log-sum-exp of Dao et al. (FlashAttention, NeurIPS 2022) on neighbour lists. It is in
two launches. The first reads only the logits, H numbers an edge, and writes the logarithm of each softmax's
denominator. The second is then a plain weighted sum of rows, which dominates the traffic: its pieces of long lists add
up like any other sums. A warp has a row of the result, with all its heads: it reads the list and each row of z once,
and waits for no longer list than its own.

For the backward pass see `cuda.attention_backward`. Heads that share their rows (`cuda.attention_shared`) use the same
kernels, with a stride of 0 from head to head.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...runtime.triton_rng import launch
from ..attention_args import AttentionEdges, DeviceEdges
from .edge_dropout import edge_name, own_name, survives
from .softmax import dots, leaky, log_denominators
from .sums import COLUMNS, HELD, edges_of, head_tile, row_of, sum_lists, unrolled


@triton.jit(do_not_specialize=["n", "E", "key"])
def _attend_rows(
    begin, end, rows, indices, first, own_names, edge, key, z, ids, logit_src, logit_dst, log_sum, before, out, n, E,
    H: tl.constexpr, D: tl.constexpr, Z_ROW: tl.constexpr, Z_HEAD: tl.constexpr,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr, TO_ROWS: tl.constexpr,
    OWN: tl.constexpr, SKIP: tl.constexpr,
    UNROLL: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """List i belongs to row ``rows[i]``, or i; source u has the row ``z[ids[u]]``, or ``z[u]``. Heads of the same rows
    run side by side."""
    groups: tl.constexpr = (H + BH - 1) // BH
    h = tl.program_id(0) % groups * BH + tl.arange(0, BH)
    k = tl.program_id(1) * BD + tl.arange(0, BD)
    heads, columns = h < H, k < D
    cells = (heads[:, None] & columns[None, :])[None]
    # Without a stride from head to head a row is read once for all of them.
    place, seen = k[None, None, :], columns[None, None, :]
    if Z_HEAD > 0:
        place, seen = (h[:, None] * Z_HEAD + k[None, :])[None], cells
    i = tl.program_id(0) // groups * BR + tl.arange(0, BR)
    inside = i < n
    each = inside[:, None] & heads[None, :]
    start, stop = edges_of(begin, end, i, inside, LIMIT)
    v = row_of(rows, i, inside)
    number = v[:, None] * H + h[None, :]
    mine, log = tl.load(logit_dst + number, each, 0), tl.load(log_sum + number, each, 0)
    total = tl.zeros([BR, BH, BD], z.dtype.element_ty)
    result = out + ((v if TO_ROWS else i.to(tl.int64)) * (H * D))[:, None, None] + (h[:, None] * D + k[None, :])[None]
    if before is not None:
        old = tl.load(before + number, each, 0)
        scale = tl.where(old == float("-inf"), 0.0, tl.exp(old - log))
        total += tl.load(result, inside[:, None, None] & cells, 0) * scale[:, :, None]
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
        for t in tl.static_range(UNROLL):
            q = start + j + t
            here = q < stop
            u = tl.load(indices + q, here, 0).to(tl.int64)
            at = row_of(ids, u, here)
            a = tl.load(z + at[:, None, None] * Z_ROW + place, here[:, None, None] & seen, 0)
            both = here[:, None] & heads[None, :]
            if SKIP:
                # The row's own edge takes the place of the loops that it has.
                both = both & (u != v)[:, None]
            x = tl.load(logit_src + u[:, None] * H + h[None, :], both, 0) + mine
            w = tl.where(both, tl.exp(leaky(x, SLOPE) - log), 0.0)
            if THRESHOLD > 0:
                name = edge_name(first, edge, q, v, here)
                w = tl.where(survives(key, name[:, None], h[None, :], THRESHOLD), w * KEEP, 0.0)
            total += w[:, :, None] * a
    if OWN:
        at = row_of(ids, v, inside)
        a = tl.load(z + at[:, None, None] * Z_ROW + place, inside[:, None, None] & seen, 0)
        w = tl.exp(leaky(tl.load(logit_src + number, each, 0) + mine, SLOPE) - log)
        if THRESHOLD > 0:
            name = own_name(own_names, E, v, inside)
            w = tl.where(survives(key, name[:, None], h[None, :], THRESHOLD), w * KEEP, 0.0)
        total += w[:, :, None] * a
    tl.store(result, total, inside[:, None, None] & cells)


def sum_attended(
    edges: DeviceEdges,
    z: Tensor,
    logits: tuple[Tensor, Tensor],
    before: Tensor | None,
    results: tuple[Tensor, Tensor],
    ids: Tensor | None = None,
) -> None:
    """Store, or with `before` add, each destination's sum of rows of z, times their coefficients.

    Args:
        edges: lists by destination.
        z: [S, H, D]; heads that share their rows have a stride of 0.
        logits: [S, H] of the sources, [N, H] of the destinations.
        before: [N, H], logarithms of the denominators of what `results` have so far.
        results: [N, H, D], where the sums go; [N, H], logarithms of the denominators.
        ids: [S], the row of z of each source; its own when absent.
    """
    (lists, rule, names, at, own), (out, log_sum), (heads, width) = edges, results, z.shape[1:]
    shape = head_tile(heads, width, COLUMNS)
    shape["UNROLL"] = unrolled(shape, 2 * HELD)

    def walk(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        n = len(begin)
        launch(_attend_rows, -(-n // shape["BR"]) * -(-heads // shape["BH"]), -(-width // shape["BD"]))(
            begin, end, rows, lists.indices, *names, rule.key, z, ids, *logits, log_sum, before if whole else None,
            result, n, lists.num_edges, H=heads, D=width, Z_ROW=z.stride(0), Z_HEAD=z.stride(1), LIMIT=lists.limit,
            SLOPE=rule.slope, THRESHOLD=rule.threshold, KEEP=rule.keep_scale, TO_ROWS=whole, OWN=own and whole,
            SKIP=own, **shape,
        )  # fmt: skip

    sum_lists(lists, at, out, walk)


def attend_into(
    edges: AttentionEdges, z: Tensor, a_src: Tensor, logit_dst: Tensor, out: Tensor, log_sum: Tensor, new: bool = False
) -> None:
    there, logits = edges.to_device(z.device), (dots(z, a_src[None]), logit_dst)
    before = None if new else log_sum.clone()
    log_denominators(there, logits, log_sum, not new)
    sum_attended(there, z, logits, before, (out, log_sum))
