"""A store renumbered part by part, from end to end: the stages, and the manifest at the end. The same bits as
`write_dataset` of `reorder`, in bounded memory."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...stages.partition.base import Cut, Partitioner, can_travel
from ...stages.partition.quality import PartCounts, PartitionQuality
from ...storage.dataset import PAIR_ARRAYS, SPLITS
from ...storage.dataset_store import FEATURES_FILE, KIND, features_dtype, graph_access
from ...storage.errors import InputError
from ...storage.fingerprint import GRAPH_DIGESTS, digest_record, fingerprint_of
from ...storage.graph import degree_summary
from ...storage.lazy_dataset import LazyDataset
from ...storage.node_names import INTEGER_NAMES
from ...storage.store.manifest import write_manifest
from ...storage.store.store import Store, open_store
from ...storage.stored.facts import FACTS
from ..config.load import Job
from ..ingest import edges as edge_tasks
from ..ingest.arrays import Matrix, Output, Piece, Written, write_outputs
from ..ingest.budget import Budget, budget_of, check_disk, held_by
from ..ingest.convert import executing
from ..ingest.features import gathered
from ..ingest.scratch import STORE, commit, scratch
from ..ingest.tasks import Stages
from ..telemetry.events import Emit, Note, StageEnded
from . import tasks

LAYOUT = 3
"""Changes with the files of a renumbering under way: one of another version is not gone on with."""
PERHAPS = (*FACTS, "has_unknown", "time_unit", INTEGER_NAMES)
"""Entries of a manifest that stay as they are; not all datasets have all."""
NAME_ROWS = 1 << 20
"""Names that one task writes."""
ROW_COPIES = 4
"""Copies of a row of features that a task may hold at once."""


def moves_in_pieces(data: LazyDataset) -> bool:
    """True if a store's dataset has no features of edges, and no times, which `relabel` refuses."""
    return not (data.num_edge_features or data.graph.has_later)


def relabel(
    job: Job, data: LazyDataset, cut: Cut, out: Path, memory: int, emit: Emit
) -> tuple[PartitionQuality, float]:
    """Write a store's dataset with its nodes renumbered part by part; its features can be mapped, and its graph if
    that of the source can.

    Args:
        job: on a cluster, its producers do the work.
        data: the dataset.
        cut: assigns nodes to parts.
        out: folder of the new store.
        memory: bound of the memory of all processes together, in bytes, without some 40 bytes for each node, and
            without what the partitioner takes.
        emit: called with events.

    Returns:
        The quality of the parts, and seconds.

    Raises:
        InputError: the disk is too small, or the partitioner refuses.
        RunError: a task failed; the same call goes on.
    """
    if not moves_in_pieces(data):
        what = "features of edges" if data.num_edge_features else "times"
        raise InputError(
            f"{data.path} has {what}, which a renumbering in pieces does not move in this version; leave --memory and "
            "executor=dask out, if it is small beside the memory of a command, or use mr.reorder, in memory"
        )
    start, in_process = time.perf_counter(), job.executor != "dask"
    plan = {
        "layout": LAYOUT,
        "plan": digest_record(
            {
                "source": dict(open_store(data.path, KIND).fingerprint),
                "path": str(data.path.resolve()),
                "cut": [repr(cut.partitioner), cut.parts, cut.seed, cut.order],
                "memory": memory,
            }
        ),
    }
    workers, gpus = (1, 0) if in_process else _on_cluster(job, cut.partitioner, out)
    with (
        scratch(out, plan) as (folder, resumed),
        executing(job, workers, in_process, emit, gpus, (folder, data.path)) as (execute, slots),
    ):
        if resumed and any((folder / "done").glob("*")):
            emit(Note(f"going on with the renumbering into {out} that was stopped"))
        made = _Relabelling(data, cut, budget_of(memory, slots, in_process), Stages(folder, execute, emit))
        quality = made.run()
        commit(folder, out)
    seconds = time.perf_counter() - start
    emit(StageEnded("relabel", seconds))
    return quality, seconds


def _on_cluster(job: Job, partitioner: Partitioner, out: Path) -> tuple[int, int]:
    from ..cluster.dask_cluster import gpus_to_cut

    return job.cluster.producers, gpus_to_cut(job, partitioner, out)


class _Relabelling:
    """One renumbering, in the folder of `stages`. Call `run`."""

    def __init__(self, data: LazyDataset, cut: Cut, budget: Budget, stages: Stages) -> None:
        self.data, self.cut, self.budget, self.stages = data, cut, budget, stages
        self.folder, self.store = stages.folder, stages.folder / STORE
        self.source: Store = open_store(data.path, KIND)
        entries = self.source.entries
        self.npy = graph_access(self.source) == "mapped"
        of_edges: dict[str, Any] = {"weighted": "edge_weight" in entries, "has_ids": "edge_id" in entries}
        offsets, index = (0, data.num_nodes), entries["indices"]["dtype"]
        self.edges = edge_tasks.EdgeWork(self.folder, edge_tasks.AS_THEY_ARE, offsets, index=index, **of_edges)
        self.work = tasks.Work(self.folder, data.path.resolve(), data.num_nodes)
        dtype = str(tasks.features_of(self.work).dtype)
        self.matrix = Matrix(self.store, (data.num_nodes, data.num_features), True, dtype, features_dtype(self.source))
        self.most = self.budget.edge_group(*self.edges.held)

    def run(self) -> PartitionQuality:
        """Make the store, with its manifest."""
        self._check_space()
        bounds = self._number_nodes()
        return self._write([*self._edges(bounds), *self._nodes()], self._features())

    def _check_space(self) -> None:
        edge = sum(field.nbytes for field in self.edges.fields)
        stored = self.data.graph.num_edges * (edge - 8 + np.dtype(self.edges.index).itemsize)
        features = self.data.num_nodes * self.matrix.row_bytes
        peak = max(self.data.graph.num_edges * edge + stored, 2 * stored, stored + 2 * features)
        check_disk(self.folder.parent, 64 * self.data.num_nodes + peak, held_by(self.folder))

    def _number_nodes(self) -> list[int]:
        cut, most = self.cut, max(1, self.most // 2)
        arguments = (self.work, cut, most)
        if can_travel(cut.partitioner):
            (found,) = self.stages.run("assign", "assigning nodes to parts", tasks.assign_numbers, [arguments])
        else:
            found = self.stages.run_here("assign", lambda: tasks.assign_numbers(*arguments))
        return found["bounds"]

    def _edges(self, bounds: Sequence[int]) -> list[Output]:
        items = [(self.work, self.edges, k, *bounds[k : k + 2]) for k in range(len(bounds) - 1)]
        self.stages.run("spill", "renumbering edges", tasks.spill_rows, items)
        found = edge_tasks.sort_spilled(self.stages, self.edges, len(items), self.budget)
        return edge_tasks.sorted_outputs(self.edges, found, "npy" if self.npy else "zarr")

    def _nodes(self) -> list[Output]:
        """Labels, split, names, and where parts begin."""
        work, folder, total = self.work, self.folder, self.data.num_nodes
        (self.labels,) = self.stages.run("labels", "labels and split", tasks.move_labels, [(work,)])
        shapes = self.labels["shapes"]
        outputs = [self._moved(name, *shapes[name]) for name in ("labels", *SPLITS)]
        if "node_name_text" in self.source:
            self.stages.run("unpack", "reading names", tasks.unpack_names, [(work,)])
        items = [(work, k, i, min(i + NAME_ROWS, total)) for k, i in enumerate(range(0, total, NAME_ROWS))]
        named = self.stages.run("name", "writing names", tasks.move_names, items)
        before = np.cumsum([0, *(r["bytes"] for r in named)]).tolist()
        text = tuple(Piece(folder / f"names-{k:06d}.text", r["bytes"]) for k, r in enumerate(named))
        starts = (Piece(folder / f"names-{k:06d}.starts", r["rows"], before[k]) for k, r in enumerate(named))
        offsets = folder / "offsets.npy"
        at = offsets.stat().st_size - 8 * (self.cut.parts + 1)
        of_pairs = [self._moved(name, *shapes[name]) for name in PAIR_ARRAYS if name in shapes]
        return [
            *outputs,
            Output("node_name_text", "uint8", text),
            Output("node_name_starts", "int64", (Piece(None, 1), *starts)),
            Output("part_offsets", "int64", (Piece(offsets, self.cut.parts + 1, 0, at),)),
            *of_pairs,
        ]

    def _moved(self, name: str, length: int, *entry: int) -> Output:
        """An array that the stage ``labels`` wrote."""
        return Output(name, self.labels["dtypes"][name], (Piece(self.folder / name, length),), entry=entry)

    def _features(self) -> str:
        """Write the features; return their fingerprint."""
        matrix, total = self.matrix, self.data.num_nodes
        matrix.make()
        row = 8 + matrix.row_bytes
        step = max(1, self.budget.task_bytes // (ROW_COPIES * row))
        items = [(self.work, matrix, k, i, min(i + step, total)) for k, i in enumerate(range(0, total, step))]
        self.stages.run("features", "renumbering features", tasks.spill_features, items)
        written = gathered(self.stages.run, self.folder, matrix, len(items), step)
        return Written.by_tasks(matrix, written).fingerprint()

    def _write(self, outputs: Sequence[Output], features: str) -> PartitionQuality:
        """Write the arrays and the manifest; count the parts."""
        entries, digest_of = write_outputs(self.stages.run, self.store, outputs)
        graph = {name: digest_of.get(name) for name in GRAPH_DIGESTS}
        offsets = np.load(self.folder / "offsets.npy").tolist()
        work = (self.most, self.data.of_pairs)
        counted = [(self.store, entries, offsets, part, *work) for part in range(self.cut.parts)]
        counts = self.stages.run("count", "counting cut edges", tasks.count_part, counted)
        digests, matrix, source = self.labels["digests"], self.matrix, self.source
        fingerprint = fingerprint_of({**digests, "graph": digest_record(graph), "features": features})
        degrees = source.meta.get("in_degree")
        meta = {
            "features_format": "npy",
            **({} if matrix.kind is None else {"features_dtype": matrix.kind}),
            **({"graph_format": "npy"} if self.npy else {}),
            "in_degree": degrees or degree_summary(*np.unique(self.data.graph.in_degree, return_counts=True)),
            "digests": {**digests, "feature_sample": matrix.sample_digest()},
            "features_bytes": (self.store / FEATURES_FILE).stat().st_size,
            **({} if "node_name_text" in source else {INTEGER_NAMES: True}),
            **{key: source.meta[key] for key in PERHAPS if key in source.meta},
        }
        write_manifest(self.store, KIND, fingerprint, meta, entries)
        return PartitionQuality(tuple(PartCounts(**r) for r in counts))
