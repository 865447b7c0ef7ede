"""Workers whose working directory is another one than the caller's read and write the caller's files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

import millrace as mr
from millrace.storage.errors import RunError
from millrace.tests.contracts.command import command

DIRECTED = mr.ReadOptions(direction="directed")


def shop(folder: Path, nodes: int) -> None:
    folder.mkdir()
    rows = [f"u{v},{v % 7},{'ab'[v % 2]},{('train', 'val', 'test')[v % 3]}\n" for v in range(nodes)]
    (folder / "nodes.csv").write_text("id,x0,label,split\n" + "".join(rows))
    edges = [f"u{v},u{v * k % nodes}\n" for v in range(nodes) for k in (3, 5)]
    (folder / "edges.csv").write_text("src,dst\n" + "".join(edges))


@pytest.fixture
def client(scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Workers in a folder with another `shop` than the caller's."""
    for name, nodes in (("here", 40), ("there", 80)):
        (tmp_path / name).mkdir()
        shop(tmp_path / name / "shop", nodes)
    monkeypatch.chdir(tmp_path / "here")
    with Client(scheduler) as client:
        before = next(iter(client.run(os.getcwd).values()))
        client.run(os.chdir, str(tmp_path / "there"))
        try:
            yield client
        finally:
            client.run(os.chdir, before)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_relative_paths_are_the_callers(client: Client, scheduler: str, tmp_path: Path) -> None:
    direction = ("--set", "read.direction=directed")
    for words in (
        ("convert", "shop", "--out", "alone", *direction),
        ("convert", "shop", "--out", "store", "--scheduler", scheduler, *direction),
        ("partition", "store", "--parts", 2, "--into", "by-part", "--scheduler", scheduler),
        ("sample", "--dataset", "store", "--out", "samples", "--epochs", 1, "--scheduler", scheduler),
        ("run", "--dataset", "store", "--epochs", 1, "--hidden", 4, "--executor", "inline", "--out", "run"),
        ("predict", "run", "--out", "a.csv", "--scheduler", scheduler),
        ("predict", "run", "--dataset", "shop", "--out", "b.csv", "--scheduler", scheduler),
        ("predict", "run", "--out", "c.csv"),
        ("evaluate", "run", "--scheduler", scheduler),
    ):
        code, _, error = command(*words)
        assert code == 0, (words, error)
    assert files(Path("store")) == files(Path("alone"))
    assert Path("a.csv").read_text() == Path("b.csv").read_text() == Path("c.csv").read_text()
    assert mr.open_dataset("by-part").num_nodes == 40
    assert os.listdir(tmp_path / "there") == ["shop"]


def test_from_python(client: Client) -> None:
    store = mr.convert("shop", "store", client=client, options=DIRECTED, verbose=False)
    assert store.entries["indptr"]["shape"] == [41]
    assert mr.run("store", client=client, ranks=1, epochs=1, out="run", verbose=False).status == "done"


def test_a_worker_that_lacks_a_path_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    # A worker on another machine, where no such folder is.
    real = os.path.exists
    client.run(lambda: setattr(os.path, "exists", lambda path: ".ingest-store" not in str(path) and real(path)))
    try:
        with pytest.raises(
            RunError, match=r"the worker on \S+ does not see /\S+/here/\.ingest-store; workers must see"
        ):
            mr.convert("shop", "store", client=client, options=DIRECTED, verbose=False)
    finally:
        client.run(lambda: setattr(os.path, "exists", real))
    assert not Path("store").exists()
    assert mr.convert("shop", "store", client=client, options=DIRECTED, verbose=False).entries["indptr"]["shape"] == [
        41
    ]
