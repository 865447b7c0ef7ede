"""Millrace's full-batch system as users run it: one rank in this process, or several on a local cluster."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from fullbatch_task import CLASSES, HEADS, HIDDEN, LAYERS, LR, WARM_UP, FullBatch
from train_task import memory, read

import millrace
from millrace.storage.features import ArrayFeatures


def dataset(task: FullBatch) -> millrace.Dataset:
    """The task's graph, of which only the train nodes have a use."""
    none = np.empty(0, np.int64)
    split = millrace.Split(task.array("train"), none, none)
    features = ArrayFeatures(task.array("features"))
    return millrace.Dataset("full batch", millrace.Graph(*task.graph()), features, task.array("labels"), split, CLASSES)


def main() -> None:
    """Warm up, measure, answer. Options: ranks, which share the threads, and the mode."""
    task, answer = read(FullBatch)
    ranks = task.options.get("ranks", 1)
    model: dict[str, Any] = {"name": task.model, "hidden": HIDDEN, "layers": LAYERS, "dropout": 0.0}
    if task.model == "gat":
        model["heads"] = HEADS
    with tempfile.TemporaryDirectory() as folder:
        result = millrace.run(
            dataset(task),
            out=Path(folder) / "run",
            system=millrace.sar(task.options.get("mode", "auto")),
            model=model,
            epochs=WARM_UP + task.epochs,
            ranks=ranks,
            threads=max(1, task.threads // ranks),
            lr=LR,
            cluster={"dashboard_port": 0} if ranks > 1 else {},
            train={"evaluate_every": 0},
            checkpoint={"every_s": 1e6},
        )
        losses = [r["train_loss"] for r in history(Path(folder) / "run")]
    peak = max(result.peak_rss_bytes) if ranks > 1 else memory("VmHWM")
    seconds = result.seconds["per_epoch"][WARM_UP:]
    parts = {name: result.seconds[name] for name in ("forward_backward", "exchange", "reduce")}
    answer(
        {
            "seconds": seconds,
            # Of the processors nothing is known where ranks are processes of their own.
            "cpu_s": sum(seconds) / len(seconds),
            "losses": losses,
            "peak_bytes": peak,
            "loaded_bytes": 0,
            "memory_bytes": result.memory_bytes,
            "parts_s": parts,
            "network_bytes": result.bytes["network"],
        }
    )


def history(out: Path) -> list[dict[str, Any]]:
    """The run's epochs."""
    import json

    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [e for e in events if e["event"] == "EpochDone"]


if __name__ == "__main__":
    main()
