"""Interface of the epoch benchmark's engines to the driver: a process that trains, prints one line of JSON, and ends.

Runs in the engine's own environment, so it needs nothing but the standard library and NumPy.
"""

import argparse
import ctypes
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

FANOUT = (15, 10, 5)
"""Nearest the seeds first."""
BATCH, FEATURES, HIDDEN, CLASSES, HEADS, LR = 1024, 100, 256, 47, 4, 0.003
EDGE_FEATURES, EDGE_CLASSES = 8, 2
"""Features and classes of labelled edges."""
PAIRS = 512
"""Positive pairs of a minibatch of links, as in DGL's example, or labelled edges of one."""
WARM_UP = 4
"""Minibatches of a peer before the clock starts."""


def in_lists(folder: Path, loops: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """In-neighbour lists: indptr int64 [V+1], indices int32 [E]; `loops` puts the node itself at the end of each
    list."""
    indptr, indices = np.load(folder / "indptr.npy"), np.load(folder / "indices.npy")
    if not loops:
        return indptr, indices
    nodes = np.arange(len(indptr) - 1, dtype=indices.dtype)
    return indptr + np.arange(len(indptr)), np.insert(indices, indptr[1:], nodes)


@dataclass(frozen=True)
class Task:
    """The driver's request. Arrays are loaded when they are first used, so that each engine holds only what it
    needs."""

    folder: Path
    """Folder of the graph; the features and labels are in ``training`` below it."""
    model: str
    """sage, gat, links, or edges."""
    threads: int
    minibatches: int
    """N, in an epoch."""
    epochs: int
    """Measured, after the warm-up."""
    dropout: float
    """On the input of every layer, the features included."""
    options: dict[str, Any]
    """Options of a single engine."""

    def graph(self) -> tuple[np.ndarray, np.ndarray]:
        """See `in_lists`."""
        return in_lists(self.folder)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Features float32 [V, F] and labels int64 [V]."""
        return np.load(self.folder / "training" / "features.npy"), np.load(self.folder / "training" / "labels.npy")

    def seeds(self) -> np.ndarray:
        """int64 [N * BATCH], ascending, distinct."""
        return np.sort(np.load(self.folder / "training" / "seeds.npy")[: self.minibatches * BATCH])

    def edges(self) -> np.ndarray:
        """int64 [N * PAIRS], distinct positions of edges, whose ends are the positive pairs, or which are trained
        on."""
        count = len(np.load(self.folder / "indices.npy", mmap_mode="r"))
        return np.random.default_rng(0).choice(count, self.minibatches * PAIRS, replace=False)


class Work(NamedTuple):
    """One minibatch."""

    edges: int
    """Drawn."""
    aggregated: int
    """Edges that the layers read, summed over layers."""
    nodes: int
    """Rows gathered."""
    loss: float


class Parts:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count the time the block takes."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


T = TypeVar("T")
Epoch = Callable[[int, Parts], Iterator[Work]]
"""Trains on that many minibatches in a new order."""


def read(kind: Callable[..., T] = Task) -> tuple[T, Callable[[dict[str, Any]], None]]:
    """The task on the command line, of that kind, and how to answer. Whatever else is printed goes to standard
    error."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", type=json.loads, required=True)
    given = dict(parser.parse_args().task)
    return kind(Path(given.pop("folder")), **given), lambda record: print(json.dumps(record), file=replies)


def train(start: Callable[[Task], Epoch], **notes: Any) -> None:
    """Warm up, measure, answer: the whole life of a peer's process."""
    task, answer = read()
    epoch = start(task)
    loaded = settle()
    if not task.options.get("proof"):
        list(epoch(min(WARM_UP, task.minibatches), Parts()))
    reset_peak()
    parts, works, wall = Parts(), [], []
    cpu = time.process_time()
    for _ in range(task.epochs):
        begin = time.perf_counter()
        works += epoch(task.minibatches, parts)
        wall.append(time.perf_counter() - begin)
    count = len(works)
    assert count == task.epochs * task.minibatches, (
        f"{count} minibatches came; {task.epochs} x {task.minibatches} were asked for"
    )
    answer(
        {
            "ms": 1000 * sum(wall) / count,
            "cpu_ms": 1000 * (time.process_time() - cpu) / count,
            "parts_ms": {name: 1000 * s / count for name, s in parts.seconds.items()},
            **{name: float(np.mean([getattr(w, name) for w in works])) for name in Work._fields},
            "losses": [w.loss for w in works],
            "peak_bytes": memory("VmHWM"),
            "loaded_bytes": loaded,
            **notes,
        }
    )


def memory(field: str) -> int:
    """``VmRSS`` (now) or ``VmHWM`` (most since `reset_peak`), in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def reset_peak() -> None:
    """Forget what was resident before."""
    Path("/proc/self/clear_refs").write_text("5")


def settle() -> int:
    """Give back what loading has freed, which an allocator that keeps everything would count as training's; then
    resident bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    return memory("VmRSS")
