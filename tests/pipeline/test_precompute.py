"""What `millrace sample` refuses before anything is written."""

from pathlib import Path

import pytest

from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.pipeline.telemetry.events import silent
from millrace.storage.errors import InputError

JOB = {
    "dataset": "sbm:nodes=60,classes=2,degree=4,features=3",
    "ranks": 2,
    "epochs": 1,
    "sampler": {"fanout": [3, 2]},
    "bulk": {"topology": "partitioned"},
}


REFUSED = {
    "GPUs that are not there": ({"partition": {"method": "leiden"}}, "GPU"),
    "a cut into more parts than nodes": ({"ranks": 61}, "61 parts"),
    "owners of nobody": ({"partition": {"owners": "nowhere.npy"}}, "nowhere.npy"),
    "a folder without parts": ({"partition": {"owners": "."}}, "holds no parts"),
    "seeds of ranks": ({"bulk": {"topology": "partitioned", "local_seeds": True}}, "bulk.local_seeds is true"),
    "full batches": ({"system": "sar", "sampler": {}}, "does not sample minibatches"),
    "own parts": ({"system": "grappa"}, "does not sample minibatches"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    more, phrase = REFUSED[case]
    job = resolve({**JOB, **more, "model": {"layers": 2}})
    with pytest.raises(InputError, match=phrase):
        precompute(job, tmp_path / "samples", emit=silent, stop=lambda: False)
    assert not list(tmp_path.iterdir())
