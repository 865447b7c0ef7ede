"""Tables cut into many pieces, and the comparison of what is converted in pieces with what is read in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline.datasets import ReadOptions, open_dataset
from millrace.pipeline.ingest import arrays, budget, convert, nodes, spill
from millrace.storage import fingerprint
from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.store import arrays as store_arrays


def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is cut into many pieces."""
    monkeypatch.setattr(store_arrays, "CHUNK_BYTES", 1024)
    monkeypatch.setattr(fingerprint, "LEAF_BYTES", 1024)
    monkeypatch.setattr(fingerprint, "SAMPLED_ROWS", 7)
    monkeypatch.setattr(arrays, "SLICE_BYTES", 4096)
    monkeypatch.setattr(budget, "LEAST_EDGES", 64)
    monkeypatch.setattr(nodes, "SPAN_ROWS", 8)
    monkeypatch.setattr(spill, "CELLS", 16)
    monkeypatch.setattr(convert, "budget_of", lambda *_: budget.Budget(1 << 14))


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of all files below a folder."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def parquet(folder: Path, stem: str, table: pa.Table, cuts=(0.3, 0.3, 0.8), group=7) -> None:
    """Several files, of which one is empty, with several row groups each."""
    folder.mkdir(exist_ok=True)
    marks = [0, *(int(c * table.num_rows) for c in cuts), table.num_rows]
    for i, (a, b) in enumerate(zip(marks, marks[1:])):
        pq.write_table(table.slice(a, b - a), folder / f"{stem}-{i}.parquet", row_group_size=group)


def same(
    folder: Path, tmp_path: Path, options: ReadOptions, features="zarr", feature_dtype=None, **given: Any
) -> mr.Dataset:
    """Convert and compare; return the dataset."""
    want, got = tmp_path / "want", tmp_path / "got"
    for path in (want, got):
        if path.exists():
            path.rename(path.with_name(f"{path.name}-{len(list(tmp_path.iterdir()))}"))
    dataset = open_dataset(folder, options=options, **given)
    form = {"feature_dtype": feature_dtype}
    write_dataset(want, dataset, features_format=features, graph_format=features, **form)
    mr.convert(folder, got, options=options, features=features, graph=features, verbose=False, **form, **given)
    a, b = contents(want), contents(got)
    assert a.keys() == b.keys()
    assert not [name for name in a if a[name] != b[name]]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".ingest")]
    return open_dataset_store(got)


class Killed(BaseException):
    """Ends an ingest as SIGKILL does, as far as one process can tell."""


def _dying(task: Callable[..., Any]) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        task(*arguments)
        raise Killed

    return run


def killed(stage: str, before: bool) -> Callable[..., Iterator[tuple[int, Any]]]:
    """Runs tasks in place of `tasks.inline`, up to one of a stage: killed after its files are written but not recorded,
    or after its record."""

    def run(name: str, calls: Any) -> Iterator[tuple[int, Any]]:
        for number, (recorded, task, record, *arguments) in enumerate(calls):
            if name == stage and number == len(calls) // 2:
                recorded(_dying(task) if before else task, record, *arguments)
                raise Killed
            yield number, recorded(task, record, *arguments)

    return run
