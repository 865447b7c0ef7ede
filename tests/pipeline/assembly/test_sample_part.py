"""Parts of a job: plain, equal if they say the same, and the same after travel."""

import pickle
from pathlib import Path

import numpy as np

import millrace as mr
from millrace.pipeline.assembly.data_part import DataPart, graph_and_seeds
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.records import make_system
from millrace.pipeline.setup.sampling import sampling_of
from millrace.storage.dataset_store import write_dataset
from millrace.tests.contracts.seed_plan import seed_plan

JOB = {"dataset": "sbm:nodes=60,classes=2,degree=4,features=3", "sampler": {"fanout": [3, 2]}}


def test_parts_travel_and_plan_the_same_seeds(tmp_path: Path) -> None:
    job, data = resolve({**JOB, "train": {"batch_size": 4}}), mr.open_dataset(JOB["dataset"])
    part = sampling_of(job, data, make_system(job)).sample
    write_dataset(tmp_path / "data", data)
    handle = DataPart(str(tmp_path / "data"), "data", "memory", "memory")
    there, opened = pickle.loads(pickle.dumps((part, handle)))
    assert (there, opened) == (part, handle)
    mine, theirs = (p.plan(graph_and_seeds(d)) for p, d in ((part, data), (there, opened.open())))
    wanted = seed_plan(job, data).request(1, 0).seeds
    for plan in (mine, theirs):
        assert all(np.array_equal(a, b) for a, b in zip(plan.request(1, 0).seeds, wanted, strict=True))


def test_parts_hold_no_arrays() -> None:
    job, data = resolve(JOB), mr.open_dataset(JOB["dataset"])
    assert len(pickle.dumps(sampling_of(job, data, make_system(job)).sample)) < 1000
