"""Learnt features: a large table over 1, 2 and 4 ranks, and accuracy on a graph whose nodes have no features.

    python benchmarks/learned.py rows [--nodes 1000000] [--width 64]
    python benchmarks/learned.py beside-torch [--nodes 1000000] [--width 64] [--device cuda]
    python benchmarks/learned.py accuracy

``rows`` steps a table on random minibatches, in processes that talk through gloo. It prints the largest difference
between the ranks' rows and those of one rank, processor seconds and bytes of a step, and checks that bytes are those of
the rows that were read and that no other row has changed. ``beside-torch`` times reading 100,000 rows and stepping
along their gradients, in turn with torch's embedding with sparse gradients and its optimisers. ``accuracy`` trains
GraphSAGE on a planted partition without features: on the two columns of in-degrees that stand in for them, and with
learnt rows beside them.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import millrace as mr
from millrace.stages.comm.solo import Solo
from millrace.stages.learned.table import LearnedTable, initial_rows
from millrace.stages.memory.arena import Arena, reusing
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.contracts.thread_ranks import run_threads

STEPS, MINIBATCHES, NODES_EACH = 5, 4, 25_000
ROUNDS = 9


def nodes_of(step: int, minibatch: int, num_nodes: int) -> np.ndarray:
    """Nodes of a minibatch, all below nine tenths of V."""
    rng = np.random.default_rng([step, minibatch])
    return np.unique(rng.integers(0, num_nodes * 9 // 10, NODES_EACH))


def steps(group: Any, num_nodes: int, width: int, optimizer: str, folder: str) -> dict[str, Any]:
    """Step a table; write its rows."""
    torch.set_num_threads(1)
    table = LearnedTable(num_nodes, width, torch.float32, 0, group, optimizer, lr=0.1)
    start, foreign = time.process_time(), 0
    for step in range(STEPS):
        for first in range(0, MINIBATCHES, group.size):
            nodes = nodes_of(step, first + group.rank, num_nodes)
            foreign += int(((nodes < table.first) | (nodes >= table.last)).sum())
            (table.take(nodes) ** 2).sum().backward()
        table.sum_gradients(100.0)
        table.step()
    seconds = (time.process_time() - start) / STEPS
    ledger = getattr(group, "_ledger", None) or group.ledger
    sent = dict(ledger.as_record()["network"])
    np.save(Path(folder) / f"rows-{group.rank}.npy", table.rows.numpy())
    return {"seconds": seconds, "sent": sent, "foreign": foreign}


def rows(num_nodes: int, width: int) -> None:
    """See the top."""
    before = initial_rows(np.arange(num_nodes), width, torch.float32, 0).numpy()
    for optimizer in ("adagrad", "adam", "sgd"):
        alone = None
        for size in (1, 2, 4):
            with tempfile.TemporaryDirectory() as folder:
                work = num_nodes, width, optimizer, folder
                alone_on = lambda group, work=work: steps(group, *work)  # noqa: E731
                found = run_ranks(steps, size, *work) if size > 1 else run_threads(alone_on, 1)
                after = np.concatenate([np.load(Path(folder) / f"rows-{r}.npy") for r in range(size)])
            alone = after if alone is None else alone
            last = num_nodes * 9 // 10
            assert np.array_equal(after[last:], before[last:]) and not np.array_equal(after[:last], before[:last])
            foreign, sent = sum(f["foreign"] for f in found), [f["sent"] for f in found]
            features = sum(s["features"] for s in sent)
            assert features == foreign * width * 4, (features, foreign)
            gradients = sum(s["gradients"] for s in sent)
            assert gradients <= features
            print(
                f"{optimizer:8} ranks {size}: differs by {np.abs(after - alone).max():.1e}, "
                f"{sum(f['seconds'] for f in found):.3f} processor s a step, rows "
                f"{features / STEPS / 2**20:.1f} MiB and "
                f"gradients {gradients / STEPS / 2**20:.1f} MiB a step of a table of {after.nbytes / 2**20:.0f} MiB"
            )


def now(device: torch.device | None) -> float:
    """The time when the device has done what it was asked."""
    if device is not None:
        torch.cuda.synchronize(device)
    return time.perf_counter()


def beside_torch(num_nodes: int, width: int, device: str) -> None:
    """See the top."""
    to = None if device == "cpu" else torch.device(device)
    torchs = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam, "sgd": torch.optim.SGD}
    rng, many = np.random.default_rng(0), 4 * NODES_EACH
    for name, kind in torchs.items():
        table, arena = LearnedTable(num_nodes, width, torch.float32, 0, Solo(), name, lr=0.01, device=to), Arena()
        embedding = nn.Embedding.from_pretrained(table.rows.clone(), freeze=False, sparse=True)
        # pyrefly: ignore[missing-argument, unexpected-keyword]
        optimizer: Any = kind(embedding.parameters(), lr=0.01)
        ours, theirs = list[float](), list[float]()
        for _ in range(ROUNDS + 1):
            nodes = torch.from_numpy(rng.permutation(num_nodes)[:many]).to(device)
            grads = torch.randn(many, width).to(device)
            start = now(to)
            with reusing(arena):
                table.take(nodes).backward(grads)
                table.sum_gradients(100.0)
                table.step()
            arena.step()
            middle = now(to)
            optimizer.zero_grad()
            embedding(nodes).backward(grads / 100.0)
            optimizer.step()
            ours.append(middle - start)
            theirs.append(now(to) - middle)
        differs = float((embedding.weight.detach() - table.rows).abs().max())
        mine, other = (1e3 * statistics.median(times[1:]) for times in (ours, theirs))
        print(f"{name:8} {mine:6.1f} ms, torch {other:6.1f} ms: {other / mine:.1f} times; differs by {differs:.1e}")


def accuracy() -> None:
    """See the top."""
    sbm = mr.open_dataset("sbm:nodes=5000,classes=8,degree=30,train=0.3")
    degree = np.diff(sbm.graph.indptr)
    columns = np.stack([np.ones(len(degree)), np.log1p(degree)], 1).astype(np.float32)
    data = mr.Dataset("no features", sbm.graph, ArrayFeatures(columns), sbm.labels, sbm.split, sbm.num_classes)
    job = {"fanout": [10, 5], "hidden": 64, "epochs": 20, "batch_size": 256, "lr": 0.01, "verbose": False}
    learnt = {"width": 64, "lr": 0.05}
    kinds: dict[str, dict[str, Any]] = {
        "degree columns": {},
        "learnt rows beside them": {"learned": learnt},
        "learnt rows alone": {"learned": {**learnt, "beside": False}},
        "learnt rows alone, adam": {"learned": {**learnt, "beside": False, "optimizer": "adam", "lr": 0.01}},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, options in kinds.items():
            found = [
                mr.run(
                    data, out=Path(folder) / f"{name}-{seed}", seeds={"initial": seed}, **job, **options
                ).test_accuracy
                for seed in range(3)
            ]
            print(f"{name}: test accuracy {np.mean(found):.4f} ± {np.std(found):.4f} over 3 initial states")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=["rows", "beside-torch", "accuracy"])
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cpu", help="of beside-torch")
    given = parser.parse_args()
    if given.what == "accuracy":
        accuracy()
    elif given.what == "rows":
        rows(given.nodes, given.width)
    else:
        beside_torch(given.nodes, given.width, given.device)


if __name__ == "__main__":
    main()
