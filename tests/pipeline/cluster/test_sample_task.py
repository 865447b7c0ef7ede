"""The sampling task: what it must not do to its worker, which starts ranks too."""

import pytest

from millrace.pipeline.cluster.sample_task import SampleOrder, sample_bulk
from millrace.pipeline.config.load import resolve
from millrace.pipeline.setup import prepare, shared_dataset
from millrace.pipeline.training import dynamo


def test_the_compiler_is_left_out_before_a_job_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing makes an optimiser, the first of which would load it, and that sets a variable of the environment: the
    worker's ranks would no longer be forked."""
    done: list[str] = []
    monkeypatch.setattr(dynamo, "leave_compiler_out", lambda: done.append("left out"))
    monkeypatch.setattr(shared_dataset, "open_shared", lambda *of: done.append("opened"))

    def prepared(*of: object) -> None:
        raise InterruptedError(done)

    monkeypatch.setattr(prepare, "prepare_samples", prepared)
    with pytest.raises(InterruptedError, match=r"\['left out', 'opened'\]"):
        sample_bulk(SampleOrder(resolve({}).model_dump_json(), "data", "data", "npy", "queue", 1), 0, 0)
