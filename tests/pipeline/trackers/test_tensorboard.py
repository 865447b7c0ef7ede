"""TensorBoard's event files, as TensorBoard reads them."""

from importlib.util import find_spec

import pytest

import millrace as mr

# Looked up, not imported: every test process collects this file.
pytestmark = pytest.mark.skipif(
    find_spec("tensorboard") is None, reason="tensorboard is not installed: pip install '.[tensorboard]'"
)


def test_a_run_is_in_its_event_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = {"fanout": [3, 2], "hidden": 8, "epochs": 3, "batch_size": 32, "threads": 1, "verbose": False}
    sbm = mr.open_dataset("sbm:nodes=200,classes=3,degree=6,features=4,train=0.4")
    result = mr.run(sbm, out=tmp_path / "run", track="tensorboard", **job)
    mr.run(sbm, out=tmp_path / "run", track="tensorboard", resume=True, **{**job, "epochs": 5})
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    losses = found.Scalars("epoch/train_loss")
    assert [e.step for e in losses] == [1, 2, 3, 4, 5]
    assert losses[2].value == pytest.approx(result.train_loss, rel=1e-6)
    assert found.Scalars("epoch/test_accuracy")[0].value == pytest.approx(result.test_accuracy, rel=1e-6)
    assert found.Scalars("second/rank_0/rss_mib")
    texts = found.Tags()["tensors"]
    assert "config/text_summary" in texts and "status/text_summary" in texts
