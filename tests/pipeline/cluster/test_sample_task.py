"""The sampling task: what it loads into its worker, which starts ranks too."""

import json
from pathlib import Path

from millrace.storage.dataset_store import write_dataset
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
receipt = sample_bulk(SampleOrder(data, sample, sys.argv[2], {}, 2, 1), 0, 0)
print(json.dumps([receipt["edges"], sorted(sys.modules)]))
"""


def test_a_task_loads_no_models_losses_or_own_code(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", dataset(), features_format="npy")
    code, out, err = run_python("-c", TASK, tmp_path / "data", tmp_path / "queue")
    assert code == 0, err
    edges, loaded = json.loads(out)
    assert edges > 0
    wrong = [m for m in loaded if m.startswith(("millrace.stages.models", "millrace.pipeline.custom"))]
    assert not wrong and "millrace.stages.losses" not in loaded
