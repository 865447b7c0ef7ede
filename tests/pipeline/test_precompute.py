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


@pytest.mark.parametrize("method", ["metis", "leiden", "hash"])
def test_a_cut_that_renumbers_nodes_is_refused(method: str, tmp_path: Path) -> None:
    job = resolve({**JOB, "partition": {"method": method}})
    with pytest.raises(InputError, match=f'partition.method "{method}"'):
        precompute(job, tmp_path / "samples", emit=silent, stop=lambda: False)
    assert not (tmp_path / "samples").exists()
