"""The cells of `same_bits.py`: what each runs, and which numbers of it must not change. Run by it in a process of the
checkout that is measured, so that nothing is imported from Millrace but what earlier commits have too.

    python benchmarks/bit_cells.py PART [CELL ...]    # inline or two: one JSON line for each cell
"""

import csv
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

import millrace as mr

Values = dict[str, str]
PLAIN = "sbm:nodes=300,classes=3,degree=8,features=5,train=0.3"
TYPED = "hsbm:nodes=240,classes=3,degree=4,features=6"
TIMED = "tsbm:nodes=60"
PAYMENTS = "payments:accounts=60,degree=4,features=5"

JOB: dict[str, Any] = {"epochs": 2, "seed": 3, "lr": 0.02, "dropout": 0.1, "threads": 1}
SAMPLED: dict[str, Any] = {**JOB, "batch_size": 16, "fanout": [4, 3], "hidden": 8, "queue": {"bulk_size": 2}}
FULL: dict[str, Any] = {**JOB, "hidden": 8, "layers": 2}
OWNED, BLOCKS = {"features": "owned"}, {"bulk": {"topology": "partitioned"}}
RELATIONS: dict[str, Any] = {"name": "neighbor", "fanout": [3, 2], "relations": {"dislikes": [2, 1], "sells": 0}}
SIZES = [40, 30]

SAMPLERS: dict[str, dict[str, Any]] = {
    "neighbor": {"fanout": [4, 3]},
    "expand-all": {"name": "neighbor", "fanout": [4, 3], "expand": "all"},
    "labor": {"fanout": [4, 3]},
    "ladies": {"sizes": SIZES},
    "fastgcn": {"sizes": SIZES},
    "saint": {},
    "ppr": {},
}
"""Jobs of samplers on one graph; `temporal` needs times."""

SAME = [
    ("memory", "zarr", "samples", "mapped", "owned", "resume"),
    ("two-replicated", "two-owned", "two-blocks", "two-1.5d", "two-zarr"),
    ("two-zarr", "two-killed"),
]
"""Cells that must train the same parameters."""
KEPT = (
    "status", "parameters_sha256", "train_loss", "val_accuracy", "test_accuracy", "val_metrics", "test_metrics",
    "best_epoch", "epochs", "minibatches", "sampled_edges", "num_nodes", "num_edges", "num_features", "task",
)  # fmt: skip
"""Keys of `result.json` that are recorded, besides its bytes and fingerprints."""


def digest(*arrays: Any) -> str:
    """Digest of arrays: dtypes, shapes and bits."""
    found = hashlib.sha256()
    for a in arrays:
        found.update(b"none" if a is None else f"{a.dtype} {a.shape}".encode() + np.ascontiguousarray(a).tobytes())
    return found.hexdigest()[:16]


def kept(out: Path) -> Values:
    """What is recorded of a finished run."""
    record = json.loads((out / "result.json").read_text())
    values = {key: repr(record.get(key)) for key in KEPT}
    values |= {f"fingerprint.{key}": str(value)[:80] for key, value in (record.get("fingerprint") or {}).items()}
    for place, channels in record["bytes"].items():
        if isinstance(channels, Mapping):
            values |= {f"bytes.{place}.{channel}": repr(count) for channel, count in channels.items()}
    return values


def trained(work: Path, data: Any = PLAIN, **options: Any) -> Values:
    """A run that is trained to its end."""
    mr.run(data, out=work / "run", verbose=False, **options)
    return kept(work / "run")


def two(work: Path, data: Any = PLAIN, **options: Any) -> Values:
    """A run of two ranks. Its input is a store, as theirs is."""
    if isinstance(data, str):
        mr.write_dataset(work / "store", mr.open_dataset(data, seed=3))
        data = work / "store"
    options["cluster"] = {"scheduler": CLUSTER[0]} if CLUSTER else {"dashboard_port": 0}
    options.setdefault("model", {"name": "sage", "hidden": 8, "layers": 2})
    return trained(work, data, **{k: v for k, v in options.items() if k not in ("hidden", "layers")}, ranks=2)


def stored(work: Path, **options: Any) -> Path:
    """A store of the plain graph that can be mapped."""
    mr.write_dataset(work / "store", mr.open_dataset(PLAIN, seed=3), features_format="npy", **options)
    return work / "store"


def from_samples(work: Path) -> Values:
    """A run from a store of samples."""
    from typer.testing import CliRunner

    from millrace.pipeline.cli import app

    flags = ["--dataset", PLAIN, "--epochs", "2", "--batch-size", "16", "--fanout", "4,3", "--seed", "3"]
    done = CliRunner().invoke(app, ["sample", *flags, "--set", "queue.bulk_size=2", "--out", str(work / "samples")])
    if done.exit_code:
        raise RuntimeError(done.output)
    return {**trained(work, samples=work / "samples", **SAMPLED), "samples": queue_digest(work / "samples")}


def queue_digest(store: Path) -> str:
    """Digest of all minibatches of a queue."""
    return digest(*(a for m in mr.open_queue(store) for a in arrays_of(m)))


def arrays_of(minibatch: Any) -> Iterator[Any]:
    """The arrays of a minibatch."""
    for block in minibatch.blocks:
        yield np.array(block.num_dst)
        yield from (getattr(block, name) for name in ("src", "indptr", "indices", "weight", "edge_id"))


def resumed(work: Path) -> Values:
    """A run that is stopped twice and goes on."""
    asked, lives = iter(range(1000)), 0
    options = {**SAMPLED, "out": work / "run", "verbose": False, "checkpoint": {"every_steps": 1}}
    while mr.run(PLAIN, resume=lives > 0, stop=lambda: next(asked) % 5 == 4, **options).status == "stopped":
        lives += 1
    values = kept(work / "run")
    return {"lives": repr(lives), **{k: values[k] for k in KEPT}}


class Kill(mr.Callback):
    """Kills a rank once, in the second epoch."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def on_step(self, run: mr.RunView) -> None:
        """After a step."""
        if (run.rank, run.epoch) == (1, 1) and not os.path.exists(self.mark):
            open(self.mark, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Path) -> Values:
    """Two ranks that start again after one of them was killed."""
    options = {**SAMPLED, "queue": {"kind": "zarr", "bulk_size": 2}, "checkpoint": {"every_steps": 1}}
    values = two(work, callbacks=Kill(str(work / "mark")), **options)
    return {"killed": repr((work / "mark").exists()), **{k: values[k] for k in KEPT if k != "sampled_edges"}}


def sampler_job(name: str) -> dict[str, Any]:
    """The job of a sampler."""
    return {**{k: v for k, v in SAMPLED.items() if k != "fanout"}, "sampler": {"name": name, **SAMPLERS[name]}}


def with_model(name: str, **options: Any) -> dict[str, Any]:
    """The job of a model."""
    return {**{k: v for k, v in SAMPLED.items() if k != "hidden"}, "model": {"name": name, "hidden": 8, **options}}


def weighted(work: Path) -> Values:
    """Weights of edges steer the draws."""
    data = mr.open_dataset(PLAIN, seed=3)
    g = data.graph
    weights = np.random.default_rng(0).random(g.num_edges, np.float32) + np.float32(0.1)
    graph = mr.Graph(g.indptr, g.indices, edge_weight=weights)
    data = mr.Dataset("weighted", graph, data.features, data.labels, data.split, data.num_classes)
    return trained(work, data, **{**with_model("gcn"), "sampler": {"fanout": [4, 3], "weighted": True}})


def links(work: Path, run: Callable[..., Values] = trained, **options: Any) -> Values:
    """Links are trained."""
    data = mr.link_dataset(mr.open_dataset(PLAIN, seed=3))
    if run is two:
        mr.write_dataset(work / "store", data)
        data = work / "store"
    return run(work, data, **SAMPLED, link={"width": 8}, **options)


def first_bulks(work: Path) -> Values:
    """The arrays of the first bulks that samplers draw from one graph."""
    graph, seeds = mr.open_dataset(PLAIN, seed=3).graph, np.arange(64)
    samplers = {
        "neighbor": mr.NeighborSampler((4, 3)), "expand": mr.NeighborSampler((4, 3), expand="all"),
        "replace": mr.NeighborSampler((4, -1)), "labor": mr.LaborSampler((4, 3)), "ladies": mr.LadiesSampler((40, 30)),
        "fastgcn": mr.FastGCNSampler((40, 30)), "saint": mr.SaintSampler(), "ppr": mr.PprSampler(),
    }  # fmt: skip
    drawn = {name: mr.sample_minibatches(graph, s, seeds, batch_size=16, bulk_size=4) for name, s in samplers.items()}
    timed = mr.open_dataset(TIMED, seed=3)
    drawn["temporal"] = mr.sample_minibatches(timed, mr.TemporalSampler((4, 3)), np.arange(40), batch_size=16)
    typed = mr.open_dataset(TYPED, seed=3)
    drawn["relations"] = mr.sample_minibatches(typed, mr.NeighborSampler((3, 2)), np.arange(40), batch_size=16)
    return {name: digest(*(a for m in minibatches for a in arrays_of(m))) for name, minibatches in drawn.items()}


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Write a CSV file."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*(c.tolist() for c in columns.values()))])


def files_digest(folder: Path) -> str:
    """Digest of all files of a folder, with their names."""
    found = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        found.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return found.hexdigest()[:16]


def converted(work: Path) -> Values:
    """Three stores that are converted: of CSV, of Parquet, of a graph of types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    edges, features = rng.integers(0, 80, (400, 2)), rng.random((80, 3)).astype(np.float32)
    ends = {"src": edges[:, 0], "dst": edges[:, 1]}
    nodes = {"id": np.arange(80), "label": np.arange(80) % 4, **{f"f{i}": features[:, i] for i in range(3)}}
    options = mr.ReadOptions(direction="directed", feature_columns=["f0", "f1", "f2"])
    values: Values = {}
    with chdir(work):  # notes in manifests name the source
        for folder in ("csv", "parquet"):
            Path(folder).mkdir()
        write_table(Path("csv", "edges.csv"), {**ends, "weight": rng.random(400).round(3)})
        write_table(Path("csv", "nodes.csv"), nodes)
        pq.write_table(pa.table(ends), "parquet/edges.parquet")
        pq.write_table(pa.table(nodes), "parquet/nodes.parquet")
        for name, source, given in (
            ("of-csv", "csv/edges.csv", options),
            ("of-parquet", "parquet", options),
            ("of-types", TYPED, None),
        ):
            mr.convert(source, name, features="npy", graph="npy", options=given, verbose=False)
            values[name] = files_digest(Path(name))
    return values


def refused(work: Path) -> Values:
    """The sentences that refuse jobs."""
    jobs: dict[str, dict[str, Any]] = {
        "sar-zarr": {"system": "sar", "queue": {"kind": "zarr"}}, "sar-owned": {"system": "sar", **OWNED},
        "retexo-learned": {"system": "retexo", "learned": {"width": 4}}, "grappa-owned": {"system": "grappa", **OWNED},
        "blocks-zarr": {**BLOCKS, "queue": {"kind": "zarr"}, "ranks": 2},
        "gine": {"model": "gine"}, "rgcn": {"model": "rgcn"},
        "batch-size": {"batch_size": 0}, "fanout": {"fanout": [3], "layers": 2}, "no-key": {"no_such_key": 1},
        "1.5d-saint": {"bulk": {"topology": "partitioned", "algorithm": "1.5d"}, "sampler": "saint", "ranks": 2},
        "temporal": {"sampler": {"name": "temporal"}}, "cycle": {"queue": {"reuse": "cycle"}},
    }  # fmt: skip
    return {name: refusal(PLAIN, job) for name, job in jobs.items()} | {
        "typed-sage": refusal(TYPED, {"model": "sage"}),
        "typed-grappa": refusal(TYPED, {"model": "rgcn", "system": "grappa"}),
        "typed-ladies": refusal(TYPED, {"model": "rgcn", "sampler": {"name": "ladies", "sizes": [30, 30]}}),
    }


def refusal(data: str, job: Mapping[str, Any]) -> str:
    """The sentence that refuses a job."""
    try:
        mr.dry_run(data, **job)
    except mr.InputError as e:
        return " / ".join(str(e).splitlines())
    return "runs"


Cell = Callable[[Path], Values]
CLUSTER: list[str] = []
"""Address of the scheduler of all runs of two ranks, if there is one."""


@contextmanager
def one_cluster() -> Iterator[None]:
    """Context with one cluster for all runs of two ranks, whose ranks are forked: it takes a quarter of the processor
    time. A checkout that has not these names starts one for each run, with the same numbers."""
    with ExitStack() as stack:
        with suppress(ImportError, TypeError, AttributeError):
            import dask
            from distributed import LocalCluster

            from millrace.pipeline.cluster.dask_cluster import SETTINGS
            from millrace.pipeline.cluster.rank_server import serving
            from millrace.pipeline.machine.malloc import allocator

            stack.enter_context(dask.config.set(SETTINGS))
            stack.enter_context(serving({}, allocator(1 << 30)))
            options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": None}
            CLUSTER.append(stack.enter_context(LocalCluster(n_workers=3, **options)).scheduler_address)
        yield


def of_run(data: Any = PLAIN, **options: Any) -> Cell:
    """A cell that trains."""
    return lambda work: trained(work, data() if callable(data) else data, **options)


def of_two(data: Any = PLAIN, **options: Any) -> Cell:
    """A cell that trains with two ranks."""
    return lambda work: two(work, data, **options)


MODELS_OF_TYPES = {name: {**with_model(name), "sampler": RELATIONS} for name in ("rgcn", "hgt")}
INLINE: dict[str, Cell] = {
    "memory": of_run(**SAMPLED),
    "zarr": of_run(**{**SAMPLED, "queue": {"bulk_size": 2, "kind": "zarr"}}),
    "samples": from_samples,
    "mapped": lambda work: trained(
        work, stored(work, graph_format="npy"), **SAMPLED, features="mapped", graph="mapped"
    ),
    "owned": lambda work: trained(work, stored(work), **SAMPLED, **OWNED),
    **{name: of_run(**sampler_job(name)) for name in SAMPLERS if name != "neighbor"},
    "temporal": of_run(TIMED, **{**SAMPLED, "fanout": None, "sampler": {"name": "temporal", "fanout": [4, 3]}}),
    "weighted": weighted,
    **{name: of_run(**with_model(name)) for name in ("gcn", "gatv2")},
    "gine": of_run(PAYMENTS, **with_model("gine")),
    **{name: of_run(TYPED, **job) for name, job in MODELS_OF_TYPES.items()},
    "links": links,
    "edges": of_run(PAYMENTS, **SAMPLED),
    "learned": of_run(**SAMPLED, learned={"width": 4}),
    "sar": of_run(system="sar", **FULL),
    "retexo": of_run(system="retexo", **FULL),
    "grappa": of_run(system="grappa", **SAMPLED),
    "resume": resumed,
    "bulks": first_bulks,
    "stores": converted,
    "refusals": refused,
}
TWO: dict[str, Cell] = {
    "two-replicated": of_two(**SAMPLED),
    "two-owned": of_two(**SAMPLED, **OWNED),
    "two-blocks": of_two(**SAMPLED, **BLOCKS),
    "two-1.5d": of_two(**SAMPLED, bulk={"topology": "partitioned", "algorithm": "1.5d"}),
    "two-typed": of_two(TYPED, **MODELS_OF_TYPES["rgcn"], **BLOCKS),
    "two-links": lambda work: links(work, two),
    "two-zarr": of_two(**{**SAMPLED, "queue": {"kind": "zarr", "bulk_size": 2}}),
    "two-sar": of_two(system="sar", sar={"mode": "rematerialize"}, **FULL),
    "two-halo": of_two(system="sar", sar={"mode": "halo"}, **FULL),
    "two-retexo": of_two(system="retexo", **FULL),
    "two-grappa": of_two(system="grappa", grappa={"shrink": "empirical", "chunks": 2}, **SAMPLED),
    "two-killed": killed,
}
PARTS = {"inline": INLINE, "two": TWO}


def main() -> None:
    """Run the cells of a part, or those named, and print what each gave."""
    print(json.dumps({"file": mr.__file__}), flush=True)
    part, *names = sys.argv[1:]
    cells = {name: cell for name, cell in PARTS[part].items() if not names or name in names}
    with one_cluster() if part == "two" and cells else nullcontext():
        for name, cell in cells.items():
            work, start = Path(tempfile.mkdtemp(prefix="millrace-bits-")), time.perf_counter()
            try:
                values = cell(work)
            except Exception as e:
                values = {"error": f"{type(e).__name__}: {e}".replace(str(work), "WORK").replace("\n", " / ")}
            finally:
                shutil.rmtree(work, ignore_errors=True)
            print(json.dumps({"cell": name, "seconds": time.perf_counter() - start, "values": values}), flush=True)


if __name__ == "__main__":
    main()
