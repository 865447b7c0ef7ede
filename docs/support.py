"""The support table: what a job of each system, device, queue, place of features and kind of model is told.

Each cell is a dry run of a job on a small dataset, as on a machine with a GPU: the registry's capabilities and the
checks of jobs answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

import millrace as mr
from millrace.pipeline.config.systems import SYSTEMS
from millrace.stages.neighbourhood.base import destinations

DATASET = "sbm:nodes=60,classes=3,degree=6,features=5,train=0.3"
DEVICES = ("cpu", "cuda")
QUEUES: dict[str, dict[str, Any]] = {"memory": {}, "zarr": {"queue": {"kind": "zarr"}}}
FEATURES: dict[str, dict[str, Any]] = {
    "of every rank": {},
    "owned": {"features": "owned"},
    "learned": {"learned": {"width": 4}},
}
MODELS = ("Millrace's", "of PyG", "own module")


TYPED = "hsbm:nodes=60,classes=3,features=5"
TYPED_JOBS: dict[str, dict[str, Any]] = {
    "`bulk`": {"system": "bulk"},
    "`bulk`, `labor`": {"system": "bulk", "sampler": {"name": "labor"}},
    "`bulk`, queue `zarr`": {"system": "bulk", **QUEUES["zarr"]},
    "`bulk`, `features = \"owned\"`": {"system": "bulk", **FEATURES["owned"]},
    "`bulk`, partitioned": {"system": "bulk", "bulk": {"topology": "partitioned"}},
    "`bulk`, partitioned, `ladies`": {
        "system": "bulk", "bulk": {"topology": "partitioned"}, "sampler": {"name": "ladies", "sizes": [30, 30]},
    },
    "`bulk`, partitioned, `1.5d`": {"system": "bulk", "bulk": {"topology": "partitioned", "algorithm": "1.5d"}},
    "`bulk`, learnt features": {"system": "bulk", **FEATURES["learned"]},
    "`bulk`, `train.compile`": {"system": "bulk", "train": {"compile": True}},
    "`bulk`, `device = \"cuda\"`": {"system": "bulk", "device": "cuda"},
    "`bulk`, `labor`, `device = \"cuda\"`": {"system": "bulk", "sampler": {"name": "labor"}, "device": "cuda"},
    "`bulk`, `labor`, `device = \"cuda\"`, `kernel = \"cpu\"`": {
        "system": "bulk", "sampler": {"name": "labor"}, "device": "cuda", "kernel": "cpu",
    },
    "`bulk`, `device = \"cuda\"`, `features = \"owned\"`": {"system": "bulk", "device": "cuda", **FEATURES["owned"]},
    "`bulk`, partitioned, `device = \"cuda\"`": {
        "system": "bulk", "device": "cuda", "bulk": {"topology": "partitioned"},
    },
    "`bulk`, partitioned, `labor`, `device = \"cuda\"`": {
        "system": "bulk", "device": "cuda", "bulk": {"topology": "partitioned"}, "sampler": {"name": "labor"},
    },
    "`sar`, `device = \"cuda\"`": {"system": "sar", "device": "cuda"},
    "`sar`": {"system": "sar"},
    "`grappa`": {"system": "grappa"},
    "`retexo`": {"system": "retexo"},
}  # fmt: skip
"""Jobs on a graph with several types of nodes and edges."""
TYPED_MODELS = ("rgcn", "hgt", "sage")


class Cell(NamedTuple):
    """One combination."""

    system: str
    device: str
    queue: str
    features: str
    model: str


class Own(nn.Module):
    """Layers of a user's own."""

    num_layers = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Linear(2 * width, 8), nn.Linear(16, 3)])

    def layer(self, i: int, neighbourhood: Any, h: torch.Tensor) -> torch.Tensor:
        """[num_src, D] -> [num_dst, D']."""
        return self.convs[i](torch.cat([destinations(neighbourhood, h), neighbourhood.mean(h)], 1))

    def forward(self, neighbourhoods: Any, h: torch.Tensor) -> torch.Tensor:
        """All layers, outermost first."""
        for i, neighbourhood in enumerate(neighbourhoods):
            h = self.layer(i, neighbourhood, h)
        return h


def cells() -> Iterator[Cell]:
    """All combinations."""
    for combination in product(SYSTEMS.available(), DEVICES, QUEUES, FEATURES, MODELS):
        yield Cell(*combination)


def options(cell: Cell) -> dict[str, Any]:
    """Arguments of `mr.run` for a cell."""
    width = 9 if cell.features == "learned" else 5
    model: Any = "sage"
    if cell.model == "own module":
        model = Own(width)
    elif cell.model == "of PyG":
        from torch_geometric.nn import SAGEConv

        model = mr.PyGModel([SAGEConv(width, 8), SAGEConv(8, 3)])
    sampled = {"fanout": [3, 3], "batch_size": 10} if SYSTEMS.find(cell.system).samples else {}
    shape = {"hidden": 8, "layers": 2} if model == "sage" else {}
    places = {**QUEUES[cell.queue], **FEATURES[cell.features]}
    return {"system": cell.system, "device": cell.device, "model": model, "epochs": 1, **sampled, **shape, **places}


def refusal(cell: Cell, dataset: mr.Dataset) -> str:
    """The sentence that refuses a cell; empty if it runs."""
    try:
        mr.dry_run(dataset, **options(cell))
    except mr.InputError as e:
        return str(e)
    return ""


def typed_refusal(job: str, model: str, dataset: mr.Dataset) -> str:
    """The sentence that refuses a job of `TYPED_JOBS` with a model; empty if it runs."""
    options = {"hidden": 8, "layers": 2}
    try:
        mr.dry_run(dataset, config={"epochs": 1, "model": {"name": model, **options}, **TYPED_JOBS[job]})
    except mr.InputError as e:
        return str(e)
    return ""


def typed_support() -> str:
    """The table of graphs with several types in Markdown, and its sentences."""
    dataset = mr.open_dataset(TYPED, seed=0)
    with with_gpu():
        told = {(j, m): typed_refusal(j, m, dataset) for j, m in product(TYPED_JOBS, TYPED_MODELS)}
    numbers: dict[str, int] = {}
    lines = ["| job | " + " | ".join(f"`{m}`" for m in TYPED_MODELS) + " |", "|" + " --- |" * (1 + len(TYPED_MODELS))]
    for job in TYPED_JOBS:
        cells = [told[job, model] for model in TYPED_MODELS]
        said = [f"no ({numbers.setdefault(c, len(numbers) + 1)})" if c else "yes" for c in cells]
        lines.append(f"| {job} | {' | '.join(said)} |")
    return "\n".join([*lines, "", *(f"{number}. {sentence}" for sentence, number in numbers.items())])


@contextmanager
def with_gpu() -> Iterator[None]:
    """Context in which checks answer as on a machine with a GPU."""
    there = ("device_policies.check_gpus", "checks.sampling_backend")
    with patch(f"millrace.pipeline.setup.{there[0]}"), patch(f"millrace.pipeline.setup.{there[1]}"):
        yield


def support() -> str:
    """The table in Markdown, and the sentences that it refers to."""
    dataset = mr.open_dataset(DATASET, seed=0)
    with with_gpu():
        told = {cell: refusal(cell, dataset) for cell in cells()}
    numbers: dict[str, int] = {}
    lines = ["| system | features | queue | " + " | ".join(f"`{d}`, {m}" for d, m in product(DEVICES, MODELS)) + " |"]
    lines.append("|" + " --- |" * (3 + len(DEVICES) * len(MODELS)))
    for system, features, queue in product(SYSTEMS.available(), FEATURES, QUEUES):
        row = [f"`{system}`", features, f"`{queue}`"]
        for device, model in product(DEVICES, MODELS):
            sentence = told[Cell(system, device, queue, features, model)]
            row.append(f"no ({numbers.setdefault(sentence, len(numbers) + 1)})" if sentence else "yes")
        lines.append("| " + " | ".join(row) + " |")
    listed = [f"{number}. {sentence}" for sentence, number in numbers.items()]
    return "\n".join(lines) + "\n\n" + "\n".join(listed)
