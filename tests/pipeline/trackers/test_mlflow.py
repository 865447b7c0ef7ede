"""MLflow's file store, as its client reads it."""

from importlib.util import find_spec

import pytest

import millrace as mr
from millrace.pipeline.trackers import tracking

# Looked up, not imported: every test process collects this file.
pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed: pip install '.[mlflow]'")
JOB = {"fanout": [3, 2], "hidden": 8, "epochs": 3, "batch_size": 32, "threads": 1, "verbose": False}
SPEC = "sbm:nodes=200,classes=3,degree=6,features=4,train=0.4"


def test_a_run_is_in_its_store_and_goes_on_there(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlflow"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "own")
    monkeypatch.chdir(tmp_path)
    sbm = mr.open_dataset(SPEC)
    result = mr.run(sbm, out=tmp_path / "run", track="mlflow", **JOB)
    client = MlflowClient()
    experiment = client.get_experiment_by_name("own")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.params["train.batch_size"] == "32"
    assert run.data.metrics["test_accuracy"] == pytest.approx(result.test_accuracy)
    losses = client.get_metric_history(run.info.run_id, "train_loss")
    assert [m.step for m in losses] == [1, 2, 3] and losses[-1].value == pytest.approx(result.train_loss)
    assert {a.path for a in client.list_artifacts(run.info.run_id)} == {"job.toml", "result.json", "model.pt"}
    mr.run(sbm, out=tmp_path / "run", track="mlflow", resume=True, **{**JOB, "epochs": 4})
    [again] = client.search_runs([experiment.experiment_id])
    assert again.info.run_id == run.info.run_id and again.info.status == "FINISHED"
    assert [m.step for m in client.get_metric_history(run.info.run_id, "train_loss")] == [1, 2, 3, 4]


def test_a_server_that_is_down_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(tracking, "END_S", 1.0)
    notes = []
    result = mr.run(SPEC, out=tmp_path / "run", track="mlflow", emit=lambda e: notes.append(str(e)), **JOB)
    assert result.status == "done"
    # It is still trying, or has given up.
    assert [n for n in notes if "tracker 'mlflow'" in n and "without it" in n]
