"""Backward pass of softmax attention in Triton: recomputes coefficients and dropout.

Rows of the result's gradient are read once by source: for the gradient of z, and for that of each edge's logit, one
number an edge and head, which is stored. These are summed along the lists by source and, in a second launch that reads
nothing else, by destination. So rows are gathered once, and the numbers of the edges are less than one matrix of z
while an average list is shorter than a head is wide. See `cuda.attention` for the forward pass.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...runtime.triton_rng import launch
from ..attention_args import AttentionEdges, BackwardRows, DeviceEdges
from ..lists import DeviceLists
from .edge_dropout import edge_name, own_name, survives
from .softmax import dots, leaky, weighted_sum
from .sums import HELD, add_lists, edges_of, head_tile, row_of, sum_lists, unrolled


@triton.jit
def one_edge(g, a, x, log, delta, name, here, h, key,
    SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """For each head of edges with logits x before the ReLU, [BR, BH]: coefficient after dropout, and gradient of x."""
    p = tl.where(here, tl.exp(leaky(x, SLOPE) - log), 0.0)
    inner, w = tl.sum(g * a, 2), p
    if THRESHOLD > 0:
        kept = survives(key, name[:, None], h[None, :], THRESHOLD)
        inner, w = tl.where(kept, inner * KEEP, 0.0), tl.where(kept, p * KEEP, 0.0)
    d = p * (inner - delta)
    return w, tl.where(x > 0, d, d * SLOPE)


@triton.jit(do_not_specialize=["n", "E", "key", "own_rows"])
def _backward_src(
    begin, end, rows, dst, position, first, own_names, edge, key, z, a_src, logit_src, logit_dst, log_sum, grad,
    delta, dz, d_src, d_edge, d_own,
    n, E, own_rows,
    H: tl.constexpr, D: tl.constexpr, Z_ROW: tl.constexpr, Z_HEAD: tl.constexpr,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr, OWN: tl.constexpr,
    SKIP: tl.constexpr, SHARED: tl.constexpr, UNROLL: tl.constexpr,
    BR: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """List i belongs to source ``rows[i]``, or i; its gradients are stored at position i, those of the logits of its
    edges at their positions in the lists by destination."""
    # pyrefly: ignore[bad-assignment]
    groups: tl.constexpr = 1 if SHARED else (H + BH - 1) // BH
    k = tl.arange(0, BD)
    columns = k < D
    i = tl.program_id(0) // groups * BR + tl.arange(0, BR)
    inside = i < n
    start, stop = edges_of(begin, end, i, inside, LIMIT)
    u = row_of(rows, i, inside)
    summed = tl.zeros([BR, BD], z.dtype.element_ty)
    if SHARED:
        a = tl.load(z + u[:, None] * Z_ROW + k[None, :], inside[:, None] & columns[None, :], 0)[:, None, :]
    for more in tl.static_range(0, H if SHARED else BH, BH):
        h = tl.program_id(0) % groups * BH + more + tl.arange(0, BH)
        heads = h < H
        each, cells = inside[:, None] & heads[None, :], (heads[:, None] & columns[None, :])[None]
        wanted = inside[:, None, None] & cells
        place = (h[:, None] * D + k[None, :])[None]
        total = tl.zeros([BR, BH, BD], z.dtype.element_ty)
        if not SHARED:
            a = tl.load(z + u[:, None, None] * Z_ROW + (h[:, None] * Z_HEAD + k[None, :])[None], wanted, 0)
        there = tl.load(logit_src + u[:, None] * H + h[None, :], each, 0)
        d = tl.zeros([BR, BH], z.dtype.element_ty)
        for j in range(0, tl.max(stop - start, 0).to(tl.int32), UNROLL):
            # All reads first: none may pass the store of an edge's gradient.
            edges = ()
            for t in tl.static_range(UNROLL):
                q = start + j + t
                here = q < stop
                v, p = tl.load(dst + q, here, 0).to(tl.int64), tl.load(position + q, here, 0).to(tl.int64)
                both, at = here[:, None] & heads[None, :], v[:, None] * H + h[None, :]
                g = tl.load(grad + (v * (H * D))[:, None, None] + place, here[:, None, None] & cells, 0)
                x, log = there + tl.load(logit_dst + at, both, 0), tl.load(log_sum + at, both, 0)
                name = edge_name(first, edge, p, v, here) if THRESHOLD > 0 else p
                counts = both
                if SKIP:
                    counts = both & (u != v)[:, None]
                edges += ((p, name, both, counts, g, x, log, tl.load(delta + at, both, 0)),)
            for t in tl.static_range(UNROLL):
                p, name, both, counts, g, x, log, out = edges[t]
                # pyrefly: ignore[unbound-name]
                w, of_edge = one_edge(g, a, x, log, out, name, counts, h, key, SLOPE, THRESHOLD, KEEP)
                tl.store(d_edge + p[:, None] * H + h[None, :], of_edge, both)
                d += of_edge
                if SHARED:
                    summed += tl.sum(w[:, :, None] * g, 1)
                else:
                    total += w[:, :, None] * g
        if OWN:
            here = inside & (u < own_rows)
            both = here[:, None] & heads[None, :]
            at = u[:, None] * H + h[None, :]
            g = tl.load(grad + (u * (H * D))[:, None, None] + place, here[:, None, None] & cells, 0)
            x, log = there + tl.load(logit_dst + at, both, 0), tl.load(log_sum + at, both, 0)
            name = own_name(own_names, E, u, here) if THRESHOLD > 0 else u
            out = tl.load(delta + at, both, 0)
            # pyrefly: ignore[unbound-name]
            w, of_edge = one_edge(g, a, x, log, out, name, both, h, key, SLOPE, THRESHOLD, KEEP)
            tl.store(d_own + at, of_edge, both)
            d += of_edge
            if SHARED:
                summed += tl.sum(w[:, :, None] * g, 1)
            else:
                total += w[:, :, None] * g
        tl.store(d_src + i.to(tl.int64)[:, None] * H + h[None, :], d, each)
        along = d[:, :, None] * tl.load(a_src + place, cells, 0)
        if SHARED:
            summed += tl.sum(along, 1)
        else:
            tl.store(dz + (i.to(tl.int64) * (H * D))[:, None, None] + place, total + along, wanted)
    if SHARED:
        tl.store(dz + i.to(tl.int64)[:, None] * D + k[None, :], summed, inside[:, None] & columns[None, :])


@triton.jit(do_not_specialize=["n"])
def _edges_to_dst(
    begin, end, rows, d_edge, d_own, d_dst, n,
    H: tl.constexpr, LIMIT: tl.constexpr, TO_ROWS: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Sums of lists of edges, whose numbers lie side by side; added to what is there if `TO_ROWS`."""
    i, e, h = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BE), tl.arange(0, BH)
    inside = i < n
    each = inside[:, None] & (h < H)[None, :]
    start, stop = edges_of(begin, end, i, inside, LIMIT)
    total = tl.zeros([BR, BE, BH], d_edge.dtype.element_ty)
    for j in range(0, tl.max(stop - start, 0).to(tl.int32), BE):
        q = start[:, None] + j + e[None, :]
        here = (q < stop[:, None])[:, :, None] & (h < H)[None, None, :]
        total += tl.load(d_edge + q.to(tl.int64)[:, :, None] * H + h[None, None, :], here, 0)
    found = tl.sum(total, 1)
    v = row_of(rows, i, inside)
    place = (v if TO_ROWS else i.to(tl.int64))[:, None] * H + h[None, :]
    if TO_ROWS:
        found += tl.load(d_dst + place, each, 0)
    if d_own is not None:
        found += tl.load(d_own + place, each, 0)
    tl.store(d_dst + place, found, each)


def _sum_edges(there: DeviceLists, at: Tensor | None, d_edge: Tensor, d_own: Tensor | None, d_dst: Tensor) -> None:
    """Add the gradients of the logits of each list's edges to `d_dst`."""
    heads = d_dst.shape[1]
    shape = {"BH": 1 << (max(heads, 1) - 1).bit_length()}
    shape["BE"] = max(32 // shape["BH"], 4)
    shape["BR"] = max(128 // (shape["BE"] * shape["BH"]), 1)

    def walk(begin: Tensor, end: Tensor, rows: Tensor | None, result: Tensor, whole: bool) -> None:
        launch(_edges_to_dst, -(-len(begin) // shape["BR"]))(
            begin, end, rows, d_edge, d_own if whole else None, result, len(begin), H=heads, LIMIT=there.limit,
            TO_ROWS=whole, num_warps=1, **shape,
        )  # fmt: skip

    sum_lists(there, at, d_dst, walk)


def gradients_by_src(
    edges: DeviceEdges, z: Tensor, a_src: Tensor, logit_src: Tensor, of: BackwardRows, shared: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of z, [S, H, D], or if `shared` [S, D], summed over the heads that share it, and of the source logits,
    [S, H].

    Args:
        edges: lists by destination.
        z: [S, H, D].
        a_src: [H, D].
        logit_src: [S, H].
        of: the destinations; the gradient of their logits is added there.
        shared: true if the heads of z are the same memory.
    """
    (there, rule, names, at, own), (heads, width) = edges, z.shape[1:]
    logit_dst, log_sum, grad, delta, d_dst = of
    back, position = there.transposed
    back = back.over_rows(at)
    shape = head_tile(heads, width)
    shape["UNROLL"] = unrolled(shape, HELD // 2)
    d_edge = z.new_empty(there.num_edges, heads)
    d_own = z.new_empty(there.num_dst, heads) if own else None

    def walk(begin: Tensor, end: Tensor, rows: Tensor | None, whole: bool) -> tuple[Tensor, Tensor]:
        n = len(begin)
        dz, d_src = z.new_empty(n, *z.shape[2 if shared else 1 :]), z.new_empty(n, heads)
        if n and heads:
            groups = 1 if shared else -(-heads // shape["BH"])
            launch(_backward_src, -(-n // shape["BR"]) * groups)(
                begin, end, rows, back.indices, position, *names, rule.key, z, a_src, logit_src, logit_dst, log_sum,
                grad, delta, dz, d_src, d_edge, d_own if whole else None, n, there.num_edges, there.num_dst, H=heads,
                D=width, Z_ROW=z.stride(0), Z_HEAD=z.stride(1), LIMIT=there.limit, SLOPE=rule.slope,
                THRESHOLD=rule.threshold, KEEP=rule.keep_scale, OWN=own and whole, SKIP=own, SHARED=shared, **shape,
            )  # fmt: skip
        return dz, d_src

    dz, d_src = walk(back.begin, back.end, None, True)
    if (rest := back.rest) is not None:
        for result, partial in zip((dz, d_src), walk(rest.begin, rest.end, rest.of, False)):
            add_lists(rest.pieces, rest.long, partial.flatten(1), result.view(len(result), -1), add=True)
    _sum_edges(there, at, d_edge, d_own, d_dst)
    return dz, d_src


def attend_from(edges: AttentionEdges, z: Tensor, a_src: Tensor, of: BackwardRows) -> tuple[Tensor, Tensor]:
    there, logit_src = edges.to_device(z.device), dots(z, a_src[None])
    dz, d_src = gradients_by_src(there, z, a_src, logit_src, of, False)
    return dz, weighted_sum(d_src, z)
