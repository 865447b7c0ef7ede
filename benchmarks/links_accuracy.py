"""AUC, MRR and Hits@10 of held-out links beside PyG's way, over seeds.

    OMP_NUM_THREADS=1 python benchmarks/links_accuracy.py [--data DIR] [--seeds 5] [--only cora] [--split val]
        [--options '{"lr": 0.01}']

PyG's way is that of its ``examples/link_pred.py``: two GCN layers (128, 64) over the training graph, a dot
product, binary cross entropy against as many drawn negatives, Adam with lr 0.01, 100 full-batch steps; the step with
the best validation AUC is tested. Millrace trains the same model on minibatches of pairs, by settings that were chosen
by validation figures, and also tests the epoch with the best validation AUC. Splits (85, 5, 10 %
of the edges), features, evaluation negatives and metrics are the same; MRR and Hits@10 are filtered, among all nodes.
Features wider than 512 are projected to 128 columns by a fixed random matrix, for both. Prints mean and standard
deviation in percent, and the mean difference with its standard error.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import millrace as mr
from millrace.stages.evaluate.link_metrics import PairsOfSet, known_of, link_metrics
from millrace.stages.links.decoders import make_decoder
from millrace.storage.features import ArrayFeatures

BOTH = {"negative_ends": "both"}
BALANCED = {"link": {**BOTH, "num_negatives": 4}, "loss": {"name": "bce", "pos_weight": "balanced"}}
SETTINGS: dict[str, dict[str, Any]] = {
    "cora": {"lr": 0.005, "epochs": 40, "batch_size": 1024, **BALANCED},
    "amazon_computers": {"lr": 0.005, "epochs": 24, "batch_size": 32768, "link": BOTH},
    "coauthor_cs": {"lr": 0.005, "epochs": 60, "batch_size": 16384, **BALANCED},
}
"""Options of Millrace's runs."""
Split = Literal["val", "test"]
METRICS = ("auc", "mrr", "hits@10")
WIDEST, PROJECTED = 512, 128


def opened(path: Path, seed: int) -> mr.Dataset:
    """The links of a graph, divided by the seed."""
    data = mr.open_dataset(str(path), options=mr.ReadOptions(normalize_features="row"))
    x = data.features.gather(np.arange(data.num_nodes))
    if x.shape[1] > WIDEST:
        x = x @ np.random.default_rng(0).normal(size=(x.shape[1], PROJECTED)).astype(np.float32)
    return mr.link_dataset(replace(data, features=ArrayFeatures(np.ascontiguousarray(x))), seed=seed)


def by_millrace(data: mr.Dataset, seed: int, split: Split, options: dict[str, Any]) -> dict[str, float]:
    """Metrics of a run, of one of its sets."""
    with tempfile.TemporaryDirectory() as out:
        result = mr.run(
            data, model=mr.GCN(hidden=128, layers=2, dropout=0.0), fanout=[-1, -1], seed=seed, monitor="auc", threads=1,
            out=f"{out}/run", verbose=False, **{**options, "link": {"width": 64, **options["link"]}},
        )  # fmt: skip
    found = result.test_metrics if split == "test" else result.val_metrics
    return {name: value for name in METRICS if (value := found[name]) is not None}


def by_pyg(data: mr.Dataset, seed: int, split: Split) -> dict[str, float]:
    """Metrics of PyG's example, of one of the sets."""
    from torch_geometric.nn import GCNConv
    from torch_geometric.utils import negative_sampling

    torch.manual_seed(seed)
    graph, known = data.graph, known_of(data.graph, data.labels)
    edges = torch.from_numpy(
        np.stack([graph.indices.astype(np.int64), np.repeat(np.arange(data.num_nodes), graph.in_degree)])
    )
    x = torch.from_numpy(data.features.gather(np.arange(data.num_nodes)))
    first, second = GCNConv(x.shape[1], 128, cached=True), GCNConv(128, 64, cached=True)
    adam = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    pairs = torch.from_numpy(data.labels[data.split.train, :2].T.copy())
    decoder, best, found = make_decoder("dot", 64), -1.0, {}
    for step in range(100):
        z = second(first(x, edges).relu(), edges)
        negative = negative_sampling(edges, num_nodes=data.num_nodes, num_neg_samples=pairs.shape[1], method="sparse")
        scores = [decoder(z[p[0]], z[p[1]]) for p in (pairs, negative)]
        y = torch.cat([torch.ones_like(scores[0]), torch.zeros_like(scores[1])])
        adam.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(torch.cat(scores), y).backward()
        adam.step()
        if step % 5 == 4:
            with torch.no_grad():
                z = second(first(x, edges).relu(), edges)
            value = link_metrics(decoder, z, PairsOfSet(data.labels, data.split.val, "val"), ("auc",), known).values[
                "auc"
            ]
            if value > best:
                numbers = data.split.test if split == "test" else data.split.val
                best, found = (
                    value,
                    link_metrics(decoder, z, PairsOfSet(data.labels, numbers, split), METRICS, known).values,
                )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("MILLRACE_DATA", beside)))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=SETTINGS)
    parser.add_argument("--split", choices=("val", "test"), default="test")
    parser.add_argument("--options", type=json.loads, default={}, help="in place of some of the settings, as JSON")
    args = parser.parse_args()
    for name in [args.only] if args.only else SETTINGS:
        rows = []
        for seed in range(args.seeds):
            data, start = opened(args.data / f"{name}.npz", seed), time.process_time()
            ours = by_millrace(data, seed, args.split, SETTINGS[name] | args.options)
            between = time.process_time()
            theirs = by_pyg(data, seed, args.split)
            rows.append([[found[metric] * 100 for metric in METRICS] for found in (ours, theirs)])
            print(
                name,
                seed,
                np.round(rows[-1], 2).tolist(),
                f"{between - start:.0f} s, {time.process_time() - between:.0f} s",
                flush=True,
            )
        table = np.array(rows)
        for i, metric in enumerate(METRICS):
            (ours, theirs), lead = table[:, :, i].T, table[:, 0, i] - table[:, 1, i]
            error = lead.std(ddof=1) / len(lead) ** 0.5 if len(lead) > 1 else float("nan")
            print(
                f"{name:17} {metric:8} Millrace {ours.mean():.2f} ({ours.std():.2f}), PyG {theirs.mean():.2f} "
                f"({theirs.std():.2f}), difference {lead.mean():+.2f} ({error:.2f})"
            )
