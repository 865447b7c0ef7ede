"""The tests of a module are found by its name."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
LAYERS = ("storage", "stages", "pipeline")

FOLDER_TESTS: dict[str, tuple[str, ...]] = {
    "pipeline": ("whole_runs/test_run.py",),
    "pipeline/cluster": (
        "whole_runs/test_cluster.py",
        "whole_runs/test_partition_task.py",
        "whole_runs/test_rank_faults.py",
        "whole_runs/test_rank_losses.py",
        "whole_runs/test_signals.py",
    ),
    "pipeline/commands": ("whole_runs/test_cli.py", "pipeline/test_cli_bad_samples.py"),
    "pipeline/dashboard": ("whole_runs/test_dashboard.py", "whole_runs/test_dashboard_history.py"),
    "pipeline/datasets/readers": ("pipeline/datasets/readers/test_generated.py", "pipeline/datasets/test_open.py"),
    "pipeline/inference": ("pipeline/inference/test_predict.py", "pipeline/test_run_on_device.py"),
    "pipeline/interop": ("pipeline/interop/test_pyg_loader.py", "whole_runs/test_pyg_ranks.py"),
    "pipeline/machine": ("whole_runs/test_run.py",),
    "pipeline/planning": ("whole_runs/test_plan.py",),
    "pipeline/report": ("whole_runs/test_report.py",),
    "pipeline/setup": ("whole_runs/test_run.py", "whole_runs/test_cluster.py"),
    "pipeline/telemetry": ("whole_runs/test_run.py",),
    "pipeline/training": ("whole_runs/test_run.py", "whole_runs/test_cluster.py"),
    "pipeline/config": ("pipeline/config/test_load.py",),
    "pipeline/datasets/cleaning": ("pipeline/datasets/cleaning/test_clean.py",),
    "stages": ("stages/test_train_begin.py", "stages/partition/test_clustered.py"),
    "stages/comm": ("stages/comm/test_gloo.py",),
    "stages/evaluate": ("stages/evaluate/test_layerwise.py",),
    "stages/feed": ("stages/feed/test_queue_feed_minibatches.py", "stages/sample/test_remote_nodewise.py"),
    "stages/fetch": ("stages/fetch/test_exchange.py", "stages/neighbourhood/test_full_batch.py"),
    "stages/kernels/aggregation/cpu": ("stages/kernels/aggregation/test_aggregation.py",),
    "stages/kernels/aggregation/cuda": ("stages/kernels/aggregation/cuda/test_backend.py",),
    "stages/kernels/minibatch_cuda": ("stages/sample/test_resident.py", "stages/kernels/test_cuda_compiles.py"),
    "stages/kernels/partition": ("stages/partition/test_streaming.py", "stages/placement/test_chunks.py"),
    "stages/kernels/runtime": ("stages/kernels/runtime/test_threads.py", "stages/kernels/test_cuda_compiles.py"),
    "stages/kernels/sampling": ("stages/sample/test_neighbor.py", "stages/sample/test_layerwise.py"),
    "stages/kernels/sampling/cpu": (
        "stages/sample/test_neighbor.py",
        "stages/sample/test_labor.py",
        "stages/sample/test_layerwise.py",
    ),
    "stages/kernels/sampling/cuda": ("stages/kernels/sampling/cuda/test_backend.py",),
    "stages/kernels/sampling/rapids": ("stages/kernels/sampling/rapids/test_neighbor.py",),
    "stages/kernels/sampling/reference": (
        "stages/sample/test_neighbor.py",
        "stages/sample/test_labor.py",
        "stages/sample/test_layerwise.py",
    ),
    "stages/memory": ("stages/memory/test_arena.py",),
    "stages/neighbourhood": ("stages/neighbourhood/test_full_batch.py",),
    "stages/nn": ("stages/nn/test_dense.py",),
    "stages/placement": ("stages/placement/test_row_blocks.py", "stages/models/test_lazy.py"),
    "stages/reduce": ("stages/reduce/test_batch_norm_step.py",),
    "stages/sample": ("stages/sample/test_layerwise.py", "stages/sample/test_remote_nodewise.py"),
    "stages/schedule": ("whole_runs/test_grappa.py", "whole_runs/test_retexo.py"),
    "storage/queue": ("storage/queue/test_zarr.py", "storage/queue/test_object_store.py"),
    "storage": ("storage/partition/test_book.py",),
}
"""The test files of a folder's modules that have none of their own name."""


def module_files() -> list[Path]:
    """The modules of the three layers, relative to the root."""
    found = (p.relative_to(ROOT) for layer in LAYERS for p in (ROOT / layer).rglob("*.py"))
    return sorted(p for p in found if p.stem not in ("__init__", "__main__"))


def is_of(test: Path, module: Path) -> bool:
    """Says whether a test file's name is that of a module, perhaps with an aspect after it."""
    name = test.stem.removeprefix("test_")
    return test.parent == module.parent and (name == module.stem or name.startswith(module.stem + "_"))


def is_of_folder(test: Path, folder: Path) -> bool:
    """Says whether a test file is that of a whole folder: ``stages/models/test_models.py``."""
    return test.parent == folder and test.stem == f"test_{folder.name}"


MODULES = module_files()
FILES = sorted(p.relative_to(TESTS) for layer in LAYERS for p in (TESTS / layer).rglob("test_*.py"))


def test_each_module_has_a_test_of_its_name_or_its_folder_has_one():
    unnamed = {m for m in MODULES if not any(is_of(test, m) or is_of_folder(test, m.parent) for test in FILES)}
    assert not sorted(str(m) for m in unnamed if str(m.parent) not in FOLDER_TESTS)
    assert not sorted(set(FOLDER_TESTS) - {str(m.parent) for m in unnamed}), "folders that need no entry"


def test_each_test_file_is_named_for_a_module_a_folder_or_in_the_table():
    listed = {test for tests in FOLDER_TESTS.values() for test in tests}
    folders = {m.parent for m in MODULES}
    lost = [
        test
        for test in FILES
        if not any(is_of(test, m) for m in MODULES)
        and not any(is_of_folder(test, folder) for folder in folders)
        and str(test) not in listed
    ]
    assert not lost


@pytest.mark.parametrize("folder", sorted(FOLDER_TESTS))
def test_the_table_names_files_that_exist(folder: str):
    assert not [test for test in FOLDER_TESTS[folder] if not (TESTS / test).is_file()]


@pytest.mark.parametrize(
    ("test", "module", "yes"),
    [
        ("storage/test_graph.py", "storage/graph.py", True),
        ("storage/test_graph_of_weights.py", "storage/graph.py", True),
        ("storage/test_graphs.py", "storage/graph.py", False),
        ("storage/test_graph.py", "stages/graph.py", False),
    ],
)
def test_names_are_compared_whole(test: str, module: str, yes: bool):
    assert is_of(Path(test), Path(module)) is yes
