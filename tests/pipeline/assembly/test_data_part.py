"""The data of a job as a handle: what each process opens of it."""

from pathlib import Path

import numpy as np

from millrace.pipeline.assembly.data_part import DataPart, graph_and_seeds
from millrace.storage.dataset_store import write_dataset
from millrace.tests.fuzz.targets import dataset


def test_a_sampler_reads_no_rows_and_no_labels(tmp_path: Path) -> None:
    data = dataset()
    write_dataset(tmp_path / "data", data)
    opened = DataPart(str(tmp_path / "data"), "a name", "memory", "memory").open()
    found = graph_and_seeds(opened)
    assert opened.name == "a name" and not {"labels", "features"} & vars(opened).keys()
    assert np.array_equal(found.graph.indices, data.graph.indices)
    assert np.array_equal(found.seeds, data.split.train)
    assert found.pairs is None and found.pair_time is None
