"""Interface of the full-batch benchmark's engines to the driver: a process that trains, prints one line of JSON, and
ends.

Runs in the engine's own environment, so it needs nothing but the standard library and NumPy.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, HIDDEN, CLASSES, HEADS, LAYERS, LR = 128, 256, 40, 4, 3, 0.003
WARM_UP = 1
"""Epochs before the clock starts."""


@dataclass(frozen=True)
class FullBatch:
    """The driver's request. Arrays are loaded when they are first used, so that each engine holds only what it
    needs."""

    folder: Path
    """Folder of the graph; features, labels and train nodes are in ``fullbatch`` below it."""
    model: str
    """sage or gat."""
    threads: int
    epochs: int
    """Measured, after the warm-up."""
    options: dict[str, Any]
    """Options of a single engine."""

    def graph(self, loops: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """See `train_task.in_lists`."""
        from train_task import in_lists

        return in_lists(self.folder, loops)

    def array(self, name: str) -> np.ndarray:
        """features float32 [V, F], labels int64 [V] or train int64 [n], ascending."""
        return np.load(self.folder / "fullbatch" / f"{name}.npy")


Epoch = Callable[[], float]
"""Forward, loss over the train nodes, backward, Adam's step; the loss before the step."""


def train(start: Callable[[FullBatch], Epoch], **notes: Any) -> None:
    """Warm up, measure, answer: the whole life of the process."""
    # Not above: the driver imports this file too, by another path.
    from train_task import memory, read, settle

    task, answer = read(FullBatch)
    epoch = start(task)
    loaded = settle()
    losses = [epoch() for _ in range(WARM_UP)]
    seconds, cpu = [], time.process_time()
    for _ in range(task.epochs):
        begin = time.perf_counter()
        losses.append(epoch())
        seconds.append(time.perf_counter() - begin)
    answer(
        {
            "seconds": seconds,
            "cpu_s": (time.process_time() - cpu) / task.epochs,
            "losses": losses,
            # Of the whole life, as ru_maxrss is; but that also counts what the parent held before it started this
            # program.
            "peak_bytes": memory("VmHWM"),
            "loaded_bytes": loaded,
            **notes,
        }
    )
