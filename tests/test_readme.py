"""README, ARCHITECTURE, the site's pages and notebooks match the code: snippets run, names and paths exist."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import millrace as mr
from millrace.pipeline import cli
from millrace.storage.errors import Interrupted

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPET = re.compile(r"<!-- runnable(?:: (\S+))? -->\n```(\w+)\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
CALL = re.compile(r"`(millrace [^`\n]*)`|^(millrace .*(?:\\\n.*)*)", re.MULTILINE)
"""A command in running text or in a block, with its continued lines."""
COMMANDS: dict[str, Any] = typer.main.get_command(cli.app).commands


def shape(text: str) -> list[str]:
    """Lines without what a machine may change: times, losses, memory, rows of a table of counts. Hashes become their
    order."""
    hashes: dict[str, str] = {}
    text = re.sub(r"\b[0-9a-f]{64}\b", lambda m: hashes.setdefault(m[0], f"hash {len(hashes)}"), text)
    text = re.sub(r"epoch \d+; best_epoch counts from 0: \d+|[\d,.]+ MiB|\d+\.\d+%?", "#", text)
    return [re.sub(r"[\d,]+", "#", line) if re.match(r" +\d", line) else line for line in text.splitlines() if line]


def run_shell(lines: str, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
    """Run each line, `millrace` in this process, and return what they printed."""
    printed = ""
    for line in lines.splitlines():
        words = shlex.split(line, comments=True)
        while "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
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


@pytest.mark.usefixtures("one_thread", "forked_workers")
@pytest.mark.parametrize("page", [p for p in PAGES if SNIPPET.search(p.read_text())], ids=lambda p: p.stem)
def test_snippets_run_and_print_what_the_page_shows(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for file, language, body, shown in SNIPPET.findall(page.read_text()):
        if file:
            Path(file).write_text(body)
        elif language == "python":
            exec(compile(body, page.name, "exec"), names)
            capsys.readouterr()
        else:
            seen = shape(run_shell(body, capsys, monkeypatch))
            assert not [line for line in shape(shown) if line not in seen], body


def test_snippets_are_still_found():
    languages = [language for page in PAGES for _, language, _, _ in SNIPPET.findall(page.read_text())]
    assert languages.count("python") >= 8 and languages.count("sh") >= 5
    assert len(SNIPPET.findall(README)) >= 3


def test_the_pages_stay_short():
    """Whatever does not fit belongs into docs/."""
    for name, most in (("README.md", 150), ("ARCHITECTURE.md", 200), ("CONTRIBUTING.md", 110)):
        assert len((ROOT / name).read_text().splitlines()) <= most, name


def test_the_exit_codes_are_those_of_the_errors():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert codes == {0, mr.InputError.exit_code, mr.RunError.exit_code, Interrupted.exit_code}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_commands_flags_and_names_exist(page):
    text = page.read_text()
    ours = "\n".join(a or b for a, b in CALL.findall(text))
    used = set(re.findall(r"^millrace ([a-z]\w*)", ours, re.MULTILINE))
    assert used <= set(COMMANDS)
    flags = {opt for command in COMMANDS.values() for p in command.params for opt in p.opts}
    assert not set(re.findall(r"(?<=[\s`(])--[a-z-]+", ours)) - flags - {"--help", "--install-completion"}
    assert not [name for name in re.findall(r"\bmr\.(\w+)", text) if name not in mr.__all__]


def test_every_command_has_a_page():
    text = "\n".join(page.read_text() for page in PAGES)
    assert set(COMMANDS) <= set(re.findall(r"millrace (\w+)", text))


def test_paths_in_the_documents_exist():
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        paths = re.findall(
            r"`((?:storage|stages|pipeline|tests|notebooks)/[\w/.]*|[A-Z]+\.md)`", (ROOT / name).read_text()
        )
        links = re.findall(r"\]\(([^):#]+)\)", (ROOT / name).read_text())
        assert paths or links, name
        assert not [p for p in paths + links if not (ROOT / p).exists()], name


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_are_small_and_hold_no_traces_of_the_machine(notebook):
    text = notebook.read_text()
    cells = json.loads(text)["cells"]
    assert len(text) < 300_000
    assert not [c["id"] for c in cells if c["metadata"].keys() - {"tags"}], "execution times are left out"
    outputs = [
        json.dumps(o.get("text", o.get("data", {}).get("text/plain"))) for c in cells for o in c.get("outputs", [])
    ]
    assert not [o for o in outputs if re.search(r"/(tmp|home|Users|root|site-packages)/", o)]
    assert not [c["id"] for c in cells for o in c.get("outputs", []) if o.get("name") == "stderr"], "warnings"
