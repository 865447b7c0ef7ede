"""Readers of inputs, each with a valid input to start from: a target mutates a copy of it, reads it, and uses the
result."""

import json
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from millrace.pipeline.cluster import dask_cluster
from millrace.pipeline.commands.describe import describe
from millrace.pipeline.config.aliases import full_key, merged
from millrace.pipeline.config.load import parse_override, read_toml, resolve
from millrace.pipeline.datasets import edge_dataset, open_dataset
from millrace.pipeline.datasets.cleaning.options import ReadOptions
from millrace.pipeline.report.reading import read_run
from millrace.pipeline.report.summary import summarise
from millrace.pipeline.report.timeline import timeline
from millrace.pipeline.setup.open_queue import open_queue
from millrace.stages.assignment import SeedPlan
from millrace.stages.feed.queue_feed import BulkDraws, BulkSpan, sample_bulks
from millrace.stages.kernels import sampling_backend
from millrace.stages.links.plan import LinkPlan
from millrace.stages.links.train_pairs import TrainPairs
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.partition.given import Given
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.stage import open_neighbours, open_part, open_shards, partition_dataset
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.checkpoint import CheckpointStore, Cursor
from millrace.storage.dataset import Dataset, Split, pairs_of
from millrace.storage.dataset_store import open_dataset_store, open_stored, write_dataset
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures, ZarrFeatures, write_features
from millrace.storage.graph import from_edges
from millrace.storage.minibatch import Expected
from millrace.storage.partition.book import open_book
from millrace.storage.partition.phase_rows import open_phase_rows, write_phase_rows
from millrace.storage.queue.zarr import ZarrQueue
from millrace.storage.store.paths import local_folder
from millrace.tests.fuzz.foreign import sources
from millrace.tests.fuzz.forge import forge, manifest_of, sign
from millrace.tests.fuzz.mutators import (
    archive,
    mutate_array,
    mutate_bytes,
    mutate_record,
    mutate_tree,
    npy,
    npy_with_header,
    odd,
    to_json,
)

V, E = 30, 120
SAMPLER = NeighborSampler((3, 2))


def dataset() -> Dataset:
    """A small dataset with weights."""
    rng = np.random.default_rng(0)
    graph = from_edges(rng.integers(0, V, E), rng.integers(0, V, E), V, edge_weight=rng.random(E), keep_edge_id=True)
    ids = np.arange(V)
    return Dataset(
        "small",
        graph,
        ArrayFeatures(rng.random((V, 4), np.float32)),
        ids % 3,
        Split(ids[:15], ids[15:20], ids[20:]),
        3,
    )


class Bench:
    """Valid inputs in a folder, and a place for one mutated copy."""

    def __init__(self, folder: Path) -> None:
        self.good, self.work = folder / "good", folder / "work"
        self.good.mkdir(parents=True)
        self.dataset, self.kernel = dataset(), sampling_backend("cpu")
        self.plan = SeedPlan(self.dataset.split.train, 4, 2, 0)
        self.options = [
            ReadOptions(direction="directed"),
            ReadOptions(direction="undirected", nan_labels="unlabelled", nan_features="zero"),
            ReadOptions(direction="directed", labels_of="edges"),
        ]
        write_dataset(self.good / "zarr", self.dataset)
        write_dataset(self.good / "npy", self.dataset, features_format="npy", graph_format="npy")
        pairs = np.random.default_rng(2).integers(0, V, (E, 2))
        own = {"features": np.ones((E, 2)), "times": np.arange(E)}
        write_dataset(self.good / "edges", edge_dataset(self.dataset, pairs, np.arange(E) % 3, **own))
        partition_dataset(self.dataset, Hash(), 2, self.good / "parts")
        partition_dataset(self.dataset, Contiguous(), 3, self.good / "range")
        self._sampled(self.good / "samples")
        write_features(self.good / "features", np.ones((5, 3), np.float32))
        write_phase_rows(self.good / "phase", {"a": "1"}, 0, {"remote": np.ones((3, 2), np.float32)}, 4)
        for step in (1, 2):
            state = {"model": {"w": np_tensor()}, "progress": {"n": 1}}
            CheckpointStore(self.good / "checkpoints", {"job": "j"}).save(Cursor(0, step), state)
        self._tables()
        self.foreign = sources(folder / "foreign")
        self.result = self._run(self.good / "run")

    def _sampled(self, path: Path) -> None:
        meta = {"minibatches_per_epoch": self.plan.num_minibatches}
        queue = ZarrQueue.create(path, fingerprint={"s": "1"}, bulk_size=2, max_bytes=1 << 30, keep="all", meta=meta)
        draws = BulkDraws(self.dataset.graph, SAMPLER, self.plan, self.kernel)
        sample_bulks(draws, queue, BulkSpan(range(1), self.plan.num_bulks))
        queue.finish()
        queue.close()

    def _tables(self) -> None:
        rng, ids = np.random.default_rng(1), np.arange(V)
        self.arrays = {
            "edge_index": rng.integers(0, V, (2, E)), "y": ids % 3, "x": rng.random((V, 4)), "train_idx": ids[:15],
            "val_mask": ids >= 25,
            "edge_weight": rng.random(E), "edge_label": np.arange(E) % 3,
            "meta": np.array(json.dumps({"direction": "directed"})),
        }  # fmt: skip
        sparse = {"x_indptr": np.arange(V + 1), "x_indices": ids % 5, "x_data": np.ones(V), "x_shape": np.array([V, 5])}
        self.sparse = {k: v for k, v in self.arrays.items() if k != "x"} | sparse
        columns = {"id": ids, "label": ids % 3, "split": [("train", "val", "test")[i % 3] for i in ids]}
        numbered = {f"feature_{i}": rng.random(V) for i in range(2)}
        self.nodes = [
            pa.table(columns | {"features": pa.array(rng.random((V, 3)).tolist())}),
            pa.table(columns | numbered),
            pa.table({"label": ids % 3, "x": pa.array(rng.random((V, 2)).tolist(), pa.list_(pa.float32(), 2))}),
        ]
        src, dst = rng.integers(0, V, (2, E))
        self.edges = pa.table({"src": src, "dst": dst, "weight": rng.random(E), "label": np.arange(E) % 3})

    def _run(self, run: Path) -> dict[str, Any]:
        """A run's folder: its job, its events and its result."""
        run.mkdir()
        (run / "job.toml").write_text(resolve({"dataset": "digits", "ranks": 2}).to_toml())
        pulse = {
            "rank": 0, "stage": "fetch", "epoch": 0, "step": 1, "loss": 0.5, "steps": 2, "edges": 9,
            "seconds": {"total": 2.0, "fetch": 0.5},
            "bytes": {"network": {"features": 3}}, "sent_to": {"network": {"features": [0, 3]}}, "rss_bytes": 9,
            "queue": {"bulks": 1, "bytes": 2, "bound": 3}, "hot": {},
        }  # fmt: skip
        events: list[dict[str, Any]] = [{"event": "StageStarted", "stage": "train", "text": "t", "total": 2}]
        for i in range(4):
            for rank in (0, 1):
                seconds = {"total": float(i), "fetch": i / 2, "train": i / 3}
                events.append({"event": "Pulse", **pulse, "rank": rank, "steps": i, "seconds": seconds})
            events.append({"event": "StepDone", "epoch": 0, "step": i, "steps_per_epoch": 4, "loss": 0.5, "seeds": 3})
        events += [
            {
                "event": "EpochDone",
                "epoch": 0,
                "epochs": 1,
                "train_loss": 0.5,
                "val_accuracy": 0.6,
                "seconds": 1.0,
                "best": True,
            },
            {"event": "QueueLevel", "bulks": 1, "bytes": 2, "bound": 3, "sampled": 1, "seconds": 0.1},
            {"event": "Note", "text": "resumed at epoch 1, step 2"},
            {"event": "StageEnded", "stage": "train", "seconds": 2.0, "text": ""},
        ]
        self.events = [{**e, "time": 1e9 + i} for i, e in enumerate(events)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in self.events))
        partition_dataset(self.dataset, Hash(), 2, run / "parts")
        shutil.copytree(self.good / "checkpoints", run / "checkpoints")
        per_rank = [{"network": {"features": 3}}] * 2
        result = {
            "schema_version": 1, "status": "done", "system": "bulk", "model": "sage", "dataset": "digits",
            "num_nodes": V, "num_edges": E,
            "device": "cpu", "dtype": "float32", "ranks": 2, "epochs": 1, "seed": 0, "minibatches_per_step": 2,
            "train_loss": 0.5,
            "val_accuracy": 0.6, "test_accuracy": 0.5, "best_epoch": 0,
            "seconds": {"total": 2.0, "fetch": 0.5, "per_epoch": [1.0]},
            "bytes": {"network": {"features": 6}, "per_rank": per_rank}, "waits": {"network": {"features": 1}},
            "peak_rss_bytes": [9, 9],
            "memory_bytes": [{"step": 3}] * 2, "hot_rows": None, "peak_device_bytes": [0, 0], "minibatches": 4,
            "sampled_edges": 50,
            "phases": [], "lost": [{"rank": 1, "phase": 0, "epoch": 0, "step": 1, "seeds": 3, "epochs": 1}],
            "clients": None,
            "fingerprint": {"graph": "g"}, "parameters_sha256": "0", "out": "run", "versions": {"numpy": "2"},
        }  # fmt: skip
        (run / "result.json").write_text(json.dumps(result))
        return result

    def copy(self, name: str) -> Path:
        """A fresh copy of a valid input."""
        shutil.rmtree(self.work, ignore_errors=True)
        return Path(shutil.copytree(self.good / name, self.work))

    def file(self, name: str, data: bytes) -> Path:
        """The only file in the place for mutated inputs."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        (self.work / name).write_bytes(data)
        return self.work / name

    def damaged(self, rng: random.Random, name: str) -> Path:
        """A copy of a store with damaged bytes, or with another content under valid checksums."""
        path = self.copy(name)
        if rng.random() < 0.35:
            mutate_tree(rng, path)
            return path
        store = rng.choice(sorted(p.parent for p in path.rglob("manifest.json")))
        if rng.random() < 0.4:
            body = mutate_record(rng, manifest_of(store))
            if rng.random() < 0.85 and isinstance(body, dict):
                sign(store, body)
            else:
                (store / "manifest.json").write_bytes(to_json(rng, body))
            return path

        def change(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
            for array in rng.sample(sorted(arrays), min(len(arrays), rng.choice([1, 1, 2]))):
                kind = rng.random()
                if kind < 0.04:
                    del arrays[array]
                elif not (made := mutate_array(rng, arrays[array])).ndim or made.dtype.kind not in "biuf":
                    arrays[array] = np.zeros(3)
                else:
                    arrays[array] = made

        if (store / "arrays").is_dir():
            forge(store, change)
        return path

    def use(self, data: Dataset) -> None:
        """Pass an accepted dataset to compiled kernels."""
        data.check()
        if data.num_nodes > 10_000:
            return
        plan = SeedPlan(data.split.train, 4, 2, 0)
        if (pairs := pairs_of(data)) is not None:
            plan = LinkPlan(data.split.train, 4, 2, 0, links=TrainPairs.from_graph(data.graph, pairs, None))
        for number in range(min(plan.num_bulks, 2)):
            SAMPLER.sample(data.graph, plan.request(0, number), self.kernel).check()
        data.features.gather(np.arange(data.num_nodes))


def np_tensor() -> Any:
    """A tensor for a checkpoint."""
    import torch

    return torch.ones(3)


def _toml(bench: Bench, rng: random.Random) -> Callable[[], None]:
    kind = rng.random()
    if kind < 0.6:
        table = mutate_record(rng, resolve({"dataset": "digits"}).model_dump(mode="json", exclude_none=True))
        try:
            text = tomli_w.dumps(table).encode("utf-8", "replace")
        except (TypeError, AttributeError, ValueError, RecursionError):
            text = f"seed = {odd(rng)!r}".encode("utf-8", "replace")
    elif kind < 0.8:
        text = mutate_bytes(rng, resolve({}).to_toml().encode())
    else:
        text = rng.choice(
            [
                b"a." * 50_000 + b"b = 1", b"x = " + b"[" * 5000, b"x = " + b"[" * 400 + b"]" * 400, (b"seed "
                    b"= ") + b"9" * 5000,
                b"seed = 0x" + b"f" * 20_000, b"x = {" + b"a." * 30_000 + (b"b = "
                    b"1}"), b"[" + b"a." * 20_000 + b"b]", (b"seed "
                    b"= "
                    b"true"),
                b'model = ""', b"model = 3", b"sampler = []", (b"lr = "
                    b"nan"), b"a = 1\n" * 100_000, b'"a"' + b'."a"' * 5000 + b" = 1",
                b"x = {a = " * 500 + b"1" + b"}" * 500, b"[[x]]\n" * 3000, b"train = 1", (b"threads = "
                    b"inf"), (b"[model]\nlayers "
                    b"= "
                    b"true"),
                b"[sampler]\nfanout = [true, 1]", b"dataset = \"a\\u0000b\"",
            ]
        )  # fmt: skip
    path = bench.file("job.toml", text)

    def read() -> None:
        job = resolve(read_toml(path))
        assert resolve(read_toml(bench.file("again.toml", job.to_toml().encode()))) == job

    return read


def _override(bench: Bench, rng: random.Random) -> Callable[[], None]:
    keys = [
        "seed",
        "train.lr",
        "model",
        "model.name",
        "model.layers",
        "sampler.fanout",
        "queue.kind",
        "a.b.c",
        "a." * 3000 + "b",
        "",
        "x",
        ".",
    ]
    values = [
        "0.01",
        "3",
        "'gat'",
        str(odd(rng)) if rng.random() < 0.97 else "",
        "[" * 5000,
        "9" * 5000,
        "true",
        "1\nb = 2",
        "{a = 1}",
        '"',
        "'''",
        "1979-05-27",
    ]
    text = f"{rng.choice(keys)}{rng.choice(['=', '=', '=', '==', ''])}{rng.choice(values)}"

    def read() -> None:
        path, value = parse_override(text)
        resolve(merged({"model": {"name": "gcn"}}, full_key(path, value), value))

    return read


def _npz(bench: Bench, rng: random.Random) -> Callable[[], None]:
    arrays = dict(bench.arrays if rng.random() < 0.6 else bench.sparse)
    kind, options = rng.random(), rng.choice(bench.options)
    if options.labels_of == "edges":  # sets are of these
        del arrays["train_idx"], arrays["val_mask"]
    members = {}
    for name in rng.sample(sorted(arrays), rng.choice([0, 1, 1, 2])):
        arrays[name] = mutate_array(rng, arrays[name])
    if kind < 0.05:
        arrays[rng.choice(sorted(arrays))] = np.array([{"a": 1}], object)
    if kind > 0.9:
        del arrays[rng.choice(sorted(arrays))]
    if 0.1 < kind < 0.15 and "x_shape" in arrays:
        arrays["x_shape"] = np.array([V, 10**9])
    members = {name: npy(a) for name, a in arrays.items()}
    if 0.2 < kind < 0.3:
        members[rng.choice(sorted(members))] = npy_with_header(rng)
    data = archive(rng, members)
    if 0.3 < kind < 0.45:
        data = mutate_bytes(rng, data)
    path = bench.file("g.npz", data)
    return lambda: bench.use(open_dataset(path, options=options))


def _parquet(bench: Bench, rng: random.Random) -> Callable[[], None]:
    folder = bench.file("readme", b"").parent
    nodes, edges = rng.choice(bench.nodes), bench.edges

    def changed(table: pa.Table) -> pa.Table:
        name = rng.choice(table.column_names)
        at, kind, column = table.column_names.index(name), rng.random(), table[name]
        if kind < 0.15:
            return table.drop([name])
        if kind < 0.25:
            return table.rename_columns(
                [
                    n if n != name else rng.choice(["x", "feature_007", "feature_9" * 30, "label"])
                    for n in table.column_names
                ]
            )
        if kind < 0.5 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            new = mutate_array(rng, column.to_numpy())
            if new.ndim == 1 and len(new) == len(table) and new.dtype.kind in "biufmMU":
                return table.set_column(at, name, pa.array(new if new.dtype.kind != "U" else new.tolist()))
        values = [
            [None] * len(table), ["a"] * len(table), [[1], *[[1, 2]] * (len(table) - 1)], [{"a": 1}] * len(table),
            [b"\xff"] * len(table),
            [[[1.0]]] * len(table), [None, *[1] * (len(table) - 1)], [[None, 1.0]] * len(table), [[]] * len(table),
            [2**62] * len(table),
            [None, *[[1.0, 2.0]] * (len(table) - 1)], ["train"] * len(table), [1.5] * len(table), [True] * len(table),
        ]  # fmt: skip
        return table.set_column(at, name, pa.array(rng.choice(values)))

    which = rng.random()
    with suppress(pa.ArrowException):
        nodes, edges = (changed(nodes) if which < 0.5 else nodes), (changed(edges) if which > 0.4 else edges)
    for stem, table in (("nodes", nodes), ("edges", edges)):
        pq.write_table(table, folder / f"{stem}.parquet", write_page_checksum=rng.random() < 0.5)
    if rng.random() < 0.3:
        file = folder / rng.choice(["nodes.parquet", "edges.parquet"])
        file.write_bytes(mutate_bytes(rng, file.read_bytes()))
    return lambda: bench.use(open_dataset(folder, options=rng.choice(bench.options)))


def _csv(bench: Bench, rng: random.Random) -> Callable[[], None]:
    edges = "".join(f"{a},{b}\n" for a, b in zip(bench.edges["src"].to_pylist(), bench.edges["dst"].to_pylist()))
    nodes = "".join(f"{i},{i % 3},{i / 7}\n" for i in range(V))
    texts = {"edges.csv": f"src,dst\n{edges}".encode(), "nodes.csv": f"id,label,feature_0\n{nodes}".encode()}
    name = rng.choice(sorted(texts))
    kind = rng.random()
    if kind < 0.6:
        texts[name] = mutate_bytes(rng, texts[name])
    elif kind < 0.8:
        texts[name] = texts[name].replace(b"1", str(odd(rng)).encode("utf-8", "replace"), rng.choice([1, 5]))
    else:
        texts[name] = rng.choice(
            [b"", b"\n", b"src\n1\n", b"\xff\xfe", b'"' * 50, b"a," * 10_000, b"src,dst\n" + b"9" * 5000 + b",1\n"]
        )
    folder = bench.file("readme", b"").parent
    for file, data in texts.items():
        (folder / file).write_bytes(data)
    return lambda: bench.use(
        open_dataset(folder / "edges.csv" if kind < 0.3 else folder, options=rng.choice(bench.options))
    )


def _foreign(bench: Bench, rng: random.Random) -> Callable[[], None]:
    files = dict(bench.foreign[rng.choice(sorted(bench.foreign))])
    name, kind = rng.choice(sorted(files)), rng.random()
    if kind < 0.65:
        files[name] = mutate_bytes(rng, files[name])
    elif kind < 0.85:
        files[name] = files[name].replace(b"1", str(odd(rng)).encode("utf-8", "replace"), rng.choice([1, 5]))
    elif kind < 0.95:
        files[name] = rng.choice([b"", b"\n", b"\x80\x04", b"{" * 100_000, b"[1]", b"1 " * 10_000, b"<a>" * 5000])
    folder = bench.file("readme", b"").parent
    for file, data in files.items():
        (folder / file).write_bytes(data)
    (folder / "readme").unlink()
    chosen = rng.choice([{}, {"label_columns": "kind"}, {"task": "link"}, {"task": "link", "relation": "all"}])
    # KONECT's and Neo4j's have types, which have no direction.
    direction = {} if "relation" in chosen else {"direction": "directed"}
    options = ReadOptions(dangling_edges="drop", **chosen, **direction)
    return lambda: bench.use(open_dataset(folder if len(files) > 1 else folder / name, options=options))


def _dataset(bench: Bench, rng: random.Random) -> Callable[[], None]:
    name = rng.choice(["zarr", "npy", "edges"])
    path, place = bench.damaged(rng, name), rng.choice(["memory", "mapped" if name == "npy" else "zarr"])
    graph = rng.choice(["memory", "mapped"]) if name == "npy" else "memory"

    def read() -> None:
        bench.use(open_dataset_store(path, place, graph=graph))
        stored = open_stored(path)
        stored.graph.rows(0, stored.graph.num_nodes)
        describe(str(path), None)

    return read


def _parts(bench: Bench, rng: random.Random) -> Callable[[], None]:
    name = rng.choice(["parts", "range"])
    path = bench.damaged(rng, name)

    def read() -> None:
        book = open_book(path / "book").check()
        if book.num_nodes < 10_000 and book.num_parts < 10_000:
            ids = np.arange(book.num_nodes)
            assert np.array_equal(book.global_ids(book.part(ids), book.local(ids)), ids)
        for part in range(2):
            open_part(path, part)[0].check()
            shards, owned, rows = open_shards(path, part)
            shards.check()
            rows.features.gather(np.arange(len(owned)))
            open_neighbours(path, part, loops=True)
        describe(str(path), None)
        partition_dataset(bench.dataset, Hash() if name == "parts" else Contiguous(), 2 if name == "parts" else 3, path)

    return read


def _samples(bench: Bench, rng: random.Random) -> Callable[[], None]:
    path = bench.damaged(rng, "samples")
    is_seed = np.zeros(V, bool)
    is_seed[bench.dataset.split.train] = True

    def read() -> None:
        describe(str(path), None)
        for m in open_queue(path, expected=Expected(is_seed, 2)):
            for block in m.blocks:
                assert block.indptr[-1] == block.num_edges
        describe(str(path), "0,1")
        meta = {"minibatches_per_epoch": bench.plan.num_minibatches}
        queue = ZarrQueue.create(path, fingerprint={"s": "1"}, bulk_size=2, max_bytes=1 << 30, keep="none", meta=meta)
        queue.get(0, 0, 0.0)
        queue.close()

    return read


def _small_stores(bench: Bench, rng: random.Random) -> Callable[[], None]:
    kind = rng.choice(["features", "phase", "checkpoints"])
    path = bench.damaged(rng, kind)

    def read() -> None:
        if kind == "features":
            features = ZarrFeatures(path)
            if features.num_rows < 10_000:
                features.gather(np.arange(features.num_rows))
        elif kind == "phase":
            store = open_phase_rows(path, {"a": "1"})
            assert all(store.read(name).ndim == 2 for name in store.entries)
        else:
            CheckpointStore(path, {"job": "j"}).latest()

    return read


def _run_folder(bench: Bench, rng: random.Random) -> Callable[[], None]:
    path, kind = bench.copy("run"), rng.random()
    if kind < 0.35:
        (path / "result.json").write_bytes(to_json(rng, mutate_record(rng, bench.result)))
    elif kind < 0.75:
        events = [mutate_record(rng, e) if rng.random() < 0.3 else e for e in bench.events]
        (path / "metrics.jsonl").write_bytes(b"".join(to_json(rng, e) + b"\n" for e in events))
    else:
        mutate_tree(rng, path)

    def read() -> None:
        record = read_run(path, "run")
        line = timeline(record)
        if line is not None:
            for rank in line.ranks:
                line.shares(rank, 20)
        json.dumps(summarise(record, line).as_record(record))
        describe(str(path), None)

    return read


def _owners(bench: Bench, rng: random.Random) -> Callable[[], None]:
    owners, kind = np.arange(V) % 2, rng.random()
    data = npy_with_header(rng) if kind < 0.3 else npy(mutate_array(rng, owners))
    path = bench.file("owners.npy", mutate_bytes(rng, data) if kind > 0.6 else data)
    return lambda: Given.read(path).assign(bench.dataset.graph, 2, 0).check() and None


ADDRESSES = [
    "tcp://127.0.0.1:1", "tcp://[::1", "tls://", "tcp://" + "a" * 300 + ":1", "tcp://a..b:1", "tcp://127.0.0.1:99999",
    "tcp://\u2100:1",
    "::",
    "tcp://\0:1", "tcp://[v1.x]:1", "inproc://x", "tcp://user@localhost:1", "", " ", "tcp://localhost:abc",
    "localhost:1", "http://[", "tcp://[::1]:1",
    "127.0.0.1", "localhost",
]  # fmt: skip


def _address(bench: Bench, rng: random.Random) -> Callable[[], None]:
    address = rng.choice(ADDRESSES)
    if rng.random() < 0.5:
        address = mutate_bytes(rng, address.encode()).decode("latin-1")
    field, insecure = rng.choice(["scheduler", "host"]), rng.random() < 0.5

    def silent(where: Any, *args: Any, **kwargs: Any) -> Any:
        # The real ones do this with a name before they ask anyone.
        (where if isinstance(where, str) else where[0]).encode("idna")
        raise OSError("nobody answers")

    def read() -> None:
        local_ones = {"create_connection": silent, "gethostbyname": silent, "create_server": silent}
        with mock.patch.multiple(socket, **local_ones):
            dask_cluster.check_reachable(resolve({"cluster": {field: address, "insecure": insecure}}).cluster)
            dask_cluster._is_here(address)
        local_folder(address)

    return read


def _spec(bench: Bench, rng: random.Random) -> Callable[[], None]:
    text = rng.choice(
        ["sbm:nodes=40,classes=2,features=3", "rmat:scale=4", "digits", "random:2,1", "fraction:0.5,0.2", "ogbn-arxiv"]
    )
    if rng.random() < 0.8:
        text = "".join(rng.choice("=:,-.e+\0 x[") if rng.random() < 0.1 else c for c in text)

    def read() -> None:
        if text.startswith(("random", "fraction")):
            bench.use(open_dataset(bench.dataset, split=text))
        else:
            with mock.patch(
                "millrace.pipeline.datasets.readers.foreign.ogb.find_ogb", side_effect=InputError("not here")
            ):
                bench.use(open_dataset(text))

    return read


Make = Callable[[Bench, random.Random], Callable[[], None]]
TARGETS: dict[str, tuple[Make, float]] = {
    "toml": (_toml, 0.12), "override": (_override, 0.1), "npz": (_npz, 0.15), "parquet": (_parquet, 0.1),
    "csv": (_csv, 0.07), "foreign": (_foreign, 0.2),
    "dataset": (_dataset, 0.08), "parts": (_parts, 0.04), "samples": (_samples, 0.06), "stores": (_small_stores, 0.06),
    "run": (_run_folder, 0.05), "owners": (_owners, 0.05), "address": (_address, 0.05), "spec": (_spec, 0.02),
}  # fmt: skip
"""Function that makes a mutated input and returns its reader, and the target's share of all inputs."""


def one(bench: Bench, name: str, seed: int) -> Callable[[], None]:
    """The reader of one mutated input, the same for the same seed."""
    return partial(TARGETS[name][0], bench, random.Random(f"{name} {seed}"))()
