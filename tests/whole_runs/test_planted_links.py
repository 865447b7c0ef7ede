"""Commands in a folder where somebody else has planted links of the names that Millrace will use."""

import os
from pathlib import Path

import pytest

import millrace as mr
from millrace.pipeline.inference.files import FileRequest
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

DATA = "sbm:nodes=60,classes=3,degree=4,features=4,train=0.5"
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    mr.run(DATA, epochs=1, fanout=[3, 2], hidden=4, out=out, verbose=False)
    return out


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


@only_root
@pytest.mark.parametrize("kind", ["link", "folder"])
@pytest.mark.parametrize(
    "words",
    [
        ("report", "RUN", "--out"),
        ("run", *RUN, "--out"),
        ("sample", *RUN[:2], "--fanout", "3,2", "--epochs", 1, "--out"),
        ("sweep", *RUN[:2], "--set", "train.lr=0.1,0.2", "--jobs", 1, "--out"),
        ("partition", DATA, "--parts", 2, "--method", "hash", "--into"),
    ],
    ids=lambda words: words[0],
)
def test_nothing_is_written_into_what_somebody_else_has_put_there(
    place: Path, finished: Path, words: tuple[str, ...], kind: str
) -> None:
    out = place / "out"
    if kind == "link":
        planted(out, "")
    else:
        out.mkdir(mode=0o777)
        os.chown(out, 65534, 65534)
    code, _, said = command(*(finished if word == "RUN" else word for word in words), out)
    assert code == 2, said
    assert str(out) in said
    assert kept(place)
    assert kind == "link" or not list(out.iterdir())


def test_a_link_of_ones_own_is_followed(place: Path, finished: Path) -> None:
    (place / "pages").mkdir()
    (place / "out").symlink_to(place / "pages")
    assert command("report", finished, "--out", place / "out")[0] == 0
    assert (place / "pages" / "report.html").is_file()


@pytest.mark.parametrize("words", ["convert {}/edges.csv --out {}", "predict {} --out {}.csv", "init {}.toml"])
def test_a_link_to_nothing_is_something_already(place: Path, finished: Path, words: str) -> None:
    command_, *given = words.split()
    at = {"convert": (place.parent, place / "out"), "predict": (finished, place / "out")}.get(
        command_, (place / "out",)
    )
    full = [command_, *" ".join(given).format(*at).split()]
    Path(full[-1]).symlink_to(place.parent / "nothing")
    code, _, said = command(*full)
    assert code == 2
    assert "exists" in said
    assert not (place.parent / "nothing").exists()


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
