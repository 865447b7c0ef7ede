"""README, ARCHITECTURE and notebooks say what the code does: their snippets run, their tables are the code's."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import torch
import typer
from pydantic import BaseModel

import millrace as mr
from millrace.pipeline import cli
from millrace.pipeline.config.load import Job
from millrace.pipeline.setup.result import Result
from millrace.pipeline.training.loop import Interrupted
from millrace.stages.models import MODELS
from millrace.stages.sample import SAMPLERS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
SNIPPET = re.compile(r"<!-- runnable(?:: (\S+))? -->\n```(\w+)\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
COMMANDS: dict[str, Any] = typer.main.get_command(cli.app).commands  # pyright: ignore[reportAttributeAccessIssue]


def table(marker: str) -> list[list[str]]:
    """The cells of the table below ``<!-- marker -->``, without its head."""
    lines = README.split(f"<!-- {marker} -->\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def shape(text: str) -> list[str]:
    """Lines without what a machine may change: times, losses, memory, rows of a table of counts. Hashes become their
    order."""
    hashes: dict[str, str] = {}
    text = re.sub(r"\b[0-9a-f]{64}\b", lambda m: hashes.setdefault(m[0], f"hash {len(hashes)}"), text)
    text = re.sub(r"best: \d+|[\d,.]+ MiB|\d+\.\d+%?", "#", text)
    return [re.sub(r"[\d,]+", "#", line) if re.match(r" +\d", line) else line for line in text.splitlines() if line]


def run_shell(lines: str, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
    """Run each line, `millrace` in this process, and return what they printed."""
    printed = ""
    for line in lines.splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "millrace":
            patch.setattr(sys, "argv", words)
            try:
                cli.main()
                code = 0
            except SystemExit as e:
                code = e.code or 0
            out = "".join(capture.readouterr())
        else:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            code, out = done.returncode, done.stdout
        assert code == 0, f"{line}\n{out}"
        printed += out
    return printed


@pytest.fixture
def one_thread():
    """torch's threads wait for each other, which is slow where tests share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_snippets_run_and_print_what_the_readme_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    ran = []
    for file, language, body, shown in SNIPPET.findall(README):
        ran.append(language)
        if file:
            Path(file).write_text(body)
        elif language == "python":
            exec(compile(body, "README.md", "exec"), names)
            capsys.readouterr()
        else:
            seen = shape(run_shell(body, capsys, monkeypatch))
            assert not [line for line in shape(shown) if line not in seen], body
    assert ran.count("python") >= 3 and ran.count("sh") >= 5, "the snippets are still found"
    digests = [
        json.loads(Path("runs", run, "result.json").read_text())["parameters_sha256"]
        for run in ("live", "sage", "parts", "gcn")
    ]
    assert len(set(digests[:3])) == 1, "sampled live, read from the store, and resumed"
    assert digests[3] != digests[0]


def as_toml(value: Any) -> str:
    if value is None:
        return "unset"
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def choices(annotation: Any) -> list[str]:
    """The values of a Literal, also inside ``X | None``."""
    if get_origin(annotation) in (types.UnionType, Union):
        return [c for part in get_args(annotation) for c in choices(part)]
    return [str(c) for c in get_args(annotation)] if get_origin(annotation) is Literal else []


def configuration() -> dict[str, tuple[str, list[str]]]:
    """Every configuration key with its default, as the README writes it, and its choices."""
    rows: dict[str, tuple[str, list[str]]] = {}

    def add(prefix: str, kind: Any) -> None:
        fields = kind.model_fields if issubclass(kind, BaseModel) else kind.__dataclass_fields__
        for name, f in fields.items():
            inner = f.annotation if issubclass(kind, BaseModel) else f.type
            if inner == dict[str, Any]:
                continue
            if isinstance(inner, type) and (issubclass(inner, BaseModel) or dataclasses.is_dataclass(inner)):
                add(f"{prefix}{name}.", inner)
            else:
                rows.setdefault(f"{prefix}{name}", (as_toml(f.default), choices(inner)))

    add("", Job)
    for section, registry in (("model", MODELS), ("sampler", SAMPLERS)):
        rows[f"{section}.name"] = (as_toml(next(iter(registry))), list(registry))
        for kind in registry.values():
            add(f"{section}.", kind)
    return rows


def test_the_configuration_table_is_the_configuration():
    seen = {key.strip("`"): (default, values) for key, default, values in table("configuration")}
    known = configuration()
    assert len(known) > 40
    assert {key: default for key, (default, _) in seen.items()} == {key: default for key, (default, _) in known.items()}
    assert not [(key, c) for key, (_, cs) in known.items() for c in cs if f"`{c}`" not in seen[key][1] and len(cs) > 1]


def test_the_result_table_is_the_result():
    named = [name for keys, _ in table("result") for name in re.findall(r"`(\w+)`", keys)]
    assert sorted(named) == sorted(f.name for f in dataclasses.fields(Result))


def test_the_exit_codes_are_those_of_the_errors():
    codes = {int(code) for code, _ in table("exit codes")}
    assert codes == {0, mr.InputError.exit_code, mr.RunError.exit_code, Interrupted.exit_code}


def test_commands_flags_and_names_exist():
    used = set(re.findall(r"millrace (\w+)", README.replace("import millrace as mr", "")))
    named = {
        "convert",
        "doctor",
        "evaluate",
        "inspect",
        "partition",
        "plan",
        "predict",
        "report",
        "run",
        "sample",
        "train",
    }
    assert named <= used <= set(COMMANDS)
    flags = {opt for command in COMMANDS.values() for p in command.params for opt in p.opts}
    ours = re.sub(r"^(dask |TLS=).*$", "", README, flags=re.MULTILINE)
    assert not {flag for flag in re.findall(r"(?<=[\s`(])--[a-z-]+", ours)} - flags - {"--check", "--nbmake"}
    assert not [name for name in re.findall(r"\bmr\.(\w+)", README) if name not in mr.__all__]


def test_paths_in_the_documents_exist():
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        paths = re.findall(
            r"`((?:storage|stages|pipeline|tests|notebooks)/[\w/.]*|[A-Z]+\.md)`", (ROOT / name).read_text()
        )
        assert paths, name
        assert not [p for p in paths if not (ROOT / p).exists()], name


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_are_small_and_hold_no_traces_of_the_machine(notebook):
    text = notebook.read_text()
    cells = json.loads(text)["cells"]
    assert len(text) < 300_000
    assert not [c["id"] for c in cells if c["metadata"]], "execution times are left out"
    outputs = [
        json.dumps(o.get("text", o.get("data", {}).get("text/plain"))) for c in cells for o in c.get("outputs", [])
    ]
    assert not [o for o in outputs if re.search(r"/(tmp|home|Users|root)/", o)]
