"""The sampling task: what it loads into its worker, which starts ranks too."""

import json
from pathlib import Path

import pytest

import millrace as mr
from millrace.pipeline.assembly.data_part import DataPart
from millrace.pipeline.assembly.sample_part import SamplePart
from millrace.pipeline.cluster import sample_task
from millrace.pipeline.config.load import resolve
from millrace.pipeline.machine import gpus
from millrace.stages.feed.queue_feed import Sampled
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.fresh_python import run_python
from millrace.tests.fuzz.targets import dataset

TASK = """
import json, sys
from millrace.pipeline.assembly.data_part import DataPart
from millrace.pipeline.assembly.sample_part import SamplePart
from millrace.pipeline.cluster.sample_task import SampleOrder, sample_bulk
from millrace.stages.feed.queue_feed import Sampled
from millrace.stages.sample.neighbor import NeighborSampler

data = DataPart(sys.argv[1], "data", "mapped", "memory")
sample = SamplePart(Sampled(NeighborSampler((2, 2))), 4, 2, 0, "cpu")
store = {"fingerprint": {}, "bulk_size": 2, "meta": {"minibatches_per_epoch": 2}}
receipt, *_ = sample_bulk(SampleOrder(data, sample, sys.argv[2], store, 1, False), 0, 0)
print(json.dumps([receipt.edges, sorted(sys.modules)]))
"""


def test_a_task_loads_no_models_losses_or_own_code(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", dataset(), features_format="npy")
    code, out, err = run_python("-c", TASK, tmp_path / "data", tmp_path / "queue")
    assert code == 0, err
    edges, loaded = json.loads(out)
    assert edges > 0
    wrong = [m for m in loaded if m.startswith(("millrace.stages.models", "millrace.pipeline.custom"))]
    assert not wrong and "millrace.stages.losses" not in loaded


@pytest.mark.parametrize(
    ("config", "kernel"),
    [
        ({}, "cuda"),
        ({"queue": {"kind": "zarr"}}, "cuda"),
        ({"queue": {"kind": "zarr"}, "executor": "dask", "ranks": 2}, "cuda"),
        ({"queue": {"kind": "zarr"}, "bulk": {"topology": "partitioned"}}, "cuda"),
        ({"queue": {"kind": "zarr"}, "kernel": "cpu"}, "cpu"),
    ],
    ids=str,
)
def test_gpus_draw_into_a_queue_on_disk(config: dict, kernel: str) -> None:
    assert resolve({**config, "device": "cuda"}).kernel == kernel


@pytest.mark.parametrize(
    ("free", "may_choose", "drawn_by"),
    [(1 << 40, True, "cuda"), (1 << 10, True, "cpu"), (None, True, "cpu"), (None, False, "cuda")],
)
def test_a_worker_without_a_gpu_or_room_there_draws_the_same(tmp_path, monkeypatch, free, may_choose, drawn_by) -> None:
    """Unless the job names the kernel. The bits of both are compared where kernels are tested."""
    mr.write_dataset(tmp_path / "data", dataset(), features_format="npy")

    def free_bytes() -> int:
        if free is None:
            raise InputError("torch sees no GPU here")
        return free

    seen = []
    monkeypatch.setattr(gpus, "free_bytes", free_bytes)
    monkeypatch.setattr("millrace.stages.kernels.sampling_backend", seen.append)
    sample = SamplePart(Sampled(NeighborSampler((2, 2))), 4, 2, 0, "cuda")
    place = DataPart(str(tmp_path / "data"), "data", "mapped", "memory")
    store = {"fingerprint": {}, "bulk_size": 2, "meta": {"minibatches_per_epoch": 2}}
    sample_task._open(sample_task.SampleOrder(place, sample, str(tmp_path / "queue"), store, 1, may_choose))
    assert seen == [drawn_by]
