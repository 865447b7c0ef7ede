"""Homes in paths."""

from pathlib import Path

import pytest

import millrace as mr
from millrace.storage.errors import InputError
from millrace.storage.store.paths import expanded
from millrace.tests.contracts.command import command


def test_a_home_is_expanded_and_one_that_is_not_there_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/a") == tmp_path / "a" and expanded(Path("b")) == Path("b")
    with pytest.raises(InputError, match=r"~nobody-here/a: no such home folder .*; write the path out"):
        expanded("~nobody-here/a")


def test_a_file_may_be_called_like_a_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("~a.npz").touch()
    assert expanded("./~a.npz") == tmp_path / "~a.npz"


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--dataset", "~nobody-here/a.npz"),
        ("convert", "~nobody-here/a.npz", "--out", "OUT"),
        ("inspect", "~nobody-here/a.npz"),
    ],
)
def test_commands_say_that_there_is_no_such_home(arguments, tmp_path):
    code, _, err = command(*(str(tmp_path / "out") if a == "OUT" else a for a in arguments))
    assert code == 2 and "no such home folder" in err, err


def test_python_says_so_too(tmp_path):
    with pytest.raises(InputError, match="no such home folder"):
        mr.run("~nobody-here/a.npz", out=tmp_path / "run")
    with pytest.raises(InputError, match="no such home folder"):
        mr.predict("~nobody-here/run")


URL = "s3://bucket/x"


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", URL, "--out", "p.csv"),
        ("evaluate", URL),
        ("export", URL, "--out", "p.pt2"),
        ("report", URL),
        ("check", URL),
        ("run", "--resume", "--out", URL),
        ("run", "--out", URL),
        ("sweep", "--set", "train.lr=0.1,0.2", "--out", URL),
        ("predict", "run", "--out", f"{URL}.csv"),
        ("export", "run", "--out", f"{URL}.pt2"),
        ("report", "run", "--out", URL),
        ("partition", "digits", "--parts", "2", "--into", URL),
        ("convert", "digits", "--out", "http:/x.org/a"),
    ],
)
def test_a_url_where_a_path_belongs_is_a_sentence(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/job.toml").touch()
    code, _, said = command(*arguments)
    assert code == 2
    assert "://" in said and "is a URL; expected " in said
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
