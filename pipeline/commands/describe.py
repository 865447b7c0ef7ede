"""Description of a folder, a file or a dataset, as `millrace inspect` prints it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...stages.partition.stage import KIND as PARTITIONING
from ...stages.partition.stage import quality_of
from ...storage.array_checks import proving
from ...storage.checkpoint import CheckpointStore
from ...storage.dataset import WITHOUT_ACCURACY, Dataset
from ...storage.dataset_store import features_access, graph_access
from ...storage.errors import InputError, NoDirectionError, NoLabelsError
from ...storage.features import FeatureStore, WidenedFeatures
from ...storage.fingerprint import GRAPH_DIGESTS
from ...storage.graph import degree_summary
from ...storage.lazy_dataset import open_lazily
from ...storage.minibatch import MiniBatch
from ...storage.node_names import first_names
from ...storage.plural import counted
from ...storage.queue.packed_rows import PackedRows
from ...storage.store.manifest import kind_in
from ...storage.store.npy import npy_bytes
from ...storage.store.paths import expanded
from ...storage.store.store import Store, open_store
from ...storage.stored.data_card import described
from ...storage.stored.version1 import store_of_version_1
from ...storage.typed.features import TypedFeatures
from ...storage.typed.graph_types import GraphTypes, edges_of_types
from ...storage.urls import is_url
from ..config.load import Job, read_any_run_table
from ..datasets.readers.reader import Request
from ..datasets.readers.registry import reader_of
from ..datasets.schema.source import GraphTables
from ..setup.open_data import open_data, with_keys
from ..setup.open_queue import open_queue
from ..setup.result import read_card, read_result
from ..setup.run_folder import CHECKPOINTS, JOB, RESULT
from ..telemetry.events import silent

OF_LABELS = ("classes", "targets", "split", "origin of the split")
SHOWN_SEEDS = 3
SHOWN_NAMES = 5
SHOWN_COLUMNS = 20
"""Most columns of features that are described."""


def describe(path: str, minibatch: str | None, job: Job | None = None) -> dict[str, Any]:
    """Describe what `path` holds, as a flat record of printable values.

    Args:
        path: a run's folder, a store of any kind, anything that `open_dataset` takes, or the URL of a store of samples.
        minibatch: ``EPOCH,INDEX`` of a minibatch to describe, in a store of samples.
        job: configuration with the options for reading a dataset; None: the defaults.

    Raises:
        InputError: `minibatch` is malformed, `path` has no samples, `job` is given and `path` is not a dataset, or a
            run's folder has lost its job.
        StoreError: the store is damaged, or there is nothing at the URL.
        RunError: the object store does not answer.
    """
    folder = expanded(path)
    format_ = "samples" if is_url(path) else kind_in(folder)
    if job is not None and ((folder / JOB).is_file() or format_ not in (None, "dataset")):
        raise InputError(f"--set changes how a dataset is read, but {path} is not a dataset; leave it out")
    if is_url(path):
        return _samples(path, minibatch)
    if minibatch is not None and format_ != "samples":
        raise InputError(f"--minibatch needs a store of samples; {path} holds {format_ or 'none'}")
    if (folder / JOB).is_file():
        return _run(folder)
    if format_ is None and (left := [name for name in (RESULT, CHECKPOINTS) if (folder / name).exists()]):
        raise InputError(f"{folder} has a run's {' and '.join(left)}, but no {JOB}, which says what ran; put it back")
    if format_ == "samples":
        return _samples(folder, minibatch)
    earlier = format_ == "dataset" and store_of_version_1(folder, format_) is not None
    if format_ == "dataset" and job is None and not earlier:
        store = open_store(folder, format_)
        if "in_degree" in store.meta:
            return _dataset_store(store)
    if format_ in (None, "dataset"):
        return _opened(path, job or Job())
    store = open_store(folder, format_)
    made = {f"made from {k}": v for k, v in store.fingerprint.items()}
    if format_ == PARTITIONING:
        return {**_partitions(store), **made}
    return {"holds": f"a store of kind {format_}", **store.meta, **made}


def _opened(path: str, job: Job) -> dict[str, object]:
    """A dataset, and its columns. What a run has to be told is left open: its lines say so, and there are no labels, or
    edges as they are stored."""
    left: dict[str, str] = {}
    while True:
        try:
            record = _dataset(open_data(job, path, silent, labelled="labels" not in left))
            break
        except (NoLabelsError, NoDirectionError) as e:
            what = "direction" if isinstance(e, NoDirectionError) else "labels"
            if what in left:
                raise
            left[what] = f"not settled: {e}"
            read = replace(job.read, direction="directed") if what == "direction" else replace(job.read, task="link")
            job = job.model_copy(update={"read": read})
    roles = _roles(path, job)
    if "labels" in left:  # not those of the stand-in by which they are left out
        record = {key: value for key, value in record.items() if key not in OF_LABELS}
        roles = {k: v.replace("(the task is link)", "(the labels are not settled)") for k, v in roles.items()}
    return record | left | roles


def _roles(path: str, job: Job) -> dict[str, Any]:
    """Files and columns of tables, each with its role and the reason; empty for other sources."""
    reader = reader_of(path)
    if reader is None or reader.is_clean:
        return {}
    found = reader.read(path, Request(options=job.read, pairs=job.read.pairs))
    if not isinstance(found, GraphTables):
        return {}
    from ..datasets.readers.graph import schema_at

    return dict(schema_at(found, job.read).show())


def _run(folder: Path) -> dict[str, Any]:
    read_any_run_table(folder / JOB)  # refuses one that is empty
    record: dict[str, Any] = {"holds": "a run", "job": str(folder / JOB)}
    cursors = CheckpointStore(folder / CHECKPOINTS, {}, read_only=True).cursors()
    at = f"phase {cursors[-1].phase}, step {cursors[-1].step}" if cursors else "none"
    result = read_result(folder)
    if result is None:
        return {
            **record,
            "status": f"not finished: resume it with `millrace run --resume --out {folder}`",
            "last checkpoint": at,
        }
    keys = (
        "status", "system", "model", "dataset", "num_nodes", "num_edges", "epochs", "best_epoch", "train_loss",
        "val_accuracy", "test_accuracy", "minibatches", "sampled_edges", "parameters_sha256",
    )  # fmt: skip
    seconds = {f"seconds, {k}": v for k, v in result.get("seconds", {}).items() if k != "per_epoch"}
    metrics = {
        f"{split}_{name}": value
        for split in ("val", "test")
        for name, value in (result.get(f"{split}_metrics") or {}).items()
    }
    found = {k: result.get(k) for k in keys if not (k.endswith("_accuracy") and result.get("task") in WITHOUT_ACCURACY)}
    card = dict(described(read_card(folder), SHOWN_COLUMNS))
    return {**record, **found, **metrics, "last checkpoint": at, **seconds, **card}


def _partitions(store: Store) -> dict[str, Any]:
    quality = quality_of(store)
    record = {
        "holds": "partitions",
        "parts": store.value("num_parts", int),
        "partitioner": store.value("partitioner", str),
        "seed": store.value("seed", int),
        "edges cut": f"{quality.cut_share:.1%}",
        "halo rows": f"{quality.halo_share:.1%} of owned rows",
    }
    for i, part in enumerate(quality.parts):
        record[f"part {i}"] = (
            f"{part.nodes:,} nodes, {part.train:,} train, {part.edges:,} edges ({part.cut_edges:,} cut), {part.halo:,} "
            "halo rows"
        )
    return record


def _samples(at: str | Path, minibatch: str | None) -> dict[str, Any]:
    queue = open_queue(at)
    try:
        if minibatch is not None:
            try:
                epoch, index = (int(part) for part in minibatch.split(","))
            except ValueError:
                raise InputError(f"--minibatch '{minibatch}' is not of the form EPOCH,INDEX such as 0,3") from None
            per_epoch = queue.minibatches_per_epoch
            if not 0 <= index < (per_epoch or index + 1) or index // queue.bulk_size not in queue.committed(epoch):
                held = ", ".join(map(str, queue.epochs())) or "none"
                raise InputError(
                    f"{at} holds no minibatch {epoch},{index}; name one of epochs {held} of {per_epoch} minibatches"
                )
            return _minibatch(queue.get(epoch, index, timeout_s=1.0))
        return {
            "holds": "sampled minibatches",
            "complete": queue.complete,
            **queue.meta,
            "epochs": len(queue.epochs()),
            "bulks": sum(len(queue.committed(e)) for e in queue.epochs()),
            **({} if queue.packed is None else _packed(queue.packed, queue.epochs())),
            **(
                {}
                if is_url(at)
                else {"bytes on disk": sum(f.stat().st_size for f in Path(at).rglob("*") if f.is_file())}
            ),
            **{f"made from {k}": v for k, v in queue.fingerprint.items()},
        }
    finally:
        queue.close()


def _packed(rows: PackedRows, epochs: Iterable[int]) -> dict[str, object]:
    """Features beside samples, and whether they train without the dataset."""
    lacking = rows.seeds.meta["lacking"] if rows.seeds else "the labels of its seeds, which sample --features keeps"
    return {
        "bulks with features": sum(len(rows.committed(e)) for e in epochs),
        "features": f"{rows.form.name} [{rows.num_nodes:,}, {rows.form.width}]",
        "trains without the dataset": f"no, it does not hold {lacking}" if lacking else "yes",
    }


def _minibatch(m: MiniBatch) -> dict[str, Any]:
    record: dict[str, Any] = {
        "minibatch": f"epoch {m.epoch}, index {m.index}",
        "seeds": len(m.seeds),
        "nodes": len(m.nodes),
        "edges": m.num_edges,
    }
    for layer, b in enumerate(m.blocks):
        record[f"layer {layer}"] = f"{b.num_src} sources -> {b.num_dst} destinations, {b.num_edges} edges"
    last = m.blocks[-1]
    for i in range(min(SHOWN_SEEDS, len(m.seeds))):
        row = last.indices[last.indptr[i] : last.indptr[i + 1]]
        record[f"seed {m.seeds[i]}"] = "in-neighbours " + ", ".join(map(str, last.src[row]))
    return record


def _dataset_store(store: Store) -> dict[str, Any]:
    """A stored dataset by its manifest, and the first names of its nodes; its arrays stay on disk."""
    data = open_lazily(store.path, features_access(store.path), names=False)
    edges = [] if data.graph.types.is_single else store.value("edges_of_types", list)
    with proving(store.path):
        labelled = store.entries["pairs"]["shape"][0] if "pairs" in store else None
        degree, names = store.value("in_degree", dict), first_names(store, SHOWN_NAMES + 1)
        return _facts(data, degree, labelled, edges, names, {"graph on disk": _graph_on_disk(store)})


def _dataset(dataset: Dataset) -> dict[str, Any]:
    graph, degree = dataset.graph, degree_summary(*np.unique(dataset.graph.in_degree, return_counts=True))
    edges = [] if graph.types.is_single else edges_of_types(graph)
    labelled = len(dataset.pair_table) if dataset.has_edge_labels else None
    return _facts(dataset, degree, labelled, edges, dataset.node_names, {})


def _facts(
    dataset: Dataset,
    degree: Mapping[str, int],
    labelled: int | None,
    edges: Sequence[int],
    names: Sequence[str] | None,
    on_disk: Mapping[str, str],
) -> dict[str, Any]:
    """Description of a dataset, whose arrays may be on disk.

    Args:
        dataset: its other facts.
        degree: see `degree_summary`.
        labelled: number of labelled edges, or of those to be predicted; None: nodes are labelled.
        edges: of each relation, of a graph with several.
        names: of the first nodes; None: they have none.
        on_disk: line on the graph on disk, if it is there.
    """
    graph, sizes = dataset.graph, dataset.split_sizes
    record: dict[str, Any] = {
        "dataset": dataset.name,
        "nodes": dataset.num_nodes,
        "edges": graph.num_edges,
        "in-degree": f"median {degree['median']}, largest {degree['largest']}",
        "without in-edges": degree["zero"],
        "edge weights": graph.is_weighted,
        **_edge_features(graph.edge_features, not graph.types.is_single),
        **_times(graph.has_edge_times, graph.has_node_times),
        **on_disk,
        **_features(dataset.features),
        **_labels(dataset.task, dataset.num_classes, labelled, sum(sizes.values())),
        "split": ", ".join(f"{name} {size}" for name, size in sizes.items()),
    }
    if not graph.types.is_single:
        _add_types(record, graph.types, dataset.features, edges)
    if (offsets := graph.part_offsets) is not None:
        record["parts"] = _shown([f"{n:,} nodes" for n in np.diff(offsets)], f" ({len(offsets) - 1})")
    for what, called in (("names of nodes", names), ("names of classes", dataset.class_names)):
        if called is not None:
            record[what] = _shown([f"'{name}'" for name in called[: SHOWN_NAMES + 1]])
    notes = {f"note {i}": with_keys(note) for i, note in enumerate(dataset.notes, 1)}
    return record | dict(described(dataset.card, SHOWN_COLUMNS)) | notes


def _shown(each: Sequence[str], more: str = "") -> str:
    """The first of some texts; `more` ends the line if there are others."""
    return ", ".join(each[:SHOWN_NAMES]) + (f", ...{more}" if len(each) > SHOWN_NAMES else "")


def _graph_on_disk(store: Store) -> str:
    """Form of the graph on disk, and what graph = "mapped" needs."""
    if graph_access(store) == "memory":
        return 'compressed; graph = "mapped" needs it written again: millrace convert STORE --out NEW --graph npy'
    entries = [store.entries[name] for name in GRAPH_DIGESTS if name in store]
    size = sum(npy_bytes(entry["dtype"], tuple(entry["shape"])) for entry in entries)
    return f'files of {size / 2**30:,.2f} GiB, which graph = "mapped" maps'


def _edge_features(features: FeatureStore | None, typed: bool) -> dict[str, str]:
    if features is None:
        return {}
    of = f"of {features.dtype}"
    return {"edge features": f"{of}, for each relation" if typed else f"{features.num_features} {of}"}


def _times(edges: bool, nodes: bool) -> dict[str, str]:
    of = [name for name, there in (("edges", edges), ("nodes", nodes)) if there]
    return {"times": f"of {' and '.join(of)}"} if of else {}


def _features(features: FeatureStore) -> dict[str, str]:
    """Line with the number of features and their dtype; node types have widths of their own, so of these the dtype."""
    if isinstance(features, TypedFeatures):
        return {"features": f"of {features.kind or features.dtype}, for each node type"}
    kept = features.kind if isinstance(features, WidenedFeatures) else features.dtype
    return {"features": f"{features.num_features} of {kept}"}


def _add_types(record: dict[str, Any], types: GraphTypes, features: FeatureStore, edges: Sequence[int]) -> None:
    widths = features.widths if isinstance(features, TypedFeatures) else [features.num_features] * len(types.node_types)
    record["node types"] = ", ".join(
        f"{name} {types.num_nodes(t)} ({counted(width, 'feature') if width else 'no features'})"
        for t, (name, width) in enumerate(zip(types.node_types, widths))
    )
    of_edges = [f" ({counted(w, 'feature')})" if w else "" for w in types.edge_widths or (0,) * types.num_relations]
    record["relations"] = ", ".join(f"{' '.join(r)} {n}{w}" for r, n, w in zip(types.relations, edges, of_edges))
    if types.pair_relations:
        record["pairs of"] = "; ".join(_group(types, group) for group in types.pair_relations)


def _group(types: GraphTypes, group: Sequence[int]) -> str:
    pairs, *reverses = (" ".join(types.relations[r]) for r in dict.fromkeys(group))
    reversed_by = f", reversed by {' and '.join(reverses)}" if reverses else ""
    return f"{pairs}{' (symmetric)' if group[0] in group[1:] else ''}{reversed_by}"


def _labels(task: str, number: int, edges: int | None, in_sets: int) -> dict[str, str]:
    """Lines on the labels; `edges` are those that are labelled, or to be predicted, and None where nodes are."""
    found = {"targets" if task == "regression" else "classes": f"{number} ({task})"}
    if edges is not None:
        without = f", {edges - in_sets:,} in no set" if edges > in_sets else ""
        found["labels of"] = f"edges: {edges:,}{without}"
    return found
