"""Files of a run's folder that are read as records: a damaged one is said to be damaged."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.result import DATA_CARD, read_card
from millrace.storage.errors import StoreError
from millrace.tests.contracts.command import command


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on data with columns that are scaled."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("cards")
    x, edges = rng.normal(7.0, 3.0, (40, 3)), rng.integers(0, 40, (2, 160))
    np.savez(folder / "data.npz", x=x, edge_index=edges, y=np.arange(40) % 3)
    read = {"direction": "undirected", "normalize_features": "standard"}
    job = {"fanout": [3, 2], "hidden": 4, "epochs": 1, "verbose": False}
    mr.run(folder / "data.npz", out=folder / "run", read=read, **job)
    return folder / "run"


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_a_run_without_a_card_has_none(tmp_path: Path) -> None:
    assert read_card(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 100_000, "\xff\xfe", '{"columns": 3}', '{"columns": [{}]}', '{"columns": [], "notes": 3}'],
    ids=["empty", "list", "deep", "bytes", "columns", "column", "notes"],
)
def test_a_damaged_card_is_said_to_be_damaged(run: Path, text: str) -> None:
    (run / DATA_CARD).write_text(text, "latin-1")
    with pytest.raises(StoreError, match=r"data_card\.json is damaged; copy it again, or write it again by `millrace"):
        read_card(run)
    source = json.loads((run / "result.json").read_text())["dataset"]
    for words in (("report", run), ("inspect", run), ("predict", run, "--dataset", source, "--out", run / "p.csv")):
        code, _, said = command(*words)
        assert code == 2 and "data_card.json is damaged" in said and len(said.splitlines()) <= 3, words


def test_a_card_that_is_a_pipe_is_no_file(run: Path) -> None:
    (run / DATA_CARD).unlink()
    os.mkfifo(run / DATA_CARD)
    with pytest.raises(StoreError, match=r"data_card\.json is a pipe; expected a file"):
        read_card(run)


def test_another_scale_in_a_card_never_predicts(run: Path) -> None:
    source = mr.load(run).config.dataset
    before = mr.predict(run, source)
    text = (run / DATA_CARD).read_text()
    card = json.loads(text)
    column = card["treatment"]["nodes"][0]
    key = next(k for k, v in column.items() if isinstance(v, float))
    column[key] *= 2
    (run / DATA_CARD).write_text(json.dumps(card))
    with pytest.raises(StoreError, match=r"data_card\.json does not match its digest in result\.json"):
        mr.predict(run, source)
    code, found, _ = command("check", run)
    assert code == 2 and "damaged: data_card.json" in found
    (run / DATA_CARD).write_text(text)
    assert (mr.predict(run, source).logits == before.logits).all()


def test_a_result_names_its_folder(made: Path) -> None:
    result = mr.load(made).result
    assert os.fspath(result) == str(made) and configure({}, start_from=result).start_from == str(made)
