"""WN18RR beside published figures: decoders on learnt rows, and R-GCN, ranked by the product and once more by NumPy.

    python benchmarks/triples_accuracy.py [--data wn18rr.npz] [--only complex] [--seed 0] [--out runs]

Each run is one `millrace run` on the published triples, whose words are printed: 2,000 drawn negatives that the pairs
of a minibatch share, none of which is a known triple. Settings were chosen by validation MRR. Printed: filtered MRR and
Hits@1, 3 and 10 of the test triples, heads and tails, from ``result.json``; the same from the run's rows and parameters
by NumPy, which must be as large; and with each entity among its own candidates, as the published figures have it
(Dettmers, Minervini, Stenetorp, Riedel, "Convolutional 2D Knowledge Graph Embeddings", AAAI 2018, table 4; R-GCN with
DistMult: the repository made for the rebuttal of Chang and others, "Path-based Explanation for Knowledge Graph
Completion", KDD 2024, github.com/researcher1741/powerlink, ``MRR_and_Hit@K_of_KGC_models.md``). Then minutes,
processor minutes, and GiB of all processes. The exit status is 1 if a figure falls short of the published one by more
than 0.02, or differs from NumPy's. One above it is no fault: R-GCN's are.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import millrace as mr
from millrace.benchmarks.scale import measured

METRICS = ("mrr", "hits@1", "hits@3", "hits@10")
PUBLISHED = {
    "distmult": (0.43, 0.39, 0.44, 0.49),
    "complex": (0.44, 0.41, 0.46, 0.51),
    "rgcn": (0.331, 0.311, 0.348, 0.402),
}
NEAR, SAME = 0.02, 1e-3
AT_ONCE = 64
SHARED = """--set link.ranked=both --set link.width=256 --set learned.width=256 --set learned.beside=false
    --set learned.lr=0.1 --set train.loss=infonce --set link.num_negatives=2000 --set link.negative_ends=either
    --set link.shared_negatives=true --set link.exclude_known=true --set train.metrics=mrr,hits@1,hits@3,hits@10
    --batch-size 1024 --set train.evaluate_every=6"""
ROWS = "--model identity --fanout 0 --lr 0.01"
RUNS = {
    "complex": f"{ROWS} --epochs 12 --set decoder=complex --set learned.weight_decay=2e-4",
    "distmult": f"{ROWS} --epochs 24 --set decoder=distmult --set learned.weight_decay=1e-4",
    "rgcn": "--model rgcn --layers 1 --fanout 5 --hidden 256 --dropout 0 --lr 0.001 --epochs 6 --set decoder=distmult "
    "--set learned.weight_decay=1e-4",
}


def write_triples(source: Path, folder: Path) -> None:
    """The files of a folder of triples, as WN18RR is published."""
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(source) as held:
        entities, relations = held["entities"], held["relations"]
        for name in ("train", "valid", "test"):
            head, relation, tail = held[name].T
            rows = zip(entities[head], relations[relation], entities[tail])
            (folder / f"{name}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))


def ranks(source: Path, run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Filtered ranks of the tail and of the head of each test triple among all entities, ties half, by NumPy: without
    the given entity among the candidates, and with it."""
    found, trained = mr.embed(run), mr.load(run)
    with np.load(source) as held:
        number = {name: i for i, name in enumerate(found.node_names)}
        entity = np.array([number[name] for name in held["entities"]])
        sets = {name: held[name] for name in ("train", "valid", "test")}
        names = [key.split(",")[1] for key in json.loads((run / "result.json").read_text())["per_relation"]]
        relation = np.array([names.index(name) for name in held["relations"]])
    weights = {name: p.detach().numpy() for name, p in trained.model.get_submodule("decoder").named_parameters()}
    rows, half = found.rows.astype(np.float32), found.rows.shape[1] // 2
    real, imaginary = (weights["weight"], None) if "weight" in weights else (weights["real"], weights["imaginary"])
    known: dict[tuple[int, int, bool], list[int]] = {}
    for head, kind, tail in np.concatenate(list(sets.values())):
        known.setdefault((head, kind, True), []).append(entity[tail])
        known.setdefault((tail, kind, False), []).append(entity[head])
    asked, turned = [], []
    for head, kind, tail in sets["test"]:
        for given, wanted, forward in ((head, tail, True), (tail, head, False)):
            row, r = rows[entity[given]], relation[kind]
            asked.append((entity[given], entity[wanted], known[given, kind, forward]))
            if imaginary is None:
                turned.append(row * real[r])
            else:
                a, b, i = row[:half], row[half:], imaginary[r] if forward else -imaginary[r]
                turned.append(np.concatenate([a * real[r] - b * i, a * i + b * real[r]]))
    found_ranks = np.empty((2, len(asked)))
    for first in range(0, len(asked), AT_ONCE):
        for n, scores in enumerate(np.stack(turned[first : first + AT_ONCE]) @ rows.T, first):
            given, wanted, others = asked[n]
            best = scores[wanted]
            scores[others] = -np.inf
            itself = (scores[given] > best) + (scores[given] == best) / 2
            among = 1 + (scores > best).sum() + (scores == best).sum() / 2
            found_ranks[:, n] = among - itself, among
    return found_ranks[0], found_ranks[1]


def metrics(found: np.ndarray) -> list[float]:
    """The `METRICS` of ranks."""
    return [float((1 / found).mean()), *(float((found <= k).mean()) for k in (1, 3, 10))]


def faults(name: str, said: Sequence[float], plain: Sequence[float], own: Sequence[float]) -> list[str]:
    """Faults of `METRICS` of one of `RUNS`: `said` by ``result.json`` differ from NumPy's (`plain`), or `own`, NumPy's
    with each entity among its own candidates, fall short of the published ones."""
    apart = max(abs(a - b) for a, b in zip(said, plain))
    short = [f"{m} is {b - a:.3f} short" for m, a, b in zip(METRICS, own, PUBLISHED[name]) if not b - a <= NEAR]
    return [f"result.json and NumPy differ by {apart:.4f}"] * (not apart < SAME) + short


def train(name: str, source: Path, folder: Path, seed: int) -> list[str]:
    """Run one of `RUNS`, print its figures and return its `faults`. A finished run is only read."""
    out = folder / f"{name}-{seed}"
    words = ["run", "--dataset", str(folder / "WN18RR"), *RUNS[name].split(), *SHARED.split(), "--seed", str(seed)]
    print(f"{name}: millrace {' '.join(words)}", flush=True)
    found: dict[str, Any] = {"code": 0}
    if not (out / "result.json").exists():
        found = measured([sys.executable, "-m", "millrace", *words, "--out", str(out)])
    if found["code"]:
        sys.exit(f"{name} failed")
    result = json.loads((out / "result.json").read_text())
    said, (plain, own) = [result["test_metrics"][m] for m in METRICS], map(metrics, ranks(source, out))
    figures = {"result.json": said, "by NumPy": plain, "each entity among its own": own, "published": PUBLISHED[name]}
    for line, values in figures.items():
        print(f"  {line:28}" + "".join(f"{m} {v:.4f}  " for m, v in zip(METRICS, values)))
    if "seconds" in found:
        minutes = f"{found['seconds'] / 60:.1f} minutes, {found['processor_seconds'] / 60:.1f} of processors"
        print(f"  {minutes}, {found['peak_bytes'] / 2**30:.2f} GiB")
    wrong = faults(name, said, plain, own)
    above = max(b - a for a, b in zip(PUBLISHED[name], own))
    print(
        f"  {'; '.join(wrong) or f'none is more than {NEAR} short of the published'}; at most {above:+.3f}", flush=True
    )
    return [f"{name}: {text}" for text in wrong]


def main() -> int:
    """Train and rank; 1 if a figure is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MILLRACE_DATA", beside))
    parser.add_argument("--data", type=Path, default=folder / "wn18rr.npz")
    parser.add_argument("--only", choices=RUNS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder that keeps the runs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        write_triples(args.data, out / "WN18RR")
        found = [train(name, args.data, out, args.seed) for name in ([args.only] if args.only else RUNS)]
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
