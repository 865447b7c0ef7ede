"""`Result.history`, `plot` and `to_pandas`, of a run and of an earlier one."""

import json
import shutil
import sys

import pytest

import millrace as mr


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    job = {"epochs": 4, "train": {"evaluate_every": 2}, "layers": 2, "fanout": [3, 3], "hidden": 8, "threads": 1}
    return mr.run("digits", out=tmp_path_factory.mktemp("history") / "run", verbose=False, **job)


def test_it_has_a_column_for_each_figure_of_an_epoch(result):
    found = result.history
    assert found["epoch"] == [1, 2, 3, 4] and found["train_loss"][-1] == pytest.approx(result.train_loss)
    assert [v is None for v in found["val_accuracy"]] == [True, False, True, False]
    assert max(v for v in found["val_accuracy"] if v is not None) == pytest.approx(result.val_accuracy)
    assert found["seconds"] == pytest.approx(result.seconds["per_epoch"], abs=1e-6)
    assert "history" not in json.loads(json.dumps(result.to_record()))


def test_a_frame_has_the_same_by_epoch(result):
    pandas = pytest.importorskip("pandas")
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame.index) == [1, 2, 3, 4]
    assert frame["val_accuracy"].max() == pytest.approx(result.val_accuracy)


def test_a_plot_has_the_loss_and_the_metric(result, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    loss, accuracy = result.plot()
    assert loss.get_title(loc="left") + loss.get_title() == "training loss" and accuracy.lines[
        0
    ].get_xdata().tolist() == [2, 4]
    assert accuracy.lines[0].get_ydata().max() == pytest.approx(result.val_accuracy)


@pytest.mark.parametrize(("package", "call"), [("pandas", "to_pandas"), ("matplotlib.pyplot", "plot")])
def test_a_package_that_is_missing_is_named(result, package, call, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(mr.InputError, match=f"{call} needs {package.split('.')[0]}, which is not installed"):
        getattr(result, call)()


def test_a_folder_that_is_gone_or_empty_is_said(result, tmp_path):
    from dataclasses import replace

    with pytest.raises(mr.InputError, match=r"metrics\.jsonl is not there"):
        _ = replace(result, out=str(tmp_path / "gone")).history
    shutil.copytree(result.out, tmp_path / "copy")
    (tmp_path / "copy" / "metrics.jsonl").write_text("")
    with pytest.raises(mr.InputError, match="no epoch has ended"):
        replace(result, out=str(tmp_path / "copy")).plot()
