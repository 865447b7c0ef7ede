"""All keys of a job, given to `millrace sample`: those of its own work change the store or are refused, and those of
other stages are accepted and change nothing."""

import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import millrace as mr
from millrace.pipeline.config.job import Job
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.pipeline.setup.configure import check_used
from millrace.pipeline.telemetry.events import silent
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command
from millrace.tests.contracts.digests import minibatch_digest

SMALL = "sbm:nodes=60,classes=2,degree=4,features=3,train=0.4"
JOB: dict[str, Any] = {
    "dataset": SMALL,
    "split": "fraction:0.4,0.2",
    "epochs": 1,
    "sampler": {"fanout": [3, 2]},
    "train": {"batch_size": 8},
    "queue": {"bulk_size": 2},
}
OWN: dict[str, Any] = {
    "dataset": "sbm:nodes=61,classes=2,degree=4,features=3,train=0.4",
    "split": "fraction:0.5,0.2",
    "epochs": 2,
    "seed": 1,
    "seeds.split": 1,
    "seeds.minibatches": 1,
    "system": "grappa",
    "kernel": "cugraph",
    "train.batch_size": 9,
    "queue.bulk_size": 3,
    "bulk.local_seeds": True,
    "bulk.algorithm": "1.5d",
    "bulk.replication": 2,
    "bulk.cache_fraction": 0.5,
    "link.negatives": "degree",
    "link.width": 8,
    "link.decoder": "mlp",
    "link.negative_ends": "both",
    "link.num_negatives": 2,
    "link.shared_negatives": True,
    "link.exclude_known": True,
    "link.ranked": "both",
    "features": "mapped",
    "graph": "mapped",
    "partition.method": "metis",
    "partition.balance": "edges",
    "partition.passes": 2,
    "partition.owners": "owners.npy",
    "sampler.fanout": [2, 2],
    "sampler.name": "ladies",
}
"""Keys of the work of `millrace sample`, with other values than `JOB` has."""
WITH_NAMES = {
    "start_from": "nowhere",
    "track": ["tensorboard"],
    "train.optimizer": "adamw",
    "train.monitor": "accuracy",
    "train.metrics": ["macro_f1"],
    "train.loss.class_weights": "balanced",
    "train.loss.pos_weight": 2.0,
    "train.groups": [{"match": "x"}],
    "queue.location": "elsewhere",
    "model.hidden": 16,
    "model.name": "gcn",
    "cluster.host": "127.0.0.1",
    "retexo.clients": "nodes",
    "device": "cpu",
}
ELSEWHERE = ("read.", "cluster.tls_", "cluster.scheduler", "cluster.insecure")
"""Keys that say how any command reads its data and reaches its cluster."""


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its field."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        elif name not in ("model", "sampler", "read"):
            yield prefix + name, field


def other(key: str, field: Any) -> Any:
    """A value of a key that is not its default."""
    if key in WITH_NAMES:
        return WITH_NAMES[key]
    default, kinds = field.get_default(call_default_factory=True), [field.annotation]
    if isinstance(field.annotation, types.UnionType) or typing.get_origin(field.annotation) is typing.Union:
        kinds = [k for k in typing.get_args(field.annotation) if k is not type(None)]
    kind = kinds[0]
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Literal:
        return next(v for v in typing.get_args(kind) if v != default)
    if kind is bool:
        return not default
    if kind is int:
        return default + 1 if type(default) is int else 1
    if kind is float:
        return 0.5 if default in (None, 0.0) else default / 2 if default < 2 else default + 1
    return {} if typing.get_origin(kind) is dict else []


KEYS = {k: other(k, f) for k, f in leaves(Job) if not k.startswith(ELSEWHERE) and k not in OWN} | {
    k: v for k, v in WITH_NAMES.items() if k.startswith("model.")
}


def with_key(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.rpartition(".")
    table: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in JOB.items()}
    into = table
    for part in section.split(".") if section else []:
        into = into.setdefault(part, {})
    into[name] = value
    if (key, value) == ("sampler.name", "ladies"):
        into["sizes"] = into.pop("fanout")
    return table


def sampled(table: dict[str, Any], out: Path) -> Any:
    job = resolve(table)
    check_used([job], trains=False)
    precompute(job, out, emit=silent, stop=lambda: False)
    queue = mr.open_queue(out)
    return queue.bulk_size, [(m.epoch, m.index, minibatch_digest(m)) for m in queue]


@cache
def usual(folder: Path) -> Any:
    return sampled(JOB, folder / "usual")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.mark.parametrize("key", OWN)
def test_a_key_of_its_own_work_is_used_or_refused(key: str, folder: Path) -> None:
    found, refusal = None, ""
    try:
        found = sampled(with_key(key, OWN[key]), folder / key)
    except InputError as e:
        refusal = str(e)
    assert found != usual(folder)
    assert found is not None or key.rpartition(".")[2] in refusal or str(OWN[key]) in refusal
    assert (folder / key).exists() == (found is not None)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_another_stage_is_accepted_and_changes_nothing(key: str, folder: Path) -> None:
    assert sampled(with_key(key, KEYS[key]), folder / key) == usual(folder)


def test_every_key_is_here() -> None:
    assert len(KEYS) + len(OWN) > 100


def test_flags_of_training_go_with_samples_and_a_cut(folder: Path) -> None:
    given = ["--hidden", "16", "--layers", "2", "--lr", "0.1", "--dropout", "0", "--ranks", "2", "--dtype", "float64"]
    code, said, err = command("sample", "--dataset", SMALL, "--epochs", "1", *given, "--out", folder / "flags")
    assert code == 0 and "1 minibatch" in said, err
    code, _, err = command("partition", SMALL, "--parts", "2", *given, "--fanout", "3,2", "--out", folder / "parts")
    assert code == 0, err
    code, _, err = command("sample", "--dataset", SMALL, "--set", "partition.method=leiden", "--out", folder / "no")
    assert code == 2 and "partition.method is set, but nothing is cut" in err
