"""The paper's 1.5D products P = Q A on ranks that communicate over TCP: bytes sent, compared with formulas.

    python benchmarks/products_15d.py
    python benchmarks/products_15d.py --graph rmat --select edges --ranks 6,12 --json products.json

Tripathy, Yelick, Buluc, MLSys 2024 (arXiv 2311.02909), the graph-partitioned algorithm. The products themselves, beside
samplers that draw in rows where they were fetched, or leave A where it is.

p ranks stand in p/c process rows and c process columns. Block row i of A [V, V] and of the selector Q [n, V] lies on
each of the c ranks of process row i. Each process column takes its share of the *stages*, the block rows of A. A rank
multiplies its Q_i with the block rows of its column's stages; the c partial products of a process row are gathered and
added, so that all its ranks hold P_i.

``aware``      in stage s a rank asks for those rows of A_s in whose columns its Q_i has a nonzero, each once, as runs
               do with ``bulk.algorithm = "1.5d"``
``oblivious``  in stage s all of A_s goes to every rank of the process column

Products: ``nodewise`` has a row of Q for each of R selected nodes, one 1 in each, and P is their neighbour lists
(GraphSAGE). ``ladies`` has a row for each minibatch, with R ones in all, and A is W o W where W = (A + I) / row sum:
entries of a row of P are sums.

A *word* is one nonzero of A or of a partial P: its column id (4 bytes), and its value (8 bytes) where values travel,
which they do not where all are known to be 1. Ids and lengths of rows (4 bytes each) are no words. Formulas, for a
rank, with d the mean number of nonzeros of the R selected rows, repeats counted:

==================  ==================  ================================================================================
stages              ceil((p/c) / c)     of the busiest process column
answers             twice the same      messages that a rank gets in those stages, at most: lengths, and entries
needed, received    R d / p             mean; ``needed`` counts own rows too; a row that is selected twice is read once
sent                c R d / p           by the busiest owner; the mean owner's where nothing is selected twice
reduced             (c-1) R d / p       mean received in the reduction; less where rows of the partial products overlap
oblivious           nnz(A) / c          mean received; this rank's own block does not travel
==================  ==================  ================================================================================

Own rows do not travel: they are about c/p of all, by which received, sent and oblivious fall short of their formulas.
kB are the ledger's, payload by who sends it, over all ranks, reduction and control included. Every product is compared
with SciPy's. Seconds are only in the file of ``--json``: ranks share the cores of this machine.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from millrace.benchmarks.graphs import Recipe, make
from millrace.stages.comm.base import Group
from millrace.stages.comm.row_fetch import RowFetch, Rows
from millrace.stages.comm.row_fetch import Traffic as RowTraffic
from millrace.stages.placement.row_blocks import Grid
from millrace.storage.graph import index_dtype
from millrace.tests.contracts.process_ranks import run_ranks

VARIANTS = ("aware", "oblivious")


@dataclass(frozen=True, eq=False)
class Lines:
    """The two groups that a rank talks in."""

    column: Group
    """The p/c ranks of its process column; the rank in it is the process row."""
    row: Group
    """The c ranks of its process row; the rank in it is the process column."""

    @classmethod
    def meet(cls, group: Group, grid: Grid) -> "Lines":
        """Make both groups; all ranks of `group` call this, once for each c."""
        c = grid.replication
        return cls(grid.subgroup(group, f"column of {c}"), grid.across(group, f"row of {c}"))


@dataclass
class Traffic(RowTraffic):
    """Counts of one rank in one product, taken while it runs. Words: see the head of this file. In a broadcast others
    hand words on: the ledger alone counts what is sent there."""

    stages: int = 0
    needed_words: int = 0
    """Words of the rows multiplied with, this rank's own included."""
    reduced_words: int = 0
    """Received from the other ranks of the process row."""


def aware(
    grid: Grid, lines: Lines, A: sp.csr_array, Q: sp.csr_array, offsets: npt.NDArray[np.int64], *, values: bool
) -> tuple[sp.csr_array, Traffic]:
    """P_i = Q_i A, sparsity-aware: only rows of A that Q_i selects travel, to who selects them.

    Args:
        grid: this rank's place.
        lines: its groups.
        A: A_i [offsets[i+1] - offsets[i], V], this process row's block, int64 or float64; the dtype is the same on all
            ranks.
        Q: Q_i [n_i, V], int64 or float64, any n_i; entries of a row with the same column add up.
        offsets: int64 [p/c+1], where block rows of A begin; blocks may be empty.
        values: whether those of A travel; else they are ones, columns ascending, each once in a row. The same on all
            ranks.

    Returns: P_i [n_i, V], columns ascending, zeros not kept, the same bits on all ranks of a process row; and what this
        rank did.
    """
    traffic = Traffic()
    partial = _nothing(Q, A, values)
    picked, wanted = {}, {}
    for s in grid.stages(lines.row.rank):
        Q_s: sp.csr_array = Q[:, offsets[s] : offsets[s + 1]]
        wanted[s], place = np.unique(Q_s.indices, return_inverse=True)
        picked[s] = sp.csr_array((Q_s.data, place, Q_s.indptr), shape=(Q.shape[0], len(wanted[s])))
    owned = Rows(
        A.indptr.astype(np.int64),
        A.indptr[:-1].astype(np.int64),
        (A.indices.astype(index_dtype(A.shape[1])), *([A.data] if values else [])),
    )
    own = lines.column.rank
    others = {s: ids for s, ids in wanted.items() if s != own}
    fetch = RowFetch(lines.column, owned, others, index_dtype(A.shape[1]), traffic=traffic)
    found: list[tuple[int, sp.csr_array]] = [(own, A[wanted[own]])] if own in wanted else []
    for s, rows in chain(found, ((s, _fetched(rows, A)) for s, rows in fetch)):
        partial = partial + picked[s] @ rows
        traffic.needed_words += rows.nnz
    traffic.stages = len(wanted)
    return _reduce(lines.row, partial, values or not _selects(Q), traffic), traffic


def oblivious(
    grid: Grid, lines: Lines, A: sp.csr_array, Q: sp.csr_array, offsets: npt.NDArray[np.int64], *, values: bool
) -> tuple[sp.csr_array, Traffic]:
    """P_i = Q_i A, sparsity-oblivious: whole blocks of A travel. Arguments and result as of `aware`."""
    traffic = Traffic()
    partial = _nothing(Q, A, values)
    for s in grid.stages(lines.row.rank):
        own = lines.column.rank == s
        lengths = _lengths(A) if own else _room(int(offsets[s + 1] - offsets[s]), A)[0]
        lines.column.broadcast(lengths, s, "control")
        columns, data = (_columns(A), _data(A)) if own else _room(int(lengths.sum()), A)
        lines.column.broadcast(columns, s, "graph")
        if values:
            lines.column.broadcast(data, s, "graph")
        partial = partial + Q[:, offsets[s] : offsets[s + 1]] @ _matrix(lengths, columns, data, A.shape[1])
        traffic.needed_words += len(columns)
        if not own:
            traffic.received_words += len(columns)
            traffic.answers += sum(1 for t in (lengths, columns, *([data] if values else [])) if len(t))
        traffic.stages += 1
    return _reduce(lines.row, partial, values or not _selects(Q), traffic), traffic


def _reduce(row: Group, partial: sp.csr_array, values: bool, traffic: Traffic) -> sp.csr_array:
    """The sum over the process row, added in the order of process columns on each rank."""
    lengths = _gather(row, _lengths(partial), [partial.shape[0]] * row.size, "control")
    counts = [int(n.sum()) for n in lengths]
    columns = _gather(row, _columns(partial), counts, "graph")
    data = (
        _gather(row, _data(partial), counts, "graph")
        if values
        else [torch.ones(n, dtype=_data(partial).dtype) for n in counts]
    )
    total = sp.csr_array(partial.shape, dtype=partial.dtype)
    for parts in zip(lengths, columns, data):
        total = total + _matrix(*parts, partial.shape[1])
    total.sort_indices()
    traffic.reduced_words += sum(counts) - partial.nnz
    return total


def _gather(row: Group, own: Tensor, counts: Sequence[int], kind: str) -> list[Tensor]:
    """Every rank's `own`, in the order of ranks; all ranks know how long they are."""
    if row.size == 1:
        return [own]
    awaited = [0 if r == row.rank else n for r, n in enumerate(counts)]
    return row.all_to_all([own] * row.size, kind, list(torch.empty(sum(awaited), dtype=own.dtype).split(awaited)))


def _fetched(rows: Rows, A: sp.csr_array) -> sp.csr_array:
    columns, *data = rows.values
    ones = np.ones(len(columns), A.dtype)
    return sp.csr_array((data[0] if data else ones, columns, rows.indptr), shape=(len(rows.indptr) - 1, A.shape[1]))


def _nothing(Q: sp.csr_array, A: sp.csr_array, values: bool) -> sp.csr_array:
    """Zeros of the shape and dtype of the product."""
    assert values or (A.has_canonical_format and bool((A.data == 1).all())), (
        "values of A other than 1, which would not travel"
    )
    return sp.csr_array((Q.shape[0], A.shape[1]), dtype=np.result_type(Q.dtype, A.dtype))


def _selects(Q: sp.csr_array) -> bool:
    """True if each row holds at most one 1. The ranks of a process row have the same Q_i, so they agree."""
    return bool((np.diff(Q.indptr) <= 1).all() and (Q.data == 1).all())


def _lengths(rows: sp.csr_array) -> Tensor:
    return torch.from_numpy(np.diff(rows.indptr).astype(index_dtype(rows.shape[1])))


def _columns(rows: sp.csr_array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows.indices, index_dtype(rows.shape[1])))


def _data(rows: sp.csr_array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows.data))


def _room(words: int, A: sp.csr_array) -> tuple[Tensor, Tensor]:
    """Ids or lengths to be overwritten, and values that are ones unless they are overwritten too."""
    return torch.from_numpy(np.empty(words, index_dtype(A.shape[1]))), torch.from_numpy(np.ones(words, A.dtype))


def _matrix(lengths: Tensor, columns: Tensor, data: Tensor, num_columns: int) -> sp.csr_array:
    indptr = np.concatenate([[0], np.cumsum(lengths.numpy(), dtype=np.int64)])
    return sp.csr_array((data.numpy(), columns.numpy(), indptr), shape=(len(lengths), num_columns))


def formulas(p: int, c: int, R: int, d: float, nonzeros: int) -> dict[str, float]:
    """Values of the formulas in the head of this file, by the name of the measured quantity."""
    stages, words = -(-p // c // c), R * d / p
    return {
        "stages": stages,
        "answers": 2 * stages,
        "needed_words": words,
        "received_words": words,
        "sent_words": c * words,
        "asked_rows": R / p,
        "reduced_words": (c - 1) * words,
        "oblivious_words": nonzeros / c,
    }


@dataclass(frozen=True, eq=False)
class Product:
    """One P = Q A over all ranks."""

    name: str
    A: sp.csr_array
    Q: sp.csr_array
    values: bool
    """True if the values of A's entries are sent."""


def products(args: argparse.Namespace) -> list[Product]:
    """Both products on one graph."""
    V = args.graph_nodes
    rng = np.random.default_rng(args.seed)
    if args.graph == "rmat":
        graph = make(Recipe(V, V * args.degree // 2, {}), args.seed)
        indptr, columns = graph.indptr, graph.indices.astype(np.int64)
    else:
        keys = np.unique(rng.integers(0, V * V, V * args.degree))
        keys = keys[keys // V != keys % V]
        columns, indptr = keys % V, np.concatenate([[0], np.cumsum(np.bincount(keys // V, minlength=V))])
    A = sp.csr_array((np.ones(len(columns), np.int64), columns, indptr), shape=(V, V))
    nodes = rng.integers(0, V, args.rows) if args.select == "nodes" else rng.choice(columns, args.rows)
    Q = sp.csr_array((np.ones(len(nodes), np.int64), nodes, np.arange(len(nodes) + 1)), shape=(len(nodes), V))
    # A minibatch has a node once.
    minibatches = [np.unique(nodes[n : n + args.batch]) for n in range(0, len(nodes), args.batch)]
    starts = np.concatenate([[0], np.cumsum([len(m) for m in minibatches])])
    Q_ladies = sp.csr_array(
        (np.ones(starts[-1], np.int64), np.concatenate(minibatches), starts), shape=(len(minibatches), V)
    )
    W = sp.csr_array(A + sp.eye_array(V, format="csr"))
    W = sp.csr_array(sp.diags_array(1 / W.sum(axis=1)) @ W)
    return [Product("nodewise", A, Q, False), Product("ladies", sp.csr_array(W * W), Q_ladies, True)]


def measure(
    group: Any, given: Sequence[tuple[str, sp.csr_array, sp.csr_array, bool]], copies: Sequence[int]
) -> list[dict[str, Any]]:
    """One rank's part in every product, for each c."""
    found = []
    for c in copies:
        grid = Grid(group.size, c)
        block = grid.block(group.rank)
        lines = Lines.meet(group, grid)
        for name, A, Q, values in given:
            offsets, cuts = (np.arange(grid.blocks + 1) * M.shape[0] // grid.blocks for M in (A, Q))
            # All that this rank has of either.
            A_i, Q_i = A[offsets[block] : offsets[block + 1]], Q[cuts[block] : cuts[block + 1]]
            want = Q_i @ A
            want.sort_indices()
            for variant, multiply in zip(VARIANTS, (aware, oblivious)):
                group.any(False)
                before, start = group._ledger.as_record()["network"], time.perf_counter()
                P, traffic = multiply(grid, lines, A_i, Q_i, offsets, values=values)
                seconds, after = time.perf_counter() - start, group._ledger.as_record()["network"]
                same = np.array_equal(P.indptr, want.indptr) and np.array_equal(P.indices, want.indices)
                same = same and (
                    np.allclose(P.data, want.data, rtol=1e-12, atol=0) if values else np.array_equal(P.data, want.data)
                )
                sent = {kind: after[kind] - before[kind] for kind in ("graph", "control")}
                found.append(
                    {
                        "c": c,
                        "product": name,
                        "variant": variant,
                        "same": bool(same),
                        "seconds": seconds,
                        **sent,
                        **asdict(traffic),
                    }
                )
    return found


def summary(p: int, c: int, product: Product, ranks: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """All ranks in one product: figures, their formulas, and the counts of each rank."""
    records = {
        variant: [
            r for rank in ranks for r in rank if (r["c"], r["product"], r["variant"]) == (c, product.name, variant)
        ]
        for variant in VARIANTS
    }
    R = product.Q.nnz
    d = float(np.diff(product.A.indptr)[product.Q.indices].mean())
    seen = records["aware"]
    figures = {key: max(r[key] for r in seen) for key in ("stages", "answers", "sent_words")}
    figures |= {
        key: sum(r[key] for r in seen) / p for key in ("needed_words", "received_words", "asked_rows", "reduced_words")
    }
    figures["oblivious_words"] = sum(r["received_words"] for r in records["oblivious"]) / p
    sent = {v: {kind: sum(r[kind] for r in records[v]) for kind in ("graph", "control")} for v in VARIANTS}
    seconds = {v: max(r["seconds"] for r in records[v]) for v in VARIANTS}
    wrong = [f"rank {n} of {p}, c = {c}, {v}" for v in VARIANTS for n, r in enumerate(records[v]) if not r["same"]]
    expected = formulas(p, c, R, d, product.A.nnz)
    shape = {"product": product.name, "p": p, "c": c, "selected_rows": R, "mean_degree": d, "nonzeros": product.A.nnz}
    return {
        **shape,
        "figures": figures,
        "formulas": expected,
        "bytes": sent,
        "seconds": seconds,
        "wrong": wrong,
        "ranks": records,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """One table: figures, each beside its formula and the ratio of the two."""
    first = rows[0]
    about = f"R = {first['selected_rows']:,}, d = {first['mean_degree']:.1f}, nnz(A) = {first['nonzeros']:,}"
    print(f"\n{first['product'].upper()}: {about}; words, but for stages, answers and kB")
    groups = [
        "    needed received   R d/p      ratios",
        "    sent   cRd/p      ",
        "  reduced (c-1)Rd/p      ",
        "oblivious nnz(A)/c      ",
    ]
    print(" |".join(["  p   c  stages answers", *groups, " aware kB   obliv."]))
    for r in rows:
        seen, rule = r["figures"], r["formulas"]
        ratio = {key: f"{seen[key] / rule[key]:.2f}" if rule[key] else "-" for key in rule}
        cells = [f"{seen[key]} of {rule[key]}" for key in ("stages", "answers")]
        needed = f"{seen['needed_words']:>10,.0f}{seen['received_words']:>9,.0f}{rule['needed_words']:>8,.0f}"
        groups = [f"{needed}  {ratio['needed_words']:>4} {ratio['received_words']:>5}"]
        for key, width in (("sent_words", 8), ("reduced_words", 9), ("oblivious_words", 9)):
            groups.append(f"{seen[key]:>{width},.0f}{rule[key]:>{width},.0f}{ratio[key]:>6}")
        kb = "".join(f"{sum(r['bytes'][v].values()) / 1e3:>9,.0f}" for v in VARIANTS)
        print(" |".join([f"{r['p']:>3}{r['c']:>4}{cells[0]:>9}{cells[1]:>9}", *groups, kb]))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="The paper's 1.5D products, and what they move, beside formulas.")
    parser.add_argument(
        "--graph",
        choices=("uniform", "rmat"),
        default="uniform",
        help="edges anywhere, or a skewed degree distribution",
    )
    parser.add_argument("--graph-nodes", type=int, default=20_000)
    parser.add_argument("--degree", type=int, default=20, help="mean, before loops and duplicates go")
    parser.add_argument(
        "--rows", type=int, default=4096, help="nodes that are selected, over all minibatches of the bulk"
    )
    parser.add_argument(
        "--select",
        choices=("nodes", "edges"),
        default="nodes",
        help="any nodes, as seeds, or ends of edges, as later hops",
    )
    parser.add_argument("--batch", type=int, default=256, help="of them in a minibatch, which is a row of Q of LADIES")
    parser.add_argument(
        "--ranks",
        type=lambda s: [int(n) for n in s.split(",")],
        default=[1, 2, 4, 8, 16],
        help="p; all divisors c follow",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for name, least in {"graph_nodes": 2, "degree": 1, "rows": 1, "batch": 1}.items():
        if getattr(args, name) < least:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be at least {least}")
    if min(args.ranks) < 1:
        parser.error(f"--ranks has {min(args.ranks)}; expected at least 1 rank")
    return args


def main() -> int:
    """Measure and print. Returns 1 if a product is not SciPy's."""
    args = arguments()
    work = products(args)
    given = [(product.name, product.A, product.Q, product.values) for product in work]
    rows: list[dict[str, Any]] = []
    for p in args.ranks:
        copies = [c for c in range(1, p + 1) if p % c == 0]
        start = time.perf_counter()
        ranks = run_ranks(measure, p, given, copies, timeout_s=600.0, group_timeout_s=300.0)
        print(f"  {p} ranks: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        rows += [summary(p, c, product, ranks) for product in work for c in copies]
    for product in work:
        show([r for r in rows if r["product"] == product.name])
    if args.json:
        told = {key: value for key, value in vars(args).items() if key != "json"}
        args.json.write_text(json.dumps({"options": told, "products": rows}, indent=1) + "\n")
    wrong = [f"{r['product']}: {text}" for r in rows for text in r["wrong"]]
    for text in wrong:
        print(f"PROBLEM: P is not SciPy's: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
