"""Tables printed by `epoch.py`."""

import statistics
from typing import Any

from peers.train_task import BATCH

ROW = "{:28} {:>2} {:>8} {:>8} {:>17} {:>9} {:>9} {:>8} {:>8} {:>6}  {}"


def show_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """One table."""
    print(f"\n{title}: ms a minibatch, median of the rounds; memory in MiB; thousands of edges a minibatch")
    print(
        ROW.format(
            "engine", "T", "malloc", "ms", "min - max", "peak RSS", "loaded", "drawn", "read", "loss", "parts, ms"
        )
    )
    for r in rows:
        head = (r["name"], r["threads"], r["allocator"])
        if "failed" in r:
            print(ROW.format(*head, "failed", *[""] * 6, r["failed"]))
            continue
        parts = ", ".join(f"{name} {ms:.1f}" for name, ms in r["parts_ms"].items())
        numbers = (
            f"{r['ms']:.1f}",
            f"{r['ms_min']:.1f} - {r['ms_max']:.1f}",
            *(f"{r[k] / 2**20:.0f}" for k in ("peak_bytes", "loaded_bytes")),
        )
        edges = (f"{r['edges'] / 1e3:.1f}", f"{r['aggregated'] / 1e3:.1f}", f"{r['loss']:.3f}")
        print(ROW.format(*head, *numbers, *edges, parts + (f" ({r['loader']})" if r["loader"] else "")))


def show_ratios(found: list[dict[str, Any]]) -> None:
    """Multiples."""
    for m in found:
        low, high = m["range"]
        print(
            f"{m['name']} {m['allocator']} {m['threads']}T over {m['over']}: "
            f"{m['ratio']:.2f}x ({low:.2f} - {high:.2f}), "
            f"{m['peak_memory']:.2f} of its peak memory"
        )


def show_roofline(bounds: list[dict[str, Any]], threads: int, rows: list[dict[str, Any]]) -> None:
    """The bounds of the rounds, and what share of its round's each of our runs reaches."""
    first = bounds[0]
    rates = ", ".join(f"{name} {g:.0f}" for name, g in first["gflops"].items())
    middle = {
        name: statistics.median(b[name] for b in bounds) for name in ("realistic_ms", "gemm_ms", "move_ms", "ideal_ms")
    }
    print(
        f"\nbound {threads}T: {middle['realistic_ms']:.1f} ms = {first['gflop']:.1f} GFLOP in {middle['gemm_ms']:.1f} "
        f"+ {first['moved_bytes'] / 1e6:.0f} MB in {middle['move_ms']:.1f}; "
        f"ideal {middle['ideal_ms']:.1f} ms (medians of {len(bounds)} rounds)\n"
        f"  first round, GFLOP/s: {rates}; GB/s: gathering rows "
        f"{first['gather_gb_per_s']:.1f}, copying {first['copy_gb_per_s']:.1f}"
    )
    for r in rows:
        if r["ours"] and r["threads"] == threads and "failed" not in r:
            shares = {
                name: [100 * b[name] / run["ms"] for b, run in zip(bounds, r["runs"])]
                for name in ("realistic_ms", "ideal_ms")
            }
            of, ideal = shares["realistic_ms"], statistics.median(shares["ideal_ms"])
            print(
                f"  {r['name']} {r['allocator']}: {statistics.median(of):.0f} % of its "
                f"round's bound ({min(of):.0f} - {max(of):.0f}), "
                f"{ideal:.0f} % of the ideal one"
            )


def show_overhead(model: str, threads: int, r: dict[str, Any]) -> None:
    """The paired comparison."""
    if "failed" in r:
        return
    bare, run = (statistics.median(p[name] for p in r["pairs"]) for name in ("bare", "run"))
    parts = ", ".join(f"{name} {ms:.1f}" for name, ms in r["bare_parts_ms"].items())
    print(
        f"{model} {threads}T: millrace.run takes {r['ratio']:.3f} times the bare stages, 95 "
        f"% interval {r['low']:.3f} - {r['high']:.3f} "
        f"({len(r['pairs'])} pairs; medians {run:.1f} and {bare:.1f} ms; bare: {parts})"
    )


def show_halves(r: dict[str, Any]) -> None:
    """The paired comparison."""
    if "failed" in r:
        return
    halves, whole = (statistics.median(p[name] for p in r["pairs"]) for name in ("halves", "whole"))
    print(
        f"one thread: two minibatches of {BATCH // 2} seeds take {r['ratio']:.3f} times one of {BATCH}, "
        f"95 % interval {r['low']:.3f} - {r['high']:.3f} ({len(r['pairs'])} pairs; "
        f"medians {halves:.1f} and {whole:.1f} ms)"
    )
    edges, rows = (100 * (r["sizes"]["halves"][of] / r["sizes"]["whole"][of] - 1) for of in ("aggregated", "rows"))
    print(f"their layers read {edges:.1f} % more edges and compute {rows:.1f} % more rows")


def show_turns(fast: str, slow: str, r: dict[str, Any]) -> None:
    """Two engines in turns."""
    print(
        f"in turns: {fast} {r['fast_ms']:.1f} ms, {slow} {r['slow_ms']:.1f} ms: {r['ratio']:.3f} times as fast, "
        f"95 % interval {r['low']:.3f} - {r['high']:.3f} ({len(r['pairs'])} pairs)"
    )
