"""Interface of the evaluation benchmark's engines to the driver: a process that computes the logits of all nodes,
prints one line of JSON, and ends.

Runs in the engine's own environment, so it needs nothing but the standard library and NumPy.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, HIDDEN, CLASSES, HEADS, LAYERS = 100, 256, 47, 4, 3
CHECKED = 1000
"""Nodes whose logits all engines must agree on."""


@dataclass(frozen=True)
class Evaluation:
    """The driver's request."""

    folder: Path
    """Folder of the graph; features are in ``evaluation`` below it."""
    model: str
    """sage, gcn, gat or gin."""
    threads: int
    options: dict[str, Any]
    """Options of a single engine."""

    def graph(self, loops: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """See `train_task.in_lists`."""
        from train_task import in_lists

        return in_lists(self.folder, loops)

    def features(self, mapped: bool = False) -> np.ndarray:
        """float32 [V, F]."""
        return np.load(self.folder / "evaluation" / "features.npy", mmap_mode="r" if mapped else None)

    def weights(self, layer: int) -> dict[str, np.ndarray]:
        """Parameters of a layer, float32: ``own`` and ``near`` [out, in]; of GAT ``product`` [H * out, in], ``src`` and
        ``dst`` [H, out]."""
        rng = np.random.default_rng(layer)
        last, wide = layer == LAYERS - 1, FEATURES if layer == 0 else HIDDEN
        out = CLASSES if last else HIDDEN
        head = CLASSES if last else HIDDEN // HEADS

        def draw(*shape: int) -> np.ndarray:
            return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

        if self.model == "gat":
            return {"product": draw(HEADS * head, wide), "src": draw(HEADS, head), "dst": draw(HEADS, head)}
        return {"own": draw(out, wide), "near": draw(out, wide)}


def evaluate(start: Callable[[Evaluation], Callable[[], np.ndarray]]) -> None:
    """Load, compute the logits of all nodes, answer: the whole life of the process."""
    from train_task import memory, read, reset_peak, settle

    task, answer = read(Evaluation)
    compute = start(task)
    loaded = settle()
    reset_peak()
    begin, cpu = time.perf_counter(), time.process_time()
    logits = compute()
    seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    answer(
        {
            "seconds": seconds,
            "cpu_s": cpu_s,
            # Of the process, pages of mapped files counted.
            "peak_bytes": memory("VmHWM"),
            "loaded_bytes": loaded,
            "logits": logits[:: max(1, len(logits) // CHECKED)].astype(float).sum(axis=1).tolist(),
        }
    )
