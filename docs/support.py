"""The support table: what a job of each system, device, queue, place of features and kind of model is told.

Each cell is a dry run of a job on a small dataset, as on a machine with a GPU: the registry's capabilities and the
checks of jobs answer. `tests/contracts/support_cells.py` executes those that say yes, and notes it in `RECORD`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

import millrace as mr
from millrace.pipeline.commands.doctor import supported
from millrace.pipeline.config.systems import SYSTEMS
from millrace.stages.neighbourhood.base import destinations

RECORD = Path(__file__).with_suffix(".json")
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
    "`bulk`, learnt features, `device = \"cuda\"`": {"system": "bulk", "device": "cuda", **FEATURES["learned"]},
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


TIMED = "tsbm:nodes=60"
PAYMENTS = "payments:accounts=30,degree=3,features=5"
LINK_JOBS: dict[str, dict[str, Any]] = {
    "`bulk`": {"system": "bulk"},
    "`bulk`, queue `zarr`": {"system": "bulk", **QUEUES["zarr"]},
    "`bulk`, `features = \"owned\"`": {"system": "bulk", **FEATURES["owned"]},
    "`bulk`, partitioned": {"system": "bulk", "bulk": {"topology": "partitioned"}},
    "`bulk`, learnt features": {"system": "bulk", **FEATURES["learned"]},
    "`bulk`, `device = \"cuda\"`": {"system": "bulk", "device": "cuda"},
    "`bulk`, `device = \"cuda\"`, queue `zarr`": {"system": "bulk", "device": "cuda", **QUEUES["zarr"]},
    "`bulk`, `device = \"cuda\"`, `kernel = \"cuda\"`": {"system": "bulk", "device": "cuda", "kernel": "cuda"},
    "`bulk`, `device = \"cuda\"`, `features = \"owned\"`": {"system": "bulk", "device": "cuda", **FEATURES["owned"]},
    "`bulk`, partitioned, `device = \"cuda\"`": {
        "system": "bulk", "device": "cuda", "bulk": {"topology": "partitioned"},
    },
    "`bulk`, learnt features, `device = \"cuda\"`": {"system": "bulk", "device": "cuda", **FEATURES["learned"]},
    "`grappa`": {"system": "grappa"},
    "`grappa`, `device = \"cuda\"`": {"system": "grappa", "device": "cuda"},
    "`sar`": {"system": "sar"},
    "`retexo`": {"system": "retexo"},
}  # fmt: skip
"""Jobs that score links, or whose minibatches are drawn by time."""


class Column(NamedTuple):
    """A kind of dataset in a table of jobs, with the options that it asks for."""

    dataset: mr.Dataset
    options: dict[str, Any]


class Cell(NamedTuple):
    """One combination."""

    system: str
    device: str
    queue: str
    features: str
    model: str

    @property
    def name(self) -> str:
        """Its place in the table."""
        return f"`{self.system}`, {self.device}, queue {self.queue}, features {self.features}, {self.model}"


class Asked(NamedTuple):
    """A cell of any of the tables: a dataset, and the other arguments of `mr.run`."""

    name: str
    dataset: mr.Dataset
    arguments: dict[str, Any]

    @property
    def on_device(self) -> bool:
        """True if it runs on a GPU."""
        return self.arguments.get("config", self.arguments).get("device") == "cuda"


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


def answer(dataset: mr.Dataset, **job: Any) -> tuple[str, str]:
    """What a job is told: ``yes``, ``no`` or, where the question makes no sense, ``-``; and the sentence that refuses
    it."""
    try:
        mr.dry_run(dataset, **job)
    except mr.InputError as e:
        row = getattr(e, "row", None)
        return "no" if row is None or row.applies else "-", str(e)
    return "yes", ""


def refusal(cell: Cell, dataset: mr.Dataset) -> str:
    """The sentence that refuses a cell; empty if it runs."""
    return answer(dataset, **options(cell))[1]


def job_config(job: dict[str, Any], column: Column) -> dict[str, Any]:
    """Configuration of a job of a column."""
    both = {key: {**value, **column.options.get(key, {})} for key, value in job.items() if isinstance(value, dict)}
    return {"epochs": 1, **job, **column.options, **both}


def job_answer(job: dict[str, Any], column: Column) -> tuple[str, str]:
    """What a job of a column is told."""
    return answer(column.dataset, config=job_config(job, column))


def asked() -> Iterator[Asked]:
    """The cells of all tables, with new modules of the same parameters in each call."""
    torch.manual_seed(0)
    dataset = mr.open_dataset(DATASET, seed=0)
    for cell in cells():
        yield Asked(cell.name, dataset, options(cell))
    for jobs, columns in ((TYPED_JOBS, typed_columns()), (LINK_JOBS, link_columns())):
        for (job, given), (name, column) in product(jobs.items(), columns.items()):
            yield Asked(f"{job}, {name}", column.dataset, {"config": job_config(given, column)})


@cache
def answers() -> dict[str, tuple[str, str]]:
    """Sentence of each cell of the tables."""
    with with_gpu():
        return {cell.name: answer(cell.dataset, **cell.arguments) for cell in asked()}


def accepted() -> list[str]:
    """Names of the cells that say yes."""
    return [name for name, (word, _) in answers().items() if word == "yes"]


def executed() -> str:
    """The sentence that says when the cells were executed, and which were not."""
    record = json.loads(RECORD.read_text())
    lacking = [name for name in accepted() if name not in record["cells"]]
    count, days = len(accepted()) - len(lacking), " and ".join(sorted(set(record["cells"].values())))
    text = f"`make support` ran on {days} (torch {record['torch']}, {record['device']}): {count} of "
    text += f"the {count + len(lacking)} cells that say `yes` ended as they should."
    return text + (f" Not executed yet: {'; '.join(lacking)}." if lacking else "")


def shown(told: tuple[str, str], numbers: dict[str, int]) -> str:
    """A cell of a table; `numbers` are those of the sentences."""
    word, sentence = told
    return f"{word} ({numbers.setdefault(sentence, len(numbers) + 1)})" if sentence else word


def job_table(jobs: dict[str, dict[str, Any]], columns: dict[str, Column]) -> str:
    """A table in Markdown of the jobs that run, and the sentences that refuse the others."""
    numbers: dict[str, int] = {}
    lines = ["| job | " + " | ".join(columns) + " |", "|" + " --- |" * (1 + len(columns))]
    lines += [f"| {job} | {' | '.join(shown(answers()[f'{job}, {c}'], numbers) for c in columns)} |" for job in jobs]
    return "\n".join([*lines, "", *(f"{number}. {sentence}" for sentence, number in numbers.items())])


def typed_columns() -> dict[str, Column]:
    """Models of the table of graphs with several types."""
    dataset = mr.open_dataset(TYPED, seed=0)
    return {f"`{m}`": Column(dataset, {"model": {"name": m, "hidden": 8, "layers": 2}}) for m in TYPED_MODELS}


def typed_support() -> str:
    """The table of graphs with several types."""
    return job_table(TYPED_JOBS, typed_columns())


def link_columns() -> dict[str, Column]:
    """Data of the table of links, of samples by time, and of labels of edges."""
    plain, typed, timed = (mr.open_dataset(spec, seed=0) for spec in (DATASET, TYPED, TIMED))
    sage, rgcn = ({"model": {"name": name, "hidden": 8, "layers": 2}} for name in ("sage", "rgcn"))
    by_time = {**sage, "sampler": {"name": "temporal", "fanout": [3, 3]}}
    relation = mr.link_dataset(typed, relation=typed.graph.types.relations[0])
    ends = relation.labels[:, :2] - relation.labels[:, :2].min(0)  # ids within the types
    rated = mr.edge_dataset(typed, ends, ends[:, 0] % 3, relation=typed.graph.types.relations[0])
    payments = mr.open_dataset(PAYMENTS)
    return {
        "links": Column(mr.link_dataset(plain), sage),
        "links of a relation": Column(relation, rgcn),
        "links by time": Column(mr.link_dataset(timed, split="time:0.7,0.15"), by_time),
        "nodes by time": Column(timed, by_time),
        "labels of edges": Column(payments, sage),
        "... of a relation": Column(rated, rgcn),
        "... by time": Column(mr.open_dataset(PAYMENTS, split="time:0.6,0.2"), by_time),
    }


def link_cells() -> Iterator[tuple[dict[str, Any], Column]]:
    """All jobs and columns of that table."""
    yield from product(LINK_JOBS.values(), link_columns().values())


def link_support() -> str:
    """The table of links, of samples by time, and of labels of edges."""
    return job_table(LINK_JOBS, link_columns())


@contextmanager
def with_gpu() -> Iterator[None]:
    """Context in which checks answer as on a machine with a GPU."""
    there = ("device_policies.check_gpus", "checks.sampling_backend")
    with patch(f"millrace.pipeline.setup.{there[0]}"), patch(f"millrace.pipeline.setup.{there[1]}"):
        yield


def support() -> str:
    """The table in Markdown, and the sentences that it refers to."""
    numbers: dict[str, int] = {}
    lines = ["| system | features | queue | " + " | ".join(f"`{d}`, {m}" for d, m in product(DEVICES, MODELS)) + " |"]
    lines.append("|" + " --- |" * (3 + len(DEVICES) * len(MODELS)))
    for system, features, queue in product(SYSTEMS.available(), FEATURES, QUEUES):
        row = [f"`{system}`", features, f"`{queue}`"]
        for device, model in product(DEVICES, MODELS):
            row.append(shown(answers()[Cell(system, device, queue, features, model).name], numbers))
        lines.append("| " + " | ".join(row) + " |")
    listed = [f"{number}. {sentence}" for sentence, number in numbers.items()]
    return "\n".join(lines) + "\n\n" + "\n".join(listed)


def rows() -> str:
    """The table in Markdown of what systems, their forms and conversions cannot do, with a reason for each."""
    lines = [f"| {part} | {need} | {why} |" for part, found in supported().items() for need, why in found.items()]
    return "\n".join(["| part | asked for | why not |", "| --- | --- | --- |", *lines])
