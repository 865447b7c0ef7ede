"""The data card: kept with a store and a run, and shown by inspect, the report and the model card."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.storage.errors import StoreError
from millrace.storage.store.store import open_store
from millrace.storage.stored.data_card import AS_GIVEN, CARD, card_of, data_card, described, narrower
from millrace.tests.contracts.command import command


def column(name, least, largest, missing=0, of="nodes"):
    return {
        "of": of,
        "name": name,
        "missing": missing,
        "least": least,
        "largest": largest,
        "constant": least == largest,
    }


def test_what_a_narrower_dtype_would_lose():
    columns = [
        column("amount", 0.0, 1e5),
        column("flag", 0.0, 1.0),
        column("year", 1990.0, 2000.0),
        column("one", 5.0, 5.0),
    ]
    amount, flag, year, one = narrower(columns)
    assert "float16 clips it" in amount and "int8 makes it 0 beside larger columns" in flag
    assert "bfloat16 merges its values" in year and not one
    lines = dict(described(data_card(columns * 200, split="fraction:0.5,0.2", seed=3), 2))
    assert lines["origin of the split"] == "fraction:0.5,0.2 (seed 3)" and lines["more columns"].startswith("798, in")
    given = data_card([], split=AS_GIVEN, seed=3)
    assert described(given, 2) == [("origin of the split", "the input")], "no seed had a part in it"
    assert described(None, 2) == [] and dict(described(data_card([column("x", None, None, 9)]), 3)) == {
        "ranges of columns": "as read, before scaling",
        "column x of nodes": "no value, 9 missing, constant",
    }
    of_cells = dict(described(data_card([column("city=ulm", 0.0, 1.0)]), 1))["column city=ulm of nodes"]
    assert of_cells == "0 to 1", "an empty cell is 0 in all columns of one_hot, and none is missing"


@pytest.mark.parametrize(
    "columns", [None, 7, [None], [{}], [column("pay", 0.0, None)], [column("pay", "a", "b")], [{"name": "pay"}]]
)
def test_a_card_that_says_something_else_is_refused(columns):
    store: Any = SimpleNamespace(
        path="place", meta={CARD: {"columns": columns}}, value=lambda key, kind: store.meta[key]
    )
    with pytest.raises(StoreError, match="data_card does not say what its columns hold"):
        card_of(store)


def test_it_is_kept_and_shown(tmp_path):
    rows = [f"{v},{'ab'[v % 2]},{'' if v % 7 == 3 else v * 1000},4" for v in range(60)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,label,pay,level", *rows]))
    (tmp_path / "edges.csv").write_text("src,dst\n" + "".join(f"{v},{(v + 1) % 60}\n" for v in range(60)))
    keys = [
        "read.direction=directed",
        "read.feature_columns=pay,level",
        "read.nan_features=mean",
        "read.normalize_features=standard",
    ]
    read = [word for key in keys for word in ("--set", key)]
    code, out, error = command(
        "convert", tmp_path / "edges.csv", "--out", tmp_path / "store", "--split", "fraction:0.5,0.2", *read
    )
    assert code == 0, error
    card = open_store(tmp_path / "store", "dataset").meta[CARD]
    assert [(c["name"], c["missing"], c["least"], c["largest"]) for c in card["columns"]] == [
        ("pay", 9, 0.0, 58000.0), ("level", 0, 4.0, 4.0),
    ]  # fmt: skip
    assert dict(mr.open_dataset(tmp_path / "store").card) == card
    for source, more in ((tmp_path / "store", []), (tmp_path / "edges.csv", read)):
        code, out, error = command("inspect", source, *more)
        said = " ".join(out.split())
        assert code == 0 and "column pay of nodes" in said and "0 to 58,000, 9 missing" in said, error
        assert "4 to 4, 0 missing, constant" in said
    job = ["--layers", 1, "--hidden", 4, "--fanout", 3, "--epochs", 1]
    code, out, error = command("run", "--dataset", tmp_path / "store", *job, "--out", tmp_path / "run")
    assert code == 0, error
    kept = json.loads((tmp_path / "run" / "data_card.json").read_text())
    assert kept["columns"] == card["columns"] and any("'pay' 9" in note for note in kept["notes"])
    text = (tmp_path / "run" / "model_card.md").read_text()
    assert "## Data" in text and "| column pay of nodes | 0 to 58,000, 9 missing" in text
    code, out, error = command("report", tmp_path / "run", "--out", tmp_path / "report")
    assert code == 0, error
    assert any("column pay of nodes" in page.read_text() for page in (tmp_path / "report").rglob("*.html"))
    assert "column pay of nodes" in " ".join(command("inspect", tmp_path / "run")[1].split())
