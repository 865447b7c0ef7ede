"""The command line as its users meet it: every mistake is a sentence, every command says what it did, nothing is
half-written."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer

from millrace.pipeline import cli
from millrace.pipeline.cluster.signals import heeded
from millrace.pipeline.commands import doctor
from millrace.pipeline.config.aliases import SHORTHANDS
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup.run_folder import locked
from millrace.pipeline.telemetry.events import StageStarted
from millrace.tests.contracts.forked_command import ForkedCommand

SBM = "sbm:nodes=60,classes=2,degree=4,features=3"
OTHER = "sbm:nodes=60,classes=2,degree=4,features=3,seed=1"
SMALL = (
    "--dataset",
    SBM,
    "--epochs",
    "2",
    "--batch-size",
    "2",
    "--fanout",
    "3,2",
    "--hidden",
    "4",
    "--set",
    "threads=1",
)
GOOD = {
    "edge_index": np.array([[0, 1, 1, 2], [1, 0, 2, 1]]),
    "y": np.array([0, 1, 0]),
    "x": np.ones((3, 2), np.float32),
    "train_idx": np.array([0]),
    "val_idx": np.array([1]),
    "test_idx": np.array([2]),
}


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def record(self) -> Any:
        """Standard output, which must be one line of strict JSON."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def millrace(*words: str | Path) -> Done:
    """The command in this process: `main`, with these words after its name."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["millrace", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        sys.argv = before
    assert isinstance(left.value.code, int)
    return Done(left.value.code, out.getvalue(), err.getvalue())


def done(*words: str | Path) -> Done:
    seen = millrace(*words)
    assert seen.code == 0, seen.err
    return seen


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A folder of good things, and of good things that were then damaged."""
    w = tmp_path_factory.mktemp("world")
    bad: dict[str, dict[str, Any]] = {
        "good": {},
        "noedges": {"edge_index": None},
        "nan": {"x": np.array([[1.0], [np.nan], [0.0]])},
        "range": {"edge_index": np.array([[0, 7], [7, 0]])},
        "overlap": {"train_idx": np.array([0, 1])},
        "notrain": {"train_idx": np.empty(0, np.int64)},
        "oneway": {"edge_index": np.array([[0], [1]])},
    }
    for name, changes in bad.items():
        np.savez(w / f"{name}.npz", **{k: v for k, v in {**GOOD, **changes}.items() if v is not None})
    (w / "cut.npz").write_bytes((w / "good.npz").read_bytes()[:300])
    (w / "text.npz").write_text("0 1\n1 0\n")
    (w / "bad.toml").write_text("epochs = [")
    (w / "unknown.toml").write_text('[train]\nlearning_rate = 0.1\n[modle]\nname = "sage"\n')
    (w / "latin.toml").write_bytes(b'dataset = "\xe4"')
    (w / "empty").mkdir()
    done("run", *SMALL, "--out", w / "run")
    for name in ("unfinished", "spoilt-model", "spoilt-checkpoints", "spoilt-result"):
        shutil.copytree(w / "run", w / name)
    (w / "unfinished" / "model.pt").unlink()
    (w / "unfinished" / "result.json").unlink()
    (w / "spoilt-model" / "model.pt").write_bytes(b"no model")
    (w / "spoilt-result" / "result.json").write_text("{")
    for state in (w / "spoilt-checkpoints" / "checkpoints").glob("*/state.pt"):
        flip(state, 1000)
    done("sample", *SMALL[:8], "--out", w / "samples")
    for name in ("lost-bulk", "lost-complete", "flipped-bulk"):
        shutil.copytree(w / "samples", w / name)
    shutil.rmtree(w / "lost-bulk" / "epoch-1" / "bulk-0")
    shutil.rmtree(w / "lost-complete" / "complete")
    shutil.rmtree(w / "lost-complete" / "epoch-1")
    shard = next(
        p for p in (w / "flipped-bulk" / "epoch-0").rglob("*") if p.is_file() and p.name == "0" and "c" in p.parts
    )
    flip(shard, 40)
    done("convert", SBM, "--out", w / "store")
    for name in ("flipped", "lost-chunk", "lost-manifest", "old-schema", "false-manifest"):
        shutil.copytree(w / "store", w / name)
    chunks = [p for p in (w / "flipped" / "arrays" / "indices" / "c").rglob("*") if p.is_file()]
    flip(chunks[0], 20)
    shutil.rmtree(w / "lost-chunk" / "arrays" / "features" / "c")
    (w / "lost-manifest" / "manifest.json").unlink()
    edit(w / "old-schema" / "manifest.json", '"schema_version": 2', '"schema_version": 0')
    edit(w / "false-manifest" / "manifest.json", '"num_classes": 2', '"num_classes": 3')
    done("partition", SBM, "--parts", "2", "--method", "hash", "--out", w / "parts")
    return w


def command(text: str) -> Callable[[Path], list[str]]:
    """Words of a command line. W stands for the world, NEW for a folder that does not exist; @name=... names a data set
    of it."""
    return lambda w: [
        word.replace("W/", f"{w}/").replace("NEW", str(w / "new")).replace("SBM", SBM).replace("OTHER", OTHER)
        for word in text.split()
    ]


RUN = "run --dataset SBM --epochs 1 --set threads=1 --out NEW"
SAMPLED = "train --dataset SBM --epochs 2 --batch-size 2 --fanout 3,2 --out NEW --set threads=1"
AGAIN = "run --resume --out W/run"

BAD = {
    "data: nothing there": ("run --dataset W/none.npz --out NEW", "neither a file nor a known dataset"),
    "data: public, of PyG": ("run --dataset cora --out NEW", "mr.from_pyg(Planetoid('data', 'Cora')[0], name='cora')"),
    "data: unknown name": ("run --dataset diggits --out NEW", "did you mean 'digits'"),
    "data: a folder of nothing": ("run --dataset W/empty --out NEW", "or *.csv, but nothing; expected tables called"),
    "data: truncated": ("run --dataset W/cut.npz --out NEW", "damaged or not an .npz file"),
    "data: text": ("run --dataset W/text.npz --out NEW", "is not an .npz file"),
    "data: a job file": ("run --dataset W/bad.toml --out NEW", "bad.toml is a job, and no dataset: give it without"),
    "data: no edges": ("run --dataset W/noedges.npz --out NEW", "no key 'edge_index'"),
    "data: NaN": ("run --dataset W/nan.npz --out NEW", "set read.nan_features=zero"),
    "data: ids out of range": ("run --dataset W/range.npz --out NEW", "out of range for 3 nodes"),
    "data: overlapping split": ("run --dataset W/overlap.npz --out NEW", "read.overlapping_splits=first"),
    "data: empty train split": ("run --dataset W/notrain.npz --out NEW", "train split is empty"),
    "data: direction unknown": ("run --dataset W/oneway.npz --out NEW", "read.direction=undirected"),
    "data: unknown parameter": ("run --dataset sbm:node=60 --out NEW", "did you mean 'nodes'"),
    "data: split unknown": (f"{RUN} --split publik", "did you mean 'public'"),
    "data: split too large": (f"{RUN} --split random:100,100", "ask for fewer"),
    "data: given as job file": ("run SBM", "--dataset sbm:nodes=60"),
    "data: npz given as job file": ("run W/good.npz", "give a dataset as --dataset"),
    "data: mapped, but no store": (f"{RUN} --set features=mapped", "is not a Millrace store"),
    "data: mapped, but written as zarr": (
        "run --dataset W/store --set features=mapped --out NEW",
        "features_format='zarr'",
    ),
    "data: graph mapped, but no store": (f"{RUN} --set graph=mapped", "graph is 'mapped', but sbm:"),
    "data: graph mapped, but written as zarr": (
        "run --dataset W/store --set graph=mapped --out NEW",
        "graph_format='zarr', compressed",
    ),
    "store: flipped bit": ("run --dataset W/flipped --out NEW", "'indices' is damaged"),
    "store: missing chunk": ("run --dataset W/lost-chunk --out NEW", "lacks 1 of its"),
    "store: missing manifest": ("run --dataset W/lost-manifest --out NEW", "holds no manifest.json"),
    "store: other schema": ("run --dataset W/old-schema --out NEW", "schema version 0; this Millrace reads version 2"),
    "store: manifest altered": ("run --dataset W/false-manifest --out NEW", "does not match its checksum"),
    "store: another kind": ("run --dataset W/samples --out NEW", "expected 'millrace-dataset'"),
    "samples: none": (f"{SAMPLED} --samples W/none", "holds no manifest.json"),
    "samples: of another graph": (f"{SAMPLED} --samples W/samples --dataset OTHER", "these differ: graph"),
    "samples: of another seed": (f"{SAMPLED} --samples W/samples --seed 1", "these differ: seed (store 0, wanted 1)"),
    "samples: of another fanout": (f"{SAMPLED} --samples W/samples --fanout 2,2", "these differ: sampler"),
    "samples: of another batch size": (
        f"{SAMPLED} --samples W/samples --batch-size 3",
        "these differ: batch_size (store 2, wanted 3)",
    ),
    "samples: too few epochs": (f"{SAMPLED} --samples W/samples --epochs 3", "holds 2 epochs, but epochs is 3"),
    "samples: a bulk lost": (f"{SAMPLED} --samples W/lost-bulk", "epoch 1 has 0 of 1 bulks"),
    "samples: half-finished": (f"{SAMPLED} --samples W/lost-complete", "is not finished: epoch 1 has 0 of 1 bulks"),
    "samples: a dataset": (f"{SAMPLED} --samples W/store", "expected 'millrace-samples'"),
    "samples: into another's": ("sample --dataset SBM --batch-size 3 --out W/samples", "these differ: batch_size"),
    "samples: into a run": ("sample --dataset SBM --out W/run", "exists already"),
    "samples: into a file": ("sample --dataset SBM --out W/good.npz", "exists already"),
    "key: no such file": ("run W/none.toml", "does not exist; expected a TOML job file"),
    "key: a folder": ("run W/empty", "empty was read as a TOML job file; give a dataset as --dataset"),
    "key: no TOML": ("run W/bad.toml --out NEW", "is not valid TOML"),
    "key: no UTF-8": ("run W/latin.toml --out NEW", "is not valid TOML"),
    "key: unknown ones": ("run W/unknown.toml --out NEW", "unknown configuration key 'train.learning_rate'"),
    "key: unknown, set": (f"{RUN} --set epoch=3", "did you mean 'epochs'"),
    "key: in no section": (f"{RUN} --set bach_size=3", "did you mean 'train.batch_size'"),
    "key: wrong type": (f"{RUN} --set train.lr=fast", "'train.lr' is 'fast'"),
    "key: a section as a number": (f"{RUN} --set train=3", "'train' is 3"),
    "key: model as a number": (f"{RUN} --set model=3", "'model' is 3"),
    "key: set without =": (f"{RUN} --set epochs", "not of the form key=value"),
    "key: set nothing": (f"{RUN} --set =", "not of the form key=value"),
    "key: into a value": (f"{RUN} --set dataset.name=x", "expected a table"),
    "key: fanout no number": (f"{RUN} --fanout 3,x", "fanout '3,x' is not a list"),
    "key: fanout zero": (f"{RUN} --fanout 3,0", "holds 0"),
    "key: fanout huge": (f"{RUN} --fanout 100000", "expected 1 to 65536"),
    "key: fanout a fraction": (f"{RUN} --set sampler.fanout=3.5", "expected whole numbers"),
    "key: fanout empty": (f"{RUN} --set sampler.fanout=[]", "layers is 0"),
    "key: fanout against layers": (f"{RUN} --fanout 3,3 --layers 3", "give one number per layer"),
    "key: no layers": (f"{RUN} --layers 0", "layers is 0"),
    "key: no width": (f"{RUN} --hidden 0", "hidden is 0"),
    "key: unknown model": (f"{RUN} --model sagee", "did you mean 'sage'"),
    "key: model's name a list": (f"{RUN} --set model.name=[1]", "model.name is '[1]'"),
    "key: option of another model": (f"{RUN} --set model.heads=2", "model 'sage' has no option 'heads'"),
    "key: unknown sampler": (f"{RUN} --set sampler.name=neighbour", "did you mean 'neighbor'"),
    "key: unknown system": (f"{RUN} --system bluk", "'system' is 'bluk'"),
    "key: unknown optimizer": (f"{RUN} --set train.optimizer=lion", "train.optimizer is 'lion'; expected one of"),
    "key: no epochs": (f"{RUN} --epochs -1", "'epochs' is -1"),
    "key: batch of none": (f"{RUN} --batch-size 0", "'train.batch_size' is 0"),
    "key: dtype": (f"{RUN} --dtype float16", "'dtype' is 'float16'"),
    "key: learning rate NaN": (f"{RUN} --lr nan", "'train.lr' is nan"),
    "key: learning rate infinite": (f"{RUN} --lr inf", "'train.lr' is inf"),
    "key: dropout of all": (f"{RUN} --dropout 1.5", "dropout is 1.5"),
    "key: seed negative": (f"{RUN} --seed -1", "'seed' is -1"),
    "key: queue in memory keeps all": (f"{RUN} --set queue.keep=all", "use the Zarr queue"),
    "key: no GPU for this": (
        f"{RUN} --device cuda --set kernel=cuda --set sampler.name=labor --set bulk.topology=partitioned",
        "for neighbor only, but the sampler is labor",
    ),
    "sar: fanout": (f"{RUN} --system sar --fanout 3,2", "system 'sar' samples nothing"),
    "sar: a sampler": (f"{RUN} --system sar --set sampler.name=ladies", "system 'sar' samples nothing"),
    "sar: batch size": (f"{RUN} --system sar --batch-size 8", "takes all train nodes in one step"),
    "sar: minibatches a step": (
        f"{RUN} --system sar --set train.minibatches_per_step=1",
        "takes all train nodes in one step",
    ),
    "sar: a queue": (f"{RUN} --system sar --set queue.kind=zarr", "has no minibatches to queue"),
    "sar: reuse": (f"{RUN} --system sar --reuse cycle", "has no minibatches to queue"),
    "sar: samples": (f"{RUN} --system sar --samples W/samples", "trains on no minibatches"),
    "sar: features owned": (
        f"{RUN} --system sar --set features=owned",
        "keeps each row on the rank that trains its node",
    ),
    "sar: partitioner unknown": (f"{RUN} --system sar --set partition.method=metiss", "did you mean 'metis'"),
    "sar: mode unknown": (
        f"{RUN} --system sar --set sar.mode=hallo",
        "'sar.mode' is 'hallo': expected rematerialize, keep, halo or auto",
    ),
    "sar: mode unknown for a layer": (
        f'{RUN} --system sar --set sar.mode=["hallo"]',
        "expected rematerialize, keep, halo or auto",
    ),
    "sar: auto for a layer": (f'{RUN} --system sar --set sar.mode=["auto"]', "a list of the first three"),
    "sar: modes for other layers": (
        f'{RUN} --system sar --set sar.mode=["keep","halo"]',
        "sar has 2 modes for a model of 3 layers",
    ),
    "sar: no memory": (f"{RUN} --system sar --set sar.memory_bytes=0", "'sar.memory_bytes' is 0"),
    "sar: data without train nodes": ("run --system sar --dataset W/notrain.npz --out NEW", "train split is empty"),
    "sar: sampled beforehand": ("sample --dataset SBM --set system=sar --out NEW", "does not sample minibatches"),
    "sar: a fanout to sample": (
        "sample --dataset SBM --set system=sar --fanout 3,2 --out NEW",
        "system 'sar' samples nothing",
    ),
    "sar: resume of another system": (f"{AGAIN} --system sar", "'sampler' is"),
    "run: flag unknown": ("run --nope", "No such option: --nope"),
    "run: flag of another library": ("run --learning-rate 1", "no such option: --learning-rate; give --lr"),
    "run: flag for a key": ("run --weight-decay 1", "give --set train.weight_decay=..."),
    "sample: flag of run alone": ("sample --resume", "no such option: --resume"),
    "run: flag that cannot be": ("run --callbacks 1", "no such option: --callbacks; it is code, not a key"),
    "run: flag without value": ("run --epochs", "requires an argument"),
    "run: flag of another type": ("run --epochs many", "Invalid value for '--epochs'"),
    "run: two job files": ("run a.toml b.toml", "unexpected extra argument"),
    "run: command unknown": ("trian", "No such command 'trian'"),
    "run: resume where": ("run --resume", "--resume needs --out"),
    "run: resume nothing": ("run --resume --out NEW", "holds no run to resume"),
    "run: resume a store": ("run --resume --out W/store", "holds no run to resume"),
    "run: resume as another model": (f"{AGAIN} --model gat", "model.name (was sage, now gat); resume with the same"),
    "run: resume at another rate": (
        f"{AGAIN} --lr 0.5 --epochs 9",
        "train.lr (was 0.003, now 0.5); resume with the same",
    ),
    "run: resume on another graph": (f"{AGAIN} --dataset OTHER", "dataset (was"),
    "run: resume without an intact checkpoint": ("run --resume --out W/spoilt-checkpoints", "none that can be used"),
    "run: into a run": ("run --dataset SBM --out W/run", "already holds a run"),
    "run: into something else": ("run --dataset SBM --out W/store", "is not an empty folder"),
    "run: into a file": ("run --dataset SBM --out W/good.npz", "is not an empty folder"),
    "run: into a name too long": (f"run --dataset SBM --out W/{'x' * 300}", "longer than the file system allows"),
    "run: below a file": ("run --dataset SBM --out W/good.npz/x", "cannot write the folder"),
    "parts: none": ("partition SBM --parts 0 --out NEW", "parts is 0"),
    "parts: method": ("partition SBM --parts 2 --method metiss --out NEW", "did you mean 'metis'"),
    "parts: balance": ("partition SBM --parts 2 --balance train --out NEW", "'metis' has no option 'balance'"),
    "parts: method of owners": (
        "partition SBM --parts 2 --method hash --set partition.owners=o.npy --out NEW",
        "--method is hash, but partition.owners decides who owns a node",
    ),
    "parts: balance of owners": (
        "partition SBM --parts 2 --set partition.owners=o.npy --passes 3 --out NEW",
        "partition.passes is set, but partition.owners decides",
    ),
    "parts: no number given": ("partition SBM --out NEW", "Missing option '--parts'"),
    "parts: no dataset given": ("partition --parts 2 --out NEW", "Missing argument"),
    "parts: of something else there": (
        "partition SBM --parts 3 --method hash --out W/parts",
        "these differ: parts (store 2, wanted 3)",
    ),
    "parts: into a run": ("partition SBM --parts 2 --out W/run", "holds no partitions"),
    "parts: into a folder without a name": ("partition SBM --parts 2 --out .", "expected the name of a new one"),
    "parts: as a store without a name": ("partition SBM --parts 2 --into /", "expected the name of a new one"),
    "sample: into a folder without a name": ("sample --dataset SBM --out .", "expected the name of a new one"),
    "convert: into a folder without a name": ("convert SBM --out .", "expected the name of a new one, such as"),
    "convert: there already": ("convert SBM --out W/store", "already exists"),
    "convert: format": ("convert SBM --out NEW --features zar", "did you mean 'zarr'"),
    "evaluate: nothing there": ("evaluate W/none", "holds no run"),
    "evaluate: a store": ("evaluate W/store", "holds no run"),
    "evaluate: unfinished": ("evaluate W/unfinished", "has not finished"),
    "evaluate: model damaged": (
        "evaluate W/spoilt-model",
        "model.pt does not match its digest in result.json: it is damaged",
    ),
    "evaluate: data that does not fit": ("evaluate W/run --dataset W/good.npz", "good has 2 features, but sage of"),
    "evaluate: other classes": (
        "evaluate W/run --dataset sbm:nodes=60,classes=3,features=3",
        "predicts 2 classes (multiclass); give data with the same",
    ),
    "inspect: nothing there": ("inspect W/none", "neither a file nor a known dataset"),
    "inspect: a folder of nothing": ("inspect W/empty", "holds no manifest.json"),
    "inspect: result damaged": ("inspect W/spoilt-result", "result.json is damaged"),
    "inspect: store damaged": ("inspect W/old-schema", "schema version 0"),
    "inspect: minibatch of a run": ("inspect W/run --minibatch 0,0", "--minibatch needs a store of samples"),
    "inspect: a run to be read otherwise": (
        "inspect W/run --set read.direction=reverse",
        "--set changes how a dataset is read, but",
    ),
    "inspect: minibatch malformed": ("inspect W/samples --minibatch 3", "not of the form EPOCH,INDEX"),
    "inspect: minibatch no number": ("inspect W/samples --minibatch a,b", "not of the form EPOCH,INDEX"),
    "inspect: minibatch out of range": ("inspect W/samples --minibatch 0,3", "holds no minibatch 0,3"),
    "inspect: epoch out of range": ("inspect W/samples --minibatch 2,0", "holds no minibatch 2,0"),
    "inspect: minibatch negative": ("inspect W/samples --minibatch -1,-1", "holds no minibatch -1,-1"),
    "inspect: minibatch damaged": ("inspect W/flipped-bulk --minibatch 0,0", "damaged"),
}


@pytest.mark.parametrize(("words", "phrase"), BAD.values(), ids=BAD.keys())
def test_a_mistake_is_a_sentence_and_changes_nothing(world, words, phrase):
    before = contents(world)
    seen = millrace(*command(words)(world))
    assert seen.code == 2, seen
    assert phrase in seen.err
    assert seen.out == ""
    assert 1 <= len(seen.err.splitlines()) <= 3, seen.err
    assert "Traceback" not in seen.err
    assert contents(world) == before


def test_several_unknown_keys_are_told_at_once(world):
    err = millrace("run", world / "unknown.toml").err
    assert "learning_rate" in err
    assert "did you mean 'model'" in err


def test_damage_that_shows_in_mid_run_can_be_mended(world, tmp_path):
    """Stored samples are read as they are needed: the run ends, and goes on once they are good."""
    samples, out = tmp_path / "samples", tmp_path / "run"
    shutil.copytree(world / "flipped-bulk", samples)
    words = (*SMALL, "--samples", samples, "--out", out)
    seen = millrace("train", *words)
    assert (seen.code, "damaged" in seen.err, "Traceback" in seen.err) == (2, True, False), seen.err
    shutil.rmtree(samples / "epoch-0" / "bulk-0")
    done("sample", *SMALL[:8], "--out", samples)
    mended = done("train", *words, "--resume", "--json").record
    assert mended["parameters_sha256"] == json.loads((world / "run" / "result.json").read_text())["parameters_sha256"]


COMMANDS = typer.main.get_command(cli.app).commands


def test_help_and_version():
    for words in ((), ("--help",), ("-h",)):
        seen = done(*words)
        assert all(name in seen.out for name in COMMANDS)
        assert seen.err == "" and "..." not in seen.out.replace("[ARGS]...", "")
    assert done("--version").out.split()[0] == "millrace"
    for name in COMMANDS:
        assert f"millrace {name}" in done(name, "--help").out == done(name, "-h").out


@pytest.mark.parametrize("command", ["run", "sample", "plan"])
def test_help_tells_the_defaults(command):
    """The help of every flag for a configuration key names the default, or what happens without one."""
    params = {p.name: p.help for p in COMMANDS[command].params}
    job = resolve({})
    known = {
        **job.model_dump(),
        "fanout": "15,10,5",
        "model": "sage",
        "split": "what the dataset has",
        "executor": "inline",
    }
    known["scheduler"] = known["link"] = None  # the flag --link of a plan is a network's
    if command == "sample":
        known["features"] = None  # its flag packs rows
    for word, path in SHORTHANDS.items():
        if word not in ("fanout", "scheduler", "heads"):
            section = getattr(job, path[0])
            known[word] = section[path[1]] if isinstance(section, dict) else getattr(section, path[1])
    told = {name: text for name, text in params.items() if known.get(name) not in (None, [])}
    assert len(told) >= 6
    assert not [name for name, text in told.items() if f"[default: {known[name]}" not in text]


def test_a_shell_is_taught_to_complete(monkeypatch):
    monkeypatch.setenv("_MILLRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "millrace pa")
    monkeypatch.setenv("COMP_CWORD", "1")
    # Under `python -m pytest` click takes the command for a module of pytest's.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "")
    assert millrace().out.split() == ["partition"]


def test_run(world, tmp_path):
    seen = done("run", *SMALL, "--out", tmp_path / "run", "--json")
    record = seen.record
    assert record == json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["parameters_sha256"] == json.loads((world / "run" / "result.json").read_text())["parameters_sha256"]
    assert "test accuracy" in seen.err
    assert "epoch 2/2: loss" in seen.err
    plain = done("run", *SMALL[2:], "--dataset", world / "good.npz", "--out", tmp_path / "plain")
    assert "run folder" in plain.out
    assert "sage on good (3 nodes, 4 edges)" in plain.out


def test_the_order_of_flags_and_the_job_file_do_not_matter(world, tmp_path):
    """Every setting in a file; flags before and after it override what it says."""
    job = tmp_path / "job.toml"
    job.write_text((world / "run" / "job.toml").read_text().replace("epochs = 2", "epochs = 1"))
    first = done("run", "--out", tmp_path / "a", "--epochs", "2", job, "--json").record
    second = done("run", job, "--json", "--set", "epochs=2", "--out", tmp_path / "b").record
    assert first["epochs"] == second["epochs"] == 2
    assert first["parameters_sha256"] == second["parameters_sha256"]
    other = done("run", job, "--model", "gat", "--layers", "3", "--out", tmp_path / "c", "--json").record
    assert (other["model"], other["epochs"]) == ("gat", 1)


def test_sample_extend_and_train_from_it(tmp_path):
    words, out = SMALL[:2] + SMALL[4:8], tmp_path / "samples"
    first = done("sample", *words, "--epochs", "1", "--out", out, "--json")
    assert (first.record["epochs"], first.record["minibatches"]) == (1, 3)
    assert first.record["edges"] > 0
    assert done("sample", *words, "--epochs", "1", "--out", out, "--json").record["edges"] == 0
    assert "6 minibatches of 2 epochs" in done("sample", *words, "--epochs", "2", "--out", out).out
    stored = done("train", *SMALL, "--samples", out, "--out", tmp_path / "stored", "--json").record
    fresh = done("train", *SMALL, "--out", tmp_path / "fresh", "--json").record
    assert stored["parameters_sha256"] == fresh["parameters_sha256"]
    assert stored["seconds"]["sample"] == 0


def test_samples_are_trained_from_while_they_are_written(world, tmp_path):
    samples = tmp_path / "samples"
    shutil.copytree(world / "lost-complete", samples)
    begun = threading.Event()

    def write_the_rest() -> None:
        with locked(samples):
            begun.set()
            time.sleep(0.5)
            for name in ("epoch-1", "complete"):
                shutil.copytree(world / "samples" / name, samples / f".writing-{name}")
                (samples / f".writing-{name}").rename(samples / name)

    producer = threading.Thread(target=write_the_rest)
    producer.start()
    begun.wait()
    record = done("train", *SMALL, "--samples", samples, "--out", tmp_path / "run", "--json").record
    producer.join()
    assert record["parameters_sha256"] == json.loads((world / "run" / "result.json").read_text())["parameters_sha256"]
    with locked(samples):
        short = millrace("train", *SMALL, "--epochs", "3", "--samples", samples, "--out", tmp_path / "more")
    assert (short.code, "is finished and holds no bulk 0 of epoch 2" in short.err) == (2, True), short.err


def test_partition_and_inspect_it(world, tmp_path):
    seen = done("partition", SBM, "--parts", "3", "--out", tmp_path / "p", "--method", "contiguous", "--json")
    assert sum(part["nodes"] for part in seen.record["parts"]) == 60
    assert "edges cut" in seen.err
    assert "3 parts in" in done("partition", SBM, "--parts", "3", "--out", tmp_path / "p", "--method", "contiguous").out
    record = done("inspect", tmp_path / "p", "--json").record
    assert (record["holds"], record["parts"]) == ("partitions", 3)
    assert "nodes" in record["part 2"]
    assert done("inspect", tmp_path / "p" / "book", "--json").record["holds"] == "a store of kind partition_book"


def test_convert_and_train_on_the_store(world, tmp_path):
    record = done("convert", SBM, "--features", "npy", "--out", tmp_path / "store", "--json").record
    assert (record["num_nodes"], record["features"]) == (60, "npy")
    assert record["bytes"] > 0
    mapped = done(
        "run", *SMALL, "--dataset", tmp_path / "store", "--set", "features=mapped", "--out", tmp_path / "run", "--json"
    ).record
    assert mapped["parameters_sha256"] == json.loads((world / "run" / "result.json").read_text())["parameters_sha256"]


def test_evaluate_agrees_with_the_run(world):
    accuracy = done("evaluate", world / "run", "--json").record["accuracy"]
    result = json.loads((world / "run" / "result.json").read_text())
    assert (accuracy["val"], accuracy["test"]) == (result["val_accuracy"], result["test_accuracy"])
    assert f"test   {accuracy['test']:.4f}" in done("evaluate", world / "run", "--dataset", world / "store").out


def test_a_run_on_gpus_is_evaluated_wherever_it_is_asked_for(world, tmp_path):
    shutil.copytree(world / "run", tmp_path / "run")
    job = tmp_path / "run" / "job.toml"
    before = job.read_text()
    job.write_text(before.replace('device = "cpu"', 'device = "cuda"'))
    assert job.read_text() != before
    told = done("evaluate", tmp_path / "run", "--json").record["accuracy"]
    assert told == pytest.approx(done("evaluate", world / "run", "--json").record["accuracy"])


@pytest.mark.parametrize(
    ("what", "key", "value"),
    [
        ("run", "status", "done"),
        ("samples", "bulks", 2),
        ("store", "nodes", 60),
        ("good.npz", "edges", 4),
        ("run/checkpoints/step-0-6", "holds", "a store of kind checkpoint"),
    ],
)
def test_inspect(world, what, key, value):
    assert done("inspect", world / what, "--json").record[key] == value
    assert any(line.split() == [key, *str(value).split()] for line in done("inspect", world / what).out.splitlines())


def test_inspect_says_how_to_go_on(world):
    record = done("inspect", world / "unfinished", "--json").record
    assert f"millrace run --resume --out {world / 'unfinished'}" in record["status"]
    assert record["last checkpoint"] == "phase 0, step 6"


def test_inspect_a_minibatch(world):
    record = done("inspect", world / "samples", "--minibatch", "1,2", "--json").record
    assert record["minibatch"] == "epoch 1, index 2"
    assert record["seeds"] == 2


def test_doctor():
    record = done("doctor", "--json").record
    assert set(record) == {"versions", "machine", "gpu", "extras"}
    assert {"driver", "torch", "nccl", "triton", "dask-cuda", "rmm", "ucx"} <= set(record["gpu"])
    assert all(name in done("doctor").out for name in ("versions", "cores", "driver", "pyg"))


def test_resume(world, tmp_path, monkeypatch):
    """More epochs, no more, fewer; from another folder than the one where the run began, with a relative path of the
    data."""
    run = tmp_path / "rün: 1"
    shutil.copy(world / "good.npz", tmp_path / "dätä.npz")
    monkeypatch.chdir(tmp_path)
    done("run", *SMALL[2:], "--dataset", "dätä.npz", "--out", "rün: 1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    finished = done("run", "--resume", "--out", "../rün: 1", "--json").record
    more = done("run", "--resume", "--epochs", "3", "--out", "../rün: 1", "--json").record
    whole = done("run", run / "job.toml", "--out", tmp_path / "whole", "--json").record
    assert (finished["epochs"], more["epochs"]) == (2, 3)
    assert more["parameters_sha256"] == whole["parameters_sha256"]
    fewer = done("run", "--resume", "--epochs", "1", "--out", run)
    assert "3 epochs had been trained before" in fewer.err
    assert done("evaluate", run, "--json").record["accuracy"]["test"] == more["test_accuracy"]


def test_a_home_folder_is_found(world, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(world / "good.npz", tmp_path)
    done("run", *SMALL[2:], "--dataset", "~/good.npz", "--out", "~/run")
    assert (tmp_path / "run" / "result.json").exists()
    done("run", "~/run/job.toml", "--resume", "--out", "~/run")
    done("evaluate", "~/run")
    assert done("inspect", "~/run", "--json").record["holds"] == "a run"
    assert "no such home folder" in millrace("run", "--out", "~nobody-of-that-name/run").err


def test_a_folder_that_another_process_writes_is_refused(world, tmp_path):
    shutil.copytree(world / "run", tmp_path / "run")
    before = contents(tmp_path)
    for words in (("run", "--resume", "--out", tmp_path / "run"), ("run", *SMALL, "--out", tmp_path / "new")):
        with locked(Path(words[-1])):
            seen = millrace(*words)
        assert (seen.code, "another process is writing" in seen.err) == (2, True), seen.err
    (tmp_path / "new" / ".lock").unlink()
    (tmp_path / "new").rmdir()
    assert contents(tmp_path) == before
    done("sample", *SMALL[:8], "--out", tmp_path / "samples")
    with locked(tmp_path / "samples"):
        assert "another process is writing" in millrace("sample", *SMALL[:8], "--out", tmp_path / "samples").err
    parts = ("partition", SBM, "--parts", "2", "--method", "hash", "--out", tmp_path / "parts")
    with locked(tmp_path / "parts"):
        (tmp_path / "parts" / "book").mkdir()  # as of a command under way
        before = contents(tmp_path)
        seen = millrace(*parts)
        assert (seen.code, "another process is writing" in seen.err) == (2, True), seen.err
        assert contents(tmp_path) == before


def test_a_diverging_run_says_so(tmp_path):
    seen = done(
        "run",
        *SMALL,
        "--lr",
        "1e6",
        "--set",
        "train.optimizer=sgd",
        "--epochs",
        "12",
        "--out",
        tmp_path / "run",
        "--json",
    )
    assert seen.record["train_loss"] is None
    assert "not finite" in seen.err
    assert seen.err.count("the run has diverged") == 1
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_a_damaged_checkpoint_is_passed_over_with_a_note(world, tmp_path):
    shutil.copytree(world / "run", tmp_path / "run")
    steps = sorted((tmp_path / "run" / "checkpoints").iterdir())
    shutil.copytree(steps[-1], tmp_path / "run" / "checkpoints" / "step-0-7")
    flip(tmp_path / "run" / "checkpoints" / "step-0-7" / "state.pt", 1000)
    seen = done("run", "--resume", "--out", tmp_path / "run")
    assert "note: skipped a checkpoint" in seen.err
    assert "warn" not in seen.err


@pytest.mark.parametrize(
    ("error", "code", "phrase"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("2 TB"), 3, "out of memory (2 TB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes\nmore"), 3, "out of memory"),
        (OSError(28, "No space left on device", "/a/b"), 3, "no space is left for /a/b; free some"),
    ],
)
def test_what_the_machine_refuses_is_a_sentence(monkeypatch, error, code, phrase):
    def refused():
        raise error

    monkeypatch.setattr(doctor, "examine", refused)
    seen = millrace("doctor")
    assert seen.code == code
    assert phrase in seen.err
    assert len(seen.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("run --dataset W/good.npz --out NEW", "good.npz"),
        ("run --dataset W/store --out NEW", "manifest.json"),
        ("inspect W/store", "manifest.json"),
        ("evaluate W/run", "result.json"),
    ],
)
def test_a_file_that_may_not_be_read_is_not_called_damaged(world, monkeypatch, words, name):
    for module in (io, os):
        whole = module.open

        def refused(path, *arguments, whole=whole, **options):
            if str(path).endswith(name):
                raise PermissionError(13, "Permission denied", str(path))
            return whole(path, *arguments, **options)

        monkeypatch.setattr(module, "open", refused)
    seen = millrace(*command(words)(world))
    assert seen.code == 2 and f"{name}: this user may not read it" in seen.err and "damaged" not in seen.err, seen.err


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch, capsys):
    def broken():
        raise RuntimeError("a bug")

    monkeypatch.setattr(doctor, "examine", broken)
    monkeypatch.setattr(sys, "argv", ["millrace", "doctor"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr().err
    assert left.value.code == 3
    assert "in broken" in said and "RuntimeError: a bug" in said
    assert said.splitlines()[-1].startswith("millrace: RuntimeError in the code above")


def test_an_interrupt_leaves_a_checkpoint_to_go_on_from(tmp_path):
    out, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    words = [*SMALL, "--set", "train.evaluate_every=0"]
    printed, err = tmp_path / "printed", tmp_path / "err"
    process = ForkedCommand("run", *words, "--epochs", "100000", "--out", out, out=printed, err=err)
    try:
        deadline = time.monotonic() + 240
        while not (metrics.exists() and "StepDone" in metrics.read_text()):
            assert time.monotonic() < deadline, "the run does not begin"
            assert process.poll() is None, err.read_text()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(240) == 130
    finally:
        process.kill()
    assert printed.read_text() == ""
    assert "--resume" in err.read_text().splitlines()[-1]
    assert "Traceback" not in err.read_text()
    assert json.loads((out / "result.json").read_text())["status"] == "stopped"
    steps = max(int(p.name.rpartition("-")[2]) for p in (out / "checkpoints").iterdir())
    epochs = str(steps // 3 + 1)
    resumed = done("run", "--resume", "--out", out, "--epochs", epochs, "--json").record
    whole = done("run", *words, "--epochs", epochs, "--out", tmp_path / "whole", "--json").record
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]


def test_a_second_interrupt_ends_at_once():
    before = signal.getsignal(signal.SIGINT)
    with heeded(lambda text: None) as asked:
        asked(StageStarted("sample", "steps are taken"))
        assert not asked.stop()
        signal.raise_signal(signal.SIGINT)
        assert asked.stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_reader_that_goes_away_does_not_end_a_run(tmp_path):
    """As in ``millrace run ... 2>&1 | head -1``, where Python keeps what it could not write until it exits."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    try:
        done_with = subprocess.run(
            [sys.executable, "-m", "millrace.pipeline", "run", *SMALL, "--out", str(tmp_path / "run")],
            stdout=writing,
            stderr=writing,
            env=environment,
            check=False,
        )
    finally:
        os.close(writing)
    assert done_with.returncode == 0
    assert (tmp_path / "run" / "result.json").exists()
