"""Full batches on the device: epochs of `sar`, and of each layer of `retexo`, on a graph of ogbn-arxiv's size, of whose
nodes the first half trains.

First the loss: after the same epochs on the processors of this machine it is the same. Beside `sar` are PyG's
convolutions on the same edges and device; beside an epoch of `retexo`, which trains one layer, is one of `sar`. First
epochs are left out: of each phase of `retexo`, it aggregates.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_lab import DIFFERENCE, Lab, rmat
from gpu_training import MODELS, PyGTrainer, peak, start_peak
from graphs import RECIPES
from peers.train_task import CLASSES, FEATURES, HEADS, HIDDEN, LR

EPOCHS, LAYERS = 4, 3
SYSTEMS = ("sar", "retexo")


def dataset(lab: Lab) -> Any:
    """The graph, with random rows and labels."""
    import millrace as mr
    from millrace.storage.features import ArrayFeatures

    size = RECIPES["arxiv"]
    nodes, pairs = min(lab.num_nodes, size.num_nodes), min(lab.num_pairs, size.num_pairs)
    indptr, indices = (x.cpu().numpy() for x in rmat(nodes, pairs, lab.generator(0), lab.device))
    rng, none = np.random.default_rng(0), np.empty(0, np.int64)
    rows = ArrayFeatures(rng.standard_normal((nodes, FEATURES), np.float32))
    split = mr.Split(np.arange(nodes // 2), none, none)
    return mr.Dataset("full batch", mr.Graph(indptr, indices), rows, rng.integers(0, CLASSES, nodes), split, CLASSES)


def run(lab: Lab, data: Any, system: str, model: str, device: str) -> dict[str, Any]:
    """Seconds of the epochs that count, the last loss, and the most device memory held."""
    import millrace as mr

    heads = {"heads": HEADS} if model == "gat" else {}
    config = {
        "system": system,
        "device": device,
        "model": {"name": model, "hidden": HIDDEN, "layers": LAYERS, "dropout": 0.0} | heads,
        "train": {"optimizer": "adam", "lr": LR, "evaluate_every": 0},
    }
    start_peak(lab)
    with tempfile.TemporaryDirectory() as folder:
        done = mr.run(data, config=config, epochs=EPOCHS, out=Path(folder) / "run")
    took = [s for i, s in enumerate(done.seconds["per_epoch"]) if i % EPOCHS]
    return {"epoch_s": took, "loss": done.train_loss, "peak_bytes": max([*done.peak_device_bytes, peak(lab)])}


def pyg(lab: Lab, data: Any, model: str) -> dict[str, Any]:
    """The same of PyG's convolutions."""
    graph, n = data.graph, len(data.split.train)
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    edges = torch.from_numpy(np.stack([graph.indices.astype(np.int64), dst])).to(lab.device)
    blocks = [(edges, graph.num_nodes)] * (LAYERS - 1) + [(edges[:, : int(graph.indptr[n])], n)]
    x, y = (torch.from_numpy(a).to(lab.device) for a in (data.features.rows, data.labels[:n]))
    start_peak(lab)
    trainer = PyGTrainer(lab, model, "float32")
    trainer.train(x, y, blocks)
    took = lab.repeated(lambda: trainer.train(x, y, blocks), most=EPOCHS - 1)
    return {"epoch_s": took, "peak_bytes": peak(lab)}


def full_batches(lab: Lab) -> None:
    """Part "full-batch"."""
    found: dict[str, Any] = lab.details.setdefault("full-batch", {})
    data = dataset(lab)
    for model in MODELS:
        peers: dict[str, dict[str, Any]] = {}
        with lab.attempt(f"full-batch: {model}, PyG"):
            peers["sar"] = found[f"{model}, PyG"] = pyg(lab, data, model)
        lab.clear()
        for system in SYSTEMS:
            name = f"{system}, {model}"
            with lab.attempt(f"full-batch: {name}"):
                there = found[name] = run(lab, data, system, model, lab.device.type)
                lab.clear()
                peer, against = peers.get(system), "PyG" if system == "sar" else "sar"
                theirs = None if peer is None else statistics.median(peer["epoch_s"])
                took = statistics.median(there["epoch_s"])
                lab.add(f"epoch of {name}", took, "s", peer=theirs, against=against if peer else "")
                lab.add(f"device memory of {name}", there["peak_bytes"] / 2**30, "GiB")
                peers["retexo"] = there
                if not lab.on_gpu:
                    continue
                here = found[f"{name}, processors"] = run(lab, data, system, model, "cpu")
                if not abs(there["loss"] - here["loss"]) <= DIFFERENCE * here["loss"]:
                    raise AssertionError(f"the loss is {there['loss']}; on processors it is {here['loss']}")
