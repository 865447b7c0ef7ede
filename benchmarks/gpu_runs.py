"""Whole runs on one GPU: every system, links, types, times and learnt features, by one rank and by two that share it
over gloo, beside the same on processors.

Parameters are float64, so that they differ by the rounding of sums alone; dropout, validation and the choice of the
best epoch are part of each run. Without a GPU one of them shows that this runs.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_lab import Lab

DIFFERENCE = 1e-9
"""Largest difference of a parameter, relative to the largest of its tensor."""
MODEL = {"hidden": 16, "layers": 2, "dropout": 0.3}
SAGE, GAT, GINE = {**MODEL, "name": "sage"}, {**MODEL, "name": "gat", "heads": 2}, {**MODEL, "name": "gine"}
GCN = {**MODEL, "name": "gcn"}
RGAT = {**MODEL, "name": "rgat", "heads": 2}
TYPED, TIMED = "hsbm:nodes=2000,degree=8", "tsbm:nodes=2000,features=16"
RATED, PAID = "ratings:users=500,features=16", "payments:accounts=1000,features=16"
"""Graphs of several types, with times, of nodes and of pairs, and with labels of edges, in place of the small graph."""
BY_TIME = {"sampler": {"name": "temporal", "fanout": [5, 4]}}
SAMPLED = {"sampler": {"name": "neighbor", "fanout": [5, 4]}, "train": {"batch_size": 100}}
CUT = {"partition": {"method": "hash"}}


def bulk(model: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A job of `bulk`."""
    return {"system": "bulk", "model": model, **SAMPLED, **options}


ALONE: dict[str, dict[str, Any]] = {
    "bulk": bulk(SAGE),
    "bulk, GAT, pinned": bulk(GAT, gpu={"features": "pinned", "topology": "pinned"}),
    "bulk, labor": bulk(SAGE, sampler={"name": "labor", "fanout": [5, 4]}),
    "bulk, ladies": bulk(SAGE, sampler={"name": "ladies", "sizes": [80, 60]}),
    "bulk, saint": bulk(SAGE, sampler={"name": "saint"}),
    "bulk, a queue on disk": bulk(SAGE, queue={"kind": "zarr"}),
    "bulk, features of edges": bulk(GINE),
    "bulk, learnt features": bulk(SAGE, learned={"width": 8}),
    "bulk, links": bulk(SAGE, task="link", link={"decoder": "mlp"}),
    "bulk, links, labor": bulk(SAGE, task="link", sampler={"name": "labor", "fanout": [5, 4]}),
    "bulk, links, GINE, all nodes again": bulk(
        GINE, task="link", sampler={"name": "neighbor", "fanout": [5, 4], "expand": "all"}
    ),
    "bulk, by time": bulk(GCN, dataset=TIMED, **BY_TIME),
    "bulk, by time, pinned": bulk(SAGE, dataset=TIMED, **BY_TIME, gpu={"features": "pinned", "topology": "pinned"}),
    "bulk, links by time": bulk(SAGE, dataset=RATED, task="link", split="time:0.7,0.1", **BY_TIME),
    "bulk, labels of edges": bulk(SAGE, dataset=PAID),
    "bulk, labels of edges by time": bulk(SAGE, dataset=PAID, split="time:0.7,0.1", **BY_TIME),
    "bulk, types": bulk(RGAT, dataset=TYPED),
    "bulk, types, labor": bulk(RGAT, dataset=TYPED, sampler={"name": "labor", "fanout": [5, 4]}),
    "bulk, links of several relations": bulk(RGAT, dataset=TYPED, task="link", relation="all"),
    "grappa": {"system": "grappa", "model": GAT, **SAMPLED, **CUT},
    "sar": {"system": "sar", "model": GAT},
    "sar, labels of edges": {"system": "sar", "model": SAGE, "dataset": PAID},
    "retexo": {"system": "retexo", "model": GAT},
}
TOGETHER: dict[str, dict[str, Any]] = {
    "bulk": bulk(SAGE),
    "bulk, owned features": bulk(GAT, features="owned", **CUT),
    "bulk, partitioned": bulk(GINE, bulk={"topology": "partitioned"}),
    "bulk, types, owned features": bulk(RGAT, dataset=TYPED, features="owned"),
    "bulk, types, partitioned": bulk(RGAT, dataset=TYPED, bulk={"topology": "partitioned"}),
    "bulk, by time": bulk(GCN, dataset=TIMED, **BY_TIME),
    "bulk, links": bulk(SAGE, task="link"),
    "bulk, links, owned features": bulk(SAGE, task="link", features="owned"),
    "bulk, links, partitioned": bulk(SAGE, task="link", bulk={"topology": "partitioned"}),
    "bulk, learnt features": bulk(SAGE, learned={"width": 8}),
    "bulk, labels of edges, partitioned": bulk(SAGE, dataset=PAID, bulk={"topology": "partitioned"}),
    "grappa": {"system": "grappa", "model": SAGE, **SAMPLED, **CUT},
    "grappa, links": {"system": "grappa", "model": SAGE, "task": "link", **SAMPLED, **CUT},
    "sar, halo": {"system": "sar", "model": GAT, "sar": {"mode": "halo"}, **CUT},
    "sar, keep": {"system": "sar", "model": GINE, "sar": {"mode": "keep"}, **CUT},
    "sar, rematerialize": {"system": "sar", "model": GAT, "sar": {"mode": "rematerialize"}, **CUT},
    "sar, labels of edges": {"system": "sar", "model": SAGE, "dataset": PAID, **CUT},
    "sar, types": {"system": "sar", "model": RGAT, "dataset": TYPED, **CUT},
    "retexo": {"system": "retexo", "model": SAGE, **CUT},
}
"""Jobs of one rank and of two, by name."""


def runs(lab: Lab) -> None:
    """Part "runs"."""
    lab.clear()
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        # The interpreter's times mean nothing.
        _write_store(folder / "store", 3000 if lab.on_gpu else 300)
        alone = ALONE if lab.on_gpu else {"bulk": ALONE["bulk"]}
        for name, job in alone.items():
            _compare(lab, f"{name}, one rank", folder, job, {})
        if not lab.on_gpu:
            return
        from distributed import LocalCluster

        options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
        cluster = exits.enter_context(LocalCluster(**options))
        shared = {"ranks": 2, "scheduler": cluster.scheduler_address, "cluster": {"backend": "gloo"}}
        for name, job in TOGETHER.items():
            _compare(lab, f"{name}, two ranks", folder, job, shared)


def _write_store(path: Path, nodes: int) -> None:
    """A small graph with features of nodes and edges."""
    import millrace as mr
    from millrace.storage.features import ArrayFeatures

    data = mr.open_dataset(f"sbm:nodes={nodes},classes=5,degree=12,features=16,train=0.4", seed=1)
    rows = np.random.default_rng(0).standard_normal((data.graph.num_edges, 2))
    mr.write_dataset(path, replace(data, graph=replace(data.graph, edge_features=ArrayFeatures(rows))))


def _compare(lab: Lab, name: str, folder: Path, job: dict[str, Any], more: dict[str, Any]) -> None:
    import millrace as mr

    with lab.attempt(f"runs: {name}"):
        lab.check_time()
        common = {"epochs": 2, "seed": 4, "threads": 1, "dtype": "float64", "lr": 0.02, "verbose": False, **more}
        data = job.get("dataset", str(folder / "store"))
        found: list[tuple[dict[str, float], dict[str, torch.Tensor]]] = []
        for device in ("cpu", lab.device.type):
            own = {k: v for k, v in job.items() if k != "dataset" and (k != "gpu" or device == "cuda")}
            out = folder / f"{name}, {device}, {len(found)}"
            result = mr.run(data, config={**own, "device": device}, out=out, **common)
            measures = {"accuracy": result.test_accuracy, **result.test_metrics}
            known = {key: value for key, value in measures.items() if value is not None}
            found.append((known, torch.load(out / "model.pt", weights_only=True)))
        (here, wanted), (there, got) = found
        worst = max(float((got[k].cpu() - v).abs().max() / v.abs().max().clamp(min=1e-300)) for k, v in wanted.items())
        lab.details.setdefault("runs", {})[name] = worst
        if not (worst <= DIFFERENCE and np.allclose(list(here.values()), list(there.values()), rtol=DIFFERENCE)):
            raise AssertionError(f"parameters differ by {worst:.1e}; measures are {there} and, on processors, {here}")
        told = ", ".join(f"{key} {value:.4f}" for key, value in there.items())
        lab.say(f"  {name}: parameters of processors within {worst:.1e}, {told}")
