"""Accuracy of `torch_geometric.nn.GAT` by `mr.run` on 1 and 2 ranks, beside PyG's own full-batch loop.

The same module, data, split, optimiser and epochs; all neighbours and all train nodes in a step, so that only dropout
masks differ. The best validation epoch is tested. Afterwards a fresh process evaluates and predicts from the folder.

    python benchmarks/pyg_gat.py shared/data/cora.npz --seeds 5
    python benchmarks/pyg_gat.py shared/data/coauthor_cs.npz --split random:20,30 --epochs 40 --every 5 --lr 0.01
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch_geometric.nn import GAT

import millrace as mr


def make(num_features: int, num_classes: int, seed: int) -> GAT:
    """The model of the GAT paper's transductive experiments."""
    torch.manual_seed(seed)
    return GAT(num_features, 64, 2, num_classes, heads=8, dropout=0.6, act="elu")


def by_pyg(data: Any, net: GAT, args: argparse.Namespace) -> float:
    """Test accuracy of the best validation epoch of PyG's loop."""
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    best, test = -1.0, 0.0
    for epoch in range(args.epochs):
        net.train()
        optimizer.zero_grad()
        out = net(data.x, data.edge_index)
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        if (epoch + 1) % args.every and epoch + 1 < args.epochs:
            continue
        net.eval()
        with torch.no_grad():
            right = net(data.x, data.edge_index).argmax(1) == data.y
        val = float(right[data.val_mask].float().mean())
        if val > best:
            best, test = val, float(right[data.test_mask].float().mean())
    return test


def by_millrace(dataset: mr.Dataset, net: GAT, ranks: int, out: Path, args: argparse.Namespace) -> mr.Result:
    """The run."""
    batch = -(-len(dataset.split.train) // ranks)
    cluster = {"dashboard_port": 0} if ranks > 1 else {}
    train = {"weight_decay": args.weight_decay, "evaluate_every": args.every}
    options: dict[str, Any] = {"epochs": args.epochs, "lr": args.lr, "ranks": ranks, "split": args.split}
    # By its path, so that a fresh process opens it, whatever its size. The split is the same for all seeds.
    options["seeds"] = {"minibatches": args.seed}
    return mr.run(
        str(Path(args.dataset).resolve()), model=net, fanout=[-1, -1], batch_size=batch, train=train, cluster=cluster,
        out=out, verbose=False, **options,
    )  # fmt: skip


def fresh(out: Path, shape: tuple[int, int]) -> tuple[float, float]:
    """Test accuracy by `evaluate` and by `predict` in other processes, which get the module by its name."""
    maker = out.parent / "maker.py"
    maker.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport pyg_gat\n\n")
    with maker.open("a") as f:
        f.write(f"def gat():\n    return pyg_gat.make({shape[0]}, {shape[1]}, 0)\n")

    def told(*arguments: str) -> Any:
        command = [sys.executable, "-m", "millrace", *arguments, "--model", "maker:gat", "--json"]
        return json.loads(subprocess.run(command, cwd=maker.parent, capture_output=True, text=True, check=True).stdout)

    scored = told("evaluate", str(out))["accuracy"]["test"]
    told("predict", str(out), "--nodes", "test", "--out", str(out.parent / "p.parquet"))
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(out.parent / "p.parquet")
    data = mr.load(out, model=make(*shape, 0)).open_dataset()
    names = list(data.class_names) if data.class_names is not None else range(data.num_classes)
    said = [names.index(c) for c in table["class"].to_pylist()]
    return scored, float((data.labels[data.split.test] == said).mean())


def main() -> None:
    """Print a line for each seed, and the means."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--split")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    args = parser.parse_args()
    dataset = mr.open_dataset(args.dataset, split=args.split) if args.split else mr.open_dataset(args.dataset)
    data, shape = dataset.to_pyg(), (dataset.num_features, dataset.num_classes)
    found: dict[str, list[float]] = {}
    for seed in range(args.seeds):
        args.seed = seed
        start = time.process_time()
        row = {"pyg": by_pyg(data, make(*shape, args.seed), args)}
        spent = time.process_time() - start
        with tempfile.TemporaryDirectory() as folder:
            for ranks in args.ranks:
                start = time.perf_counter()
                result = by_millrace(dataset, make(*shape, args.seed), ranks, Path(folder) / str(ranks), args)
                assert result.test_accuracy is not None
                row[f"{ranks} ranks"] = result.test_accuracy
                print(f"  {ranks} ranks: {time.perf_counter() - start:.1f} s", flush=True)
            if args.seed == 0:
                print(
                    "  a fresh process: evaluate, predict", fresh(Path(folder) / str(args.ranks[0]), shape), flush=True
                )
        print(args.seed, {k: round(v, 4) for k, v in row.items()}, f"PyG's loop {spent:.1f} s of processor", flush=True)
        for k, v in row.items():
            found.setdefault(k, []).append(v)
    for k, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{k:8} {100 * statistics.mean(values):.2f} +- {100 * spread:.2f}")


if __name__ == "__main__":
    main()
