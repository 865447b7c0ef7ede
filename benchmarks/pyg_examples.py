"""Twelve of PyG's example scripts with Millrace's loaders: `python benchmarks/pyg_examples.py PYG`, PYG a checkout.

Of each script only the import changes: what it takes from `torch_geometric.loader` and `torch_geometric.data.lightning`
comes from `millrace`. Small random graphs stand in for the downloads, five epochs and batches of 128 for more, and the
CPU for devices that a script names. A script that needs `lightning`, `torchmetrics` or `faiss` is *left out* where it
is not installed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

SCRIPTS = (
    "reddit", "hierarchical_sampling", "hetero/hierarchical_sage", "hetero/to_hetero_mag",
    "hetero/bipartite_sage_unsup", "hetero/recommender_system", "hetero/temporal_link_pred", "graph_sage_unsup",
    "graph_sage_unsup_ppi", "infomax_inductive", "multi_gpu/distributed_sampling", "pytorch_lightning/graph_sage",
)  # fmt: skip
IMPORTS = r"from torch_geometric\.(loader|data\.lightning) import"
CHANGES = (
    (IMPORTS, "from millrace import"),
    (r"from torch_geometric\.datasets import", "from millrace.benchmarks.pyg_examples import"),
    (r"range\(1, \d+\)", "range(1, 6)"),
    (r"max_epochs=\d+", "max_epochs=5"),
    (r"batch_size=1024", "batch_size=128"),  # a set of 500 nodes fills it, on each of two ranks
    (r"'cuda:0'", "'cpu'"),
    (r"'nccl'", "'gloo'"),
    (r"torch\.cuda\.device_count\(\)", "2"),
    (r"device_ids=\[rank\]", "device_ids=None"),
    (r"\.to\(rank", ".to('cpu'"),
    (r"device=rank|torch\.device\(rank\)", "device='cpu'"),
)


class Reddit:
    """A graph of 1,500 nodes, with masks."""

    def __init__(self, *_: Any, transform: Any = None, **__: Any) -> None:
        rng = torch.Generator().manual_seed(0)
        y = torch.arange(1500) % 5
        ends = torch.randint(300, (2, 20000), generator=rng) * 5 + torch.randint(5, (20000,), generator=rng)
        data = Data(x=torch.randn(1500, 24, generator=rng) + torch.eye(5, 24)[y], y=y, edge_index=ends)
        for i, name in enumerate(("train_mask", "val_mask", "test_mask")):
            data[name] = torch.arange(1500) // 500 == i
        self.data = data if transform is None else transform(data)
        self.num_features, self.num_node_features, self.num_classes = 24, 24, 5

    def __getitem__(self, _: int) -> Any:
        return self.data


Planetoid = Reddit


class PPI(list[Data]):
    """Four graphs with several labels a node."""

    num_features = 50

    def __init__(self, *_: Any, split: str = "train") -> None:
        rng = torch.Generator().manual_seed(len(split))
        super().__init__(
            Data(
                x=torch.randn(200, 50, generator=rng),
                y=(torch.rand(200, 12, generator=rng) > 0.5).float(),
                edge_index=torch.randint(200, (2, 2000), generator=rng),
            )
            for _ in range(4)
        )


def typed(sizes: dict[str, int], relations: dict[tuple[str, str, str], int]) -> HeteroData:
    """Random edges between types of nodes with 16 features."""
    rng, data = torch.Generator().manual_seed(0), HeteroData()
    for name, size in sizes.items():
        data[name].x = torch.randn(size, 16, generator=rng)
    for relation, count in relations.items():
        ends = [torch.randint(sizes[t], (count,), generator=rng) for t in (relation[0], relation[2])]
        data[relation].edge_index = torch.stack(ends)
    return data


class OGB_MAG(Reddit):  # noqa: N801
    """Papers, authors, institutions and fields of study."""

    def __init__(self, *_: Any, transform: Any = None, **__: Any) -> None:
        sizes = {"paper": 1500, "author": 800, "institution": 40, "field_of_study": 60}
        relations = {
            ("author", "affiliated_with", "institution"): 900,
            ("author", "writes", "paper"): 5000,
            ("paper", "cites", "paper"): 6000,
            ("paper", "has_topic", "field_of_study"): 5000,
        }
        data = typed(sizes, relations)
        super().__init__()
        for name in ("y", "train_mask", "val_mask", "test_mask"):
            data["paper"][name] = self.data[name]
        self.data = data if transform is None else transform(data)


class Taobao(Reddit):
    """Users, items and categories."""

    def __init__(self, *_: Any, **__: Any) -> None:
        sizes = {"user": 300, "item": 200, "category": 10}
        data = typed(sizes, {("user", "to", "item"): 20000, ("item", "to", "category"): 200})
        for name, size in sizes.items():
            del data[name].x
            data[name].num_nodes = size
        data["user", "item"].time = torch.arange(20000)
        data["user", "item"].behavior = torch.arange(20000) % 4
        self.data: Any = data


class MovieLens(Reddit):
    """Users who rate movies, one after the other."""

    def __init__(self, *_: Any, **__: Any) -> None:
        data = typed({"user": 300, "movie": 400}, {("user", "rates", "movie"): 20000})
        del data["user"].x
        data["user"].num_nodes = 300
        data["user", "movie"].edge_label = torch.arange(20000) % 5 + 1
        data["user", "movie"].time = torch.arange(20000)
        self.data: Any = data


def run(pyg: Path, name: str, folder: Path) -> tuple[str, float, str]:
    """Run a script; its exit, its seconds, and the last line of its output."""
    text = (pyg / "examples" / f"{name}.py").read_text()
    if not re.search(IMPORTS, text):
        return "has no loader", 0.0, ""
    for old, new in CHANGES:
        text = re.sub(old, new, text)
    script = folder / f"{name.replace('/', '_')}.py"
    script.write_text(text)
    start = time.perf_counter()
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=folder)
    seconds = time.perf_counter() - start
    shown = [line for line in (done.stdout if done.returncode == 0 else done.stderr).splitlines() if line.strip()]
    last = shown[-1].strip() if shown else ""
    missing = re.search(r"No module named '(pytorch_lightning|lightning|torchmetrics|faiss)'", last)
    return "left out" if missing else "ran" if done.returncode == 0 else "failed", seconds, last


def main() -> None:
    """Run the scripts and print a line of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pyg", type=Path)
    parser.add_argument("scripts", nargs="*", default=SCRIPTS)
    given = parser.parse_args()
    ended = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.scripts:
            end, seconds, last = run(given.pyg, name, Path(folder))
            ended.append(end)
            print(f"{name:<32}{end:<9}{seconds:6.1f} s  {last[:100]}", flush=True)
    print(f"{len(ended)} scripts, {ended.count('ran')} ran")
    sys.exit("failed" in ended)


if __name__ == "__main__":
    main()
