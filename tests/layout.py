"""Mapping from sources to their tests: prints the test files of changed sources, for ``make check``.

    python tests/layout.py [BASE]

Changes are those since the branch left BASE, committed or not. Whole runs are left out unless they have changed
themselves.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
LAYERS = ("storage", "stages", "pipeline")
ALWAYS = ("test_layers.py", "test_layout.py")

FOLDER_TESTS: dict[str, tuple[str, ...]] = {
    "pipeline": ("whole_runs/test_run.py",),
    "pipeline/assembly": ("pipeline/assembly/test_data_part.py", "whole_runs/test_mapped_parts.py"),
    "pipeline/cluster": (
        "whole_runs/test_cluster.py",
        "whole_runs/test_held_clients.py",
        "whole_runs/test_partition_task.py",
        "whole_runs/test_rank_faults.py",
        "whole_runs/test_signals.py",
    ),
    "pipeline/commands": ("whole_runs/test_cli.py", "pipeline/test_cli_bad_samples.py"),
    "pipeline/commands/shared": ("whole_runs/test_cli.py",),
    "pipeline/dashboard": ("whole_runs/test_dashboard.py", "whole_runs/test_dashboard_history.py"),
    "pipeline/datasets/readers": ("pipeline/datasets/test_open.py",),
    "pipeline/custom": ("whole_runs/test_own_code.py",),
    "pipeline/inference": ("pipeline/inference/test_predict.py", "pipeline/test_run_on_device.py"),
    "pipeline/interop": ("pipeline/interop/test_pyg_loader.py", "whole_runs/test_pyg_ranks.py"),
    "pipeline/machine": ("whole_runs/test_run.py",),
    "pipeline/planning": ("whole_runs/test_plan.py",),
    "pipeline/report": ("whole_runs/test_report.py",),
    "pipeline/setup": ("whole_runs/test_run.py", "whole_runs/test_cluster.py"),
    "pipeline/supervision": (
        "pipeline/supervision/test_generation.py",
        "whole_runs/test_cluster.py",
        "whole_runs/test_frozen_scheduler.py",
        "whole_runs/test_rank_faults.py",
    ),
    "pipeline/systems": (
        "pipeline/systems/test_fifth_system.py",
        "whole_runs/test_run.py",
        "whole_runs/test_sar.py",
        "whole_runs/test_grappa.py",
        "whole_runs/test_retexo.py",
    ),
    "pipeline/telemetry": ("whole_runs/test_run.py",),
    "pipeline/training": ("whole_runs/test_run.py", "whole_runs/test_cluster.py"),
    "pipeline/config": ("pipeline/config/test_load.py",),
    "pipeline/datasets/cleaning": ("pipeline/datasets/cleaning/test_clean.py",),
    "stages": ("stages/test_forward_backward.py", "stages/partition/test_clustered.py"),
    "stages/comm": ("stages/comm/test_gloo.py",),
    "stages/evaluate": ("stages/evaluate/test_layerwise.py",),
    "stages/feed": ("stages/feed/test_queue_feed_minibatches.py", "stages/sample/test_remote_nodewise.py"),
    "stages/fetch": ("stages/fetch/test_exchange.py", "stages/neighbourhood/test_full_batch.py"),
    "stages/kernels/aggregation/cpu": ("stages/kernels/aggregation/test_aggregation.py",),
    "stages/kernels/aggregation/cuda": ("stages/kernels/aggregation/cuda/test_backend.py",),
    "stages/kernels/minibatch_cuda": ("stages/sample/test_resident.py", "stages/kernels/test_cuda_compiles.py"),
    "stages/kernels/partition": (
        "stages/partition/test_metis_streamed.py",
        "stages/partition/test_streaming.py",
        "stages/placement/test_chunks.py",
    ),
    "stages/kernels/row_block": ("stages/sample/test_remote_nodewise.py",),
    "stages/kernels/runtime": ("stages/kernels/runtime/test_threads.py", "stages/kernels/test_cuda_compiles.py"),
    "stages/kernels/sampling": ("stages/sample/test_neighbor.py", "stages/sample/test_layerwise.py"),
    "stages/kernels/sampling/cpu": (
        "stages/sample/test_neighbor.py",
        "stages/sample/test_labor.py",
        "stages/sample/test_layerwise.py",
    ),
    "stages/kernels/sampling/cuda": ("stages/kernels/sampling/cuda/test_backend.py",),
    "stages/kernels/sampling/matrix": ("stages/sample/test_matrix.py",),
    "stages/kernels/sampling/rapids": ("stages/kernels/sampling/rapids/test_neighbor.py",),
    "stages/learned": ("whole_runs/test_learned.py", "whole_runs/test_learned_on_device.py"),
    "stages/memory": ("stages/memory/test_arena.py",),
    "stages/neighbourhood": ("stages/neighbourhood/test_full_batch.py",),
    "stages/nn": ("stages/nn/test_dense.py",),
    "stages/placement": ("stages/placement/test_row_blocks.py", "stages/models/test_phased.py"),
    "stages/sample": ("stages/sample/test_layerwise.py", "stages/sample/test_remote_nodewise.py"),
    "stages/schedule": ("whole_runs/test_grappa.py", "whole_runs/test_retexo.py"),
    "storage/queue": ("storage/queue/test_zarr.py", "storage/queue/test_object_store.py"),
    "storage/stored": ("stages/partition/test_rows.py",),
}
"""Test files of a folder's modules that have none of their own name."""


def module_files() -> list[Path]:
    """Modules of the three layers, relative to the root."""
    found = (p.relative_to(ROOT) for layer in LAYERS for p in (ROOT / layer).rglob("*.py"))
    return sorted(p for p in found if p.stem not in ("__init__", "__main__"))


def is_of(test: Path, module: Path) -> bool:
    """True if a test file is named after a module, perhaps with an aspect after it."""
    name = test.stem.removeprefix("test_")
    return test.parent == module.parent and (name == module.stem or name.startswith(module.stem + "_"))


def is_of_folder(test: Path, folder: Path) -> bool:
    """True if a test file is that of a whole folder: ``stages/models/test_models.py``."""
    return test.parent == folder and test.stem == f"test_{folder.name}"


def mirrored_files() -> list[Path]:
    """Test files in the folders that mirror those of the layers, relative to ``tests``."""
    return sorted(p.relative_to(TESTS) for layer in LAYERS for p in (TESTS / layer).rglob("test_*.py"))


def files_of(module: Path, files: Iterable[Path]) -> set[Path]:
    """Files that test a module: those of its name, else those of its folder."""
    files = list(files)
    named = {test for test in files if is_of(test, module)}
    of_folder = {test for test in files if is_of_folder(test, module.parent)}
    return named or of_folder | {Path(test) for test in FOLDER_TESTS.get(str(module.parent), ())}


def files_for_changes(changed: Iterable[Path], sources: dict[Path, str]) -> set[Path]:
    """Test files to run after some files have changed.

    Args:
        changed: relative to the root.
        sources: content of each test file, by path relative to ``tests``.
    """
    found = {Path(name) for name in ALWAYS}
    for path in changed:
        if path.suffix != ".py":
            continue
        if path.parts[0] in LAYERS:
            found |= {test for test in files_of(path, sources) if test.parts[0] != "whole_runs"}
        elif path.parts[0] == "tests" and path.name.startswith("test_"):
            found.add(path.relative_to("tests"))
        elif path.parts[:2] == ("tests", "contracts"):
            users = (f"contracts.{path.stem} import", f"contracts import {path.stem}")
            found |= {t for t, text in sources.items() if t.parts[0] in LAYERS and any(use in text for use in users)}
        elif path.parts[0] == "benchmarks":
            found |= {Path("benchmarks", f"test_{path.stem}.py")}
    return found & set(sources)


def changed_files(base: str) -> list[Path]:
    """Files that have changed since this branch left `base`, relative to the root."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.splitlines() if done.returncode == 0 else []

    since = git("merge-base", base, "HEAD") or ["HEAD"]
    names = git("diff", "--name-only", "--diff-filter=d", since[0])
    return sorted(Path(name) for name in {*names, *git("ls-files", "--others", "--exclude-standard")})


if __name__ == "__main__":
    texts = {p.relative_to(TESTS): p.read_text() for p in TESTS.rglob("test_*.py")}
    chosen = files_for_changes(changed_files(sys.argv[1] if len(sys.argv) > 1 else "main"), texts)
    print(*sorted(str(Path("tests") / test) for test in chosen))
