"""A file from somebody else has no code imported that its user does not name."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

import millrace as mr
from millrace.pipeline.config.named_code import allowing, check_code, sampler_named, without_code
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

SOURCE = """
from millrace.tests.contracts.matrix_neighbor import MatrixNeighbor as Sampler
open("imported", "a").write("1")
"""
NAME = "planted_code:Sampler"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run whose sampler is code that lies beside it."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted_code.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        mr.run("sbm:nodes=60,classes=3", out="run", epochs=1, verbose=False, sampler={"name": NAME, "fanout": [3, 2]})
    return folder


@pytest.fixture(autouse=True)
def there(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(planted)
    monkeypatch.delitem(sys.modules, "planted_code", raising=False)
    (planted / "imported").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "words",
    [
        "evaluate run",
        "predict run --out p.csv",
        "export run --out run.pt2",
        "run --resume --out run",
        "run run/job.toml --out 'other run'",
        "run run/job.toml --dry-run",
        "sample run/job.toml --out samples",
        "plan run/job.toml",
        "sweep run/job.toml --out sweep",
    ],
)
def test_a_command_imports_nothing_that_a_file_names_and_prints_how_to_allow_it(words: str) -> None:
    code, _, said = command(*shlex.split(words))
    assert code == 2
    assert said.splitlines()[-1].strip() == f"millrace {words} --allow-code {NAME}"
    assert not Path("imported").exists()


def test_the_command_that_is_printed_works() -> None:
    _, _, said = command("evaluate", "run")
    assert command(*shlex.split(said.splitlines()[-1])[1:])[0] == 0
    assert Path("imported").exists()
    # It is allowed for one command only.
    assert command("evaluate", "run")[0] == 2


def test_a_name_given_by_set_is_named() -> None:
    words = ("run", "run/job.toml", "--dry-run", "--set", f"sampler.name={NAME}")
    assert command(*words)[0] == 0


def test_a_report_shows_the_settings_and_imports_nothing() -> None:
    assert command("report", "run")[0] == 0
    assert NAME in Path("run/report/report.html").read_text()
    assert not Path("imported").exists()


def test_python_names_it_in_an_argument() -> None:
    with pytest.raises(InputError, match=rf'names code, sampler.name = .*allow_code="{NAME}" in mr.load and mr.run'):
        mr.load("run")
    with pytest.raises(InputError, match="names code"):
        mr.run(out="run", resume=True, verbose=False)
    with pytest.raises(InputError, match="names code"):
        mr.predict("run")
    assert not Path("imported").exists()
    assert mr.predict(mr.load("run", allow_code=NAME)).nodes.size == 60
    assert mr.run(out="run", resume=True, verbose=False, allow_code=[NAME]).epochs == 1


def test_another_run_starts_from_its_parameters_without_its_sampler() -> None:
    started = mr.run("sbm:nodes=60,classes=3", epochs=1, fanout=[3, 2], start_from="run", out="warm", verbose=False)
    assert started.epochs == 1
    assert not Path("imported").exists()


@pytest.mark.parametrize("table", [{"sampler": "a:B"}, {"sampler": {"name": "a:B", "fanout": [2]}}])
def test_code_is_found_in_either_form_and_left_out(table: dict[str, object]) -> None:
    assert sampler_named(table) == "a:B"
    assert without_code({**table, "epochs": 1}) == {"epochs": 1}
    with pytest.raises(InputError, match=r"job\.toml names code"):
        check_code(table, Path("job.toml"))
    with allowing("a:B"):
        check_code(table, Path("job.toml"))


@pytest.mark.parametrize("name", ["a", "a:", ":B", "a b:C", "os.path:x; rm", 3])
def test_what_is_no_name_of_code_is_not_allowed(name: object) -> None:
    with pytest.raises(InputError, match="expected MODULE:NAME"), allowing([name]):  # type: ignore[list-item]
        pass


def test_a_name_of_another_form_is_refused_without_a_command() -> None:
    with pytest.raises(InputError, match="expected the name of a sampler, or MODULE:NAME"):
        check_code({"sampler": "a:B; rm -r"}, Path("job.toml"))


def test_a_sweep_goes_on_in_a_folder_whose_runs_name_code_and_imports_nothing() -> None:
    def sweep() -> mr.Sweep:
        return mr.sweep("sbm:nodes=60,classes=3", grid={"lr": [0.1, 0.2]}, out="swept", epochs=1, jobs=1, verbose=False)

    sweep()
    folder = next(Path("swept").glob("*/job.toml")).parent
    shutil.copy("run/job.toml", folder)
    (folder / "result.json").unlink()
    assert not sweep().failures
    assert not Path("imported").exists()
