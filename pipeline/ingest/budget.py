"""Sizes of an ingest's pieces, from the memory that it may take, and the space that it needs on disk."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from ...storage.errors import InputError

DRIVER_BYTES, WORKER_BYTES, LEAST_BYTES = 288 << 20, 144 << 20, 48 << 20
"""Memory of the driver's process and of a worker's before they hold any data, and the least for a task's data."""
EDGE_BATCH_BYTES, EDGE_SORT_BYTES = 160, 64
"""Bytes that cleaning takes for each edge of a batch, and sorting for each edge of a range; as much again for weights,
and for times."""
LEAST_EDGES = 1 << 12
"""Fewest edges of a batch or a range."""
EDGE_ROW_COPIES = 6
"""Copies of the features of an edge that cleaning and sorting hold at once."""
TASKS_PER_SLOT = 4
"""Tasks of a stage for each that runs at once, so that all end at about the same time."""
ROW_COPIES = 16
"""Copies of a row of features that a task may hold at once."""


@dataclass(frozen=True)
class Budget:
    """Memory for the data of one task, and how many tasks run at once."""

    task_bytes: int
    slots: int = 1

    def edge_batch(self, values: int, row_bytes: int = 0) -> int:
        """Edges that are cleaned at a time, with so many `values`, weights and times, and bytes of features each."""
        edge = EDGE_BATCH_BYTES * (1 + values) + EDGE_ROW_COPIES * row_bytes
        return min(max(self.task_bytes // edge, LEAST_EDGES), 1 << 22)

    def edge_group(self, values: int, row_bytes: int = 0) -> int:
        """Edges that are sorted at a time: see `edge_batch`."""
        return max(self.task_bytes // (EDGE_SORT_BYTES * (1 + values) + EDGE_ROW_COPIES * row_bytes), LEAST_EDGES)

    def span(self, batch: int, rows: int) -> int:
        """Number of the `rows` that one task reads: up to four batches, fewer where workers would be idle."""
        return max(1, min(4 * batch, max(batch // 4, -(-rows // (TASKS_PER_SLOT * self.slots)))))

    def rows(self, row_bytes: int) -> int:
        """Rows of a table that are read at a time."""
        return min(max(self.task_bytes // (ROW_COPIES * max(1, row_bytes)), 1), 1 << 20)


def budget_of(memory: int, workers: int, in_process: bool) -> Budget:
    """Memory of each task, if all processes together may take `memory` bytes. Raises InputError: that is too little."""
    base = DRIVER_BYTES + (0 if in_process else workers * WORKER_BYTES)
    tasks = 1 if in_process else workers
    if memory - base < tasks * LEAST_BYTES:
        least = (base + tasks * LEAST_BYTES >> 20) + 1
        whose = "this process takes" if in_process else f"the driver and its workers ({workers}) take"
        raise InputError(f"memory is {memory / 2**20:,.0f} MiB; {whose} {least:,} MiB or more: set memory={least}MiB")
    return Budget((memory - base) // tasks, tasks)


def disk_bytes(num_nodes: int, num_edges: int, feature_values: int, spilled_edge: int, sorted_edge: int) -> int:
    """Bytes on disk at the peak of an ingest, an upper bound, since arrays are compressed. `feature_values` are numbers
    of all rows of features; twice those that are spilled, since nodes come in another order."""
    stored = num_edges * sorted_edge
    return 64 * num_nodes + max(num_edges * spilled_edge + stored, 2 * stored, stored + 4 * feature_values)


def check_disk(folder: Path, need: int, held: int) -> None:
    """Raise InputError unless `folder` has room for `need` bytes, of which `held` are there."""
    free = shutil.disk_usage(folder).free
    if need - held > free:
        said = f"converting takes up to {_shown(need)} of disk in {folder}, where {_shown(free)} are free"
        raise InputError(f"{said}; free some, or choose another --out")


def _shown(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:,.2f} MiB"


def held_by(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
