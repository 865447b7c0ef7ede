"""Commands in a folder where somebody else has planted links of the names that Millrace will use."""

import os
from pathlib import Path

import pytest

import millrace as mr
from millrace.pipeline.inference.to_file import FileRequest
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

DATA = "sbm:nodes=60,classes=3,degree=4,features=4,train=0.5"
RUN = ("--dataset", DATA, "--epochs", 1, "--fanout", "3,2", "--hidden", 4)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that everybody may write to, beside one with files to keep."""
    (tmp_path / "victim").mkdir()
    for name in ("a", "b"):
        (tmp_path / "victim" / name).write_text("kept")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    rows = "\n".join(f"{i},{(i + 1) % 20},{i % 2}" for i in range(20))
    (tmp_path / "edges.csv").write_text(f"src,dst,weight\n{rows}\n")
    (tmp_path / "nodes.csv").write_text("id,label,f\n" + "\n".join(f"{i},{i % 2},{i}" for i in range(20)) + "\n")
    return tmp_path / "shared"


def planted(link: Path, target: str) -> None:
    link.symlink_to(link.parent.parent / "victim" / target, target_is_directory=not target)
    if os.geteuid() == 0:
        os.chown(link, 65534, 65534, follow_symlinks=False)


def kept(place: Path) -> bool:
    victim = place.parent / "victim"
    return {p.name: p.read_text() for p in victim.iterdir()} == {"a": "kept", "b": "kept"}


@pytest.mark.parametrize("link", [".ingest-store", "store.stages.jsonl"])
def test_a_conversion_leaves_what_links_point_to(place: Path, link: str) -> None:
    planted(place / link, "a" if link.endswith("jsonl") else "")
    edges = place.parent / "edges.csv"
    code, _, said = command("convert", edges, "--out", place / "store")
    assert code == 2
    assert link in said
    assert kept(place)


@pytest.mark.parametrize("link", [".lock", "metrics.jsonl", "logs", "checkpoints", "model.pt", "report"])
def test_a_run_goes_on_in_no_folder_with_links(place: Path, link: str) -> None:
    out = place / "run"
    assert command("run", *RUN, "--out", out)[0] == 0
    if (out / link).exists():
        (out / link).rename(place / "before")
    planted(out / link, "a" if "." in link else "")
    code, _, said = command("run", "--resume", "--out", out, "--epochs", 2)
    assert code == 2
    assert "is a symbolic link" in said
    if link == "report":
        code, _, said = command("report", out)
        assert code == 2
        assert "is no folder of this user's" in said
    assert kept(place)


def test_a_file_made_while_predictions_are_made_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mr.run(DATA, epochs=1, fanout=[3, 2], hidden=4, out=place / "run", verbose=False)
    out = place / "p.csv"
    request = FileRequest(place / "run", out)

    def predict(trained: mr.TrainedRun, aside: Path) -> dict[str, int]:
        out.write_text("theirs")
        aside.write_text("ours")
        return {"nodes": 1}

    with pytest.raises(InputError, match=r"p\.csv was made by somebody else meanwhile"):
        request.write(predict)
    assert out.read_text() == "theirs"
    assert [p.name for p in place.iterdir() if p.name.startswith(".")] == []
