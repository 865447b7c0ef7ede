"""Interface of the sampling benchmark's engines to the driver: a process that reads one JSON command a line and answers
with one.

Runs in the engine's own environment, so it needs nothing but the standard library and NumPy.

    {"do": "epoch", "minibatches": n}   sample n minibatches; answers seconds (wall), cpu_s, edges and nodes (sums)
    {"do": "one", "path": p}            sample one minibatch and save it at p, see `save`
    {"do": "report"}                    the engine's own measurements, and rss_bytes and peak_rss_bytes since the last
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LATER = 4
"""The minibatch that is checked is this one after a start, since state that goes stale shows from the second on."""


class Hop(NamedTuple):
    """The edges drawn at one hop."""

    rows: Any
    """[r] global ids of the nodes that were drawn for."""
    src: Any
    """[e] global ids."""
    dst: Any
    """[e] global ids."""
    kind: Any = ()
    """[e] relations, in a graph with types."""


@dataclass(frozen=True)
class Job:
    """The driver's request."""

    folder: Path
    """Folder of the graph."""
    indptr: np.ndarray
    """int64 [V+1], in-neighbour lists."""
    indices: np.ndarray
    """int32 [E]."""
    seeds: np.ndarray
    """int64 [N], distinct nodes, or positions of the edges whose ends are positive pairs; an epoch of n minibatches
    takes the first n * batch_size of them, in an order of the engine's."""
    fanout: tuple[int, ...]
    """Nearest the seeds first."""
    batch_size: int
    threads: int
    options: dict[str, Any]
    """Options of a single engine."""

    def types(self) -> tuple[dict[str, Any], np.ndarray]:
        """Node types, their offsets and relations, and uint8 [E], the relation of each edge; None without types."""
        return json.loads((self.folder / "types.json").read_text()), np.load(self.folder / "edge_type.npy")

    def weights(self) -> np.ndarray:
        """float32 [E], positive weights of the edges, the same for every engine."""
        return np.float32(1) - np.random.default_rng(0).random(len(self.indices), np.float32)

    def pairs(self) -> np.ndarray:
        """int64 [N, 2], source and destination of the edges that `seeds` names."""
        return np.stack([self.indices[self.seeds], np.searchsorted(self.indptr, self.seeds, side="right") - 1], axis=1)


class Engine(NamedTuple):
    """Functions that a script of this folder provides."""

    epoch: Callable[[int], Iterator[tuple[int, int]]]
    """Number of minibatches -> (edges drawn, distinct nodes) of each minibatch, or sums over several."""
    one: Callable[[], tuple[np.ndarray, list[Hop]]]
    """(seeds, hops outwards) of minibatch number `LATER`; of links, the positive pairs and their negatives [b, 2, 2] in
    place of seeds."""
    report: Callable[[], dict[str, Any]] = dict


def serve(start: Callable[[Job], Engine]) -> None:
    """Answer the driver until it closes the pipe. Whatever the engine itself prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--seeds", type=Path, required=True)
    parser.add_argument("--job", type=json.loads, required=True)
    given = parser.parse_args()
    job = dict(given.job)
    engine = start(
        Job(
            given.graph,
            np.load(given.graph / "indptr.npy"),
            np.load(given.graph / "indices.npy"),
            np.load(given.seeds),
            tuple(job.pop("fanout")),
            job.pop("batch_size"),
            job.pop("threads"),
            job,
        )
    )
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "epoch":
            wall, cpu = time.perf_counter(), time.process_time()
            counts = list(engine.epoch(command["minibatches"]))
            answer = {
                "seconds": time.perf_counter() - wall,
                "cpu_s": time.process_time() - cpu,
                "edges": sum(e for e, _ in counts),
                "nodes": sum(n for _, n in counts),
            }
        elif command["do"] == "one":
            save(command["path"], *engine.one())
            answer = {}
        else:
            answer = {**_memory(), **engine.report()}
        print(json.dumps(answer), file=replies)


def _memory() -> dict[str, int]:
    """Resident memory now and at most since the last call, in bytes (Linux)."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[0] in ("VmHWM:", "VmRSS:")}
    Path("/proc/self/clear_refs").write_text("5")
    return {"rss_bytes": kib["VmRSS:"] * 1024, "peak_rss_bytes": kib["VmHWM:"] * 1024}


def reverses(indices: np.ndarray) -> np.ndarray:
    """int64 [E], the position of each edge's reverse in a simple symmetric graph whose rows ascend."""
    return np.argsort(indices, kind="stable")


def save(path: str, seeds: np.ndarray, hops: list[Hop]) -> None:
    """Write a minibatch as arrays `seeds`, `rows0`, `src0`, `dst0`, `kind0`, `rows1`, ..., global ids."""
    arrays = {f"{name}{h}": np.asarray(part) for h, hop in enumerate(hops) for name, part in hop._asdict().items()}
    np.savez(path, allow_pickle=False, seeds=np.asarray(seeds), **arrays)
