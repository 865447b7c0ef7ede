"""The site says what the code says: every public name, key, command and result is on its page, and what a page refers
to exists."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import get_args

import pytest

import millrace as mr
from millrace.pipeline.config.load import Job
from millrace.pipeline.telemetry.events import Event

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
API = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
PAGES = sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts)


@pytest.fixture(scope="module")
def reference():
    """docs/reference.py, which Sphinx imports by its folder, as it does its neighbours."""
    sys.path.insert(0, str(DOCS))
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_its_entry():
    entries = re.findall(r"^\.\. auto(?:class|function|exception):: millrace\.(\w+)(?:\(|$)", API, re.MULTILINE)
    assert ".. autoclass:: millrace.stages.models.sage.SAGE\n" in API, "it bears another name at home"
    assert sorted([*entries, "GraphSAGE"]) == sorted(set(mr.__all__) - {"__version__"})


def test_every_key_has_a_type_a_default_and_a_meaning(reference):
    rows = [row for line in reference.configuration().splitlines() if len(row := re.split(r"(?<!\\)\|", line)) == 6]
    keys = {row[1].strip(" `"): [cell.strip() for cell in row[2:5]] for row in rows}
    sections = {name for name, f in Job.model_fields.items() if reference.is_section(f.annotation)}
    top = set(Job.model_fields) - sections - {"model", "sampler"}
    assert top <= keys.keys() and {key.split(".")[0] for key in keys if "." in key} == sections | {"model", "sampler"}
    assert not [key for key, cells in keys.items() if not all(cells)]
    assert keys["train.lr"] == ["number, >\u00a00, ≤\u00a01e+06", "`0.003`", "Learning rate."]
    assert keys["sar.mode"][0].startswith("`auto`, `rematerialize`, `keep`, `halo` or a list of")
    assert keys["model.activation"][1] == '`"relu"` (`gat`: `"elu"`) (`hgt`: `"none"`)'
    assert keys["sampler.sizes"][2].startswith("only `ladies`, `fastgcn`: ")


def test_every_command_and_result_is_there(reference):
    commands = reference.commands()
    for name in ("run", "train", "sample", "partition", "convert", "evaluate", "predict", "inspect", "doctor"):
        assert f"## `millrace {name}`" in commands
    assert "those of `millrace run`" in commands, "train has no table of its own"
    assert "| `--set KEY=VALUE` |" in commands and "| `--fanout FANOUT` |" in commands and "| `--resume` |" in commands
    result = reference.result_fields()
    assert not re.findall(r"^\| `\w+` \| `[^|]*` \|  \|$", result, re.MULTILINE), "each field has a meaning"
    events = reference.events()
    for kind in get_args(Event):
        assert f"## `{kind.__name__}`" in events
    assert "| `evaluation` | `graph`, `features`, `activations`, `gradients`, `control` |" in result


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_what_a_page_refers_to_exists(page):
    text = page.read_text()
    paths = re.findall(r"`((?:storage|stages|pipeline|tests|benchmarks|notebooks|examples|docs)/[\w/.]+)`", text)
    assert not [p for p in paths if not (ROOT / p).exists()]
    assert not [name for name in re.findall(r"\bmr\.(\w+)", text) if name not in mr.__all__]


def test_pages_include_nothing_from_other_documents():
    """The site is complete without README, and reads in one voice."""
    assert not [page.name for page in PAGES if "{include}" in page.read_text()]


def test_every_page_is_in_the_index():
    index = (DOCS / "index.md").read_text() + (DOCS / "api.md").read_text()
    listed = {
        DOCS / f"{line}.md" for block in re.findall(r"```{toctree}(.*?)```", index, re.DOTALL) for line in block.split()
    }
    assert listed >= set(PAGES) - {DOCS / "index.md"}


def test_every_kind_of_store_is_told():
    kinds = set()
    for layer in ("storage", "stages"):
        for path in (ROOT / layer).rglob("*.py"):
            if "write_store(" in (text := path.read_text()) or "write_manifest(" in text:
                for values in re.findall(r"^(?:[A-Z]+_)?KIND(?:, [A-Z_]+)* = (.*)$", text, re.MULTILINE):
                    kinds |= set(re.findall(r'"([\w-]+)"', values))
    assert len(kinds) > 10
    told = set(re.findall(r"^\| `([\w-]+)` \|", (DOCS / "stores.md").read_text(), re.MULTILINE))
    assert told == kinds
