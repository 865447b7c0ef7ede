"""Training on the device: steps and whole epochs, by `millrace.run` and by PyG's convolutions on minibatches that
Millrace drew there.

Stock PyG has no sampler for a GPU, and with its own loader it would wait for the host; so its epochs are fed as well as
can be: our kernels draw bulks of 64 on the device, rows are gathered there, and each convolution sees a bipartite graph
of just the edges and rows that its layer needs. Beside them is a step whose minibatch comes from the host: drawn by our
compiled kernels on all cores, gathered there and copied, each part by itself, so that one sees what it takes with and
without overlap. Ours is the public API from a dataset in memory, each epoch from the end of the one before it, the
first left out.

The floor of an epoch takes each layer's product at the rate measured for the first layer's shape, and moves at a copy's
rate, in each layer and pass, the distinct source rows, the results, and the drawn edges once (see `roofline.py`);
drawing itself at its own floor.
"""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_lab import DIFFERENCE, Lab
from gpu_layers import product_rate
from gpu_sampling import draw, floor_bytes, sizes
from peers.train_task import CLASSES, FANOUT, FEATURES, HEADS, HIDDEN, LR
from torch import Tensor, nn
from torch.nn import functional as F

from millrace.stages.kernels.sampling.cuda.tables import Workspace
from millrace.stages.kernels.sampling.draws import NeighborDraws

BULK, EPOCHS = 64, 3
MODELS = ("sage", "gat")
PRODUCTS = ("float32", "bfloat16")


class PyGModel(nn.Module):
    """Three of PyG's convolutions on bipartite graphs."""

    def __init__(self, name: str) -> None:
        from torch_geometric.nn import GATConv, SAGEConv

        super().__init__()
        if name == "sage":
            widths = [FEATURES, HIDDEN, HIDDEN, CLASSES]
            convs: list[nn.Module] = [SAGEConv(a, b) for a, b in zip(widths, widths[1:])]
        else:
            wide = HIDDEN // HEADS
            common: Any = {"add_self_loops": False}
            convs = [GATConv(FEATURES, wide, HEADS, **common), GATConv(HIDDEN, wide, HEADS, **common)]
            convs.append(GATConv(HIDDEN, CLASSES, HEADS, concat=False, **common))
        self.convs, self.loops = nn.ModuleList(convs), name == "gat"
        self.activation = F.relu if name == "sage" else F.elu

    def forward(self, h: Tensor, blocks: list[tuple[Tensor, int]]) -> Tensor:
        """[n, F] -> [B, C]; blocks nearest the input first: edges int64 [2, e], and how many destinations there are."""
        for i, (conv, (edges, n)) in enumerate(zip(self.convs, blocks)):
            if self.loops:
                # What `add_self_loops` of the convolution does, without looking for loops that are not there.
                edges = torch.cat([edges, torch.arange(n, device=edges.device).expand(2, -1)], 1)
            h = conv((h, h[:n]), edges, size=(len(h), n))
            if i + 1 < len(self.convs):
                h = self.activation(h)
        return h


def resident(lab: Lab, made: Any) -> Iterator[tuple[Tensor, list[tuple[Tensor, int]]]]:
    """Nodes, and for each layer its edges and number of destinations, of each minibatch of a bulk; the host waits once
    for the bulk."""
    (only,) = made.lists
    k = len(only.rows)
    nodes, indptr = made.rows.nodes.split(made.node_ends[-1].tolist()), only.indptr.split((only.rows + 1).tolist())
    indices = only.indices.split(only.edges.tolist())
    ends = np.stack(made.node_ends[:-1], 1)
    at = torch.from_numpy(ends + np.concatenate([[0], np.cumsum(only.rows + 1)[:-1]])[:, None]).to(lab.device)
    edges = only.indptr[at].tolist()
    for q in range(k):
        dst = torch.repeat_interleave(
            torch.arange(int(only.rows[q]), device=lab.device), indptr[q].diff(), output_size=int(only.edges[q])
        )
        both = torch.stack([indices[q].long(), dst])
        yield nodes[q], [(both[:, : edges[q][h]], int(ends[q, h])) for h in reversed(range(len(FANOUT)))]


class PyGTrainer:
    """A model, its optimiser, and the epochs they see."""

    def __init__(self, lab: Lab, model: str, products: str) -> None:
        torch.manual_seed(0)
        self.lab, self.low = lab, products == "bfloat16"
        self.model = PyGModel(model).to(lab.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LR)
        self.workspace = Workspace()

    def step(self, nodes: Tensor, blocks: list[tuple[Tensor, int]]) -> Tensor:
        """One minibatch, from its nodes' features on; the loss, which nobody waits for."""
        return self.train(
            self.lab.features.index_select(0, nodes), self.lab.labels[nodes[: blocks[-1][1]].long()], blocks
        )

    def train(self, x: Tensor, y: Tensor, blocks: list[tuple[Tensor, int]]) -> Tensor:
        """The same from rows on, [n, F] and [B]."""
        with torch.autocast(self.lab.device.type, torch.bfloat16, enabled=self.low):
            logits = self.model(x, blocks)
        loss = F.cross_entropy(logits.float(), y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def epoch(self, requests: list[Any]) -> None:
        """From seeds to the last step."""
        for request in requests:
            for minibatch in resident(self.lab, draw(self.lab, "neighbor", request, self.workspace)):
                self.loss = self.step(*minibatch)


def pyg_epoch(lab: Lab, model: str, products: str) -> dict[str, Any]:
    """Milliseconds of a step on a minibatch that is there, seconds of the measured epochs, the loss, and the most
    memory held."""
    trainer, requests = PyGTrainer(lab, model, products), lab.bulks(min(BULK, lab.minibatches), lab.batch)
    lab.warm_up(lambda: trainer.epoch(requests[:1]))
    some = list(resident(lab, draw(lab, "neighbor", lab.bulks(1, lab.batch)[0], trainer.workspace)))
    step = lab.ms(lambda: trainer.step(*some[0]))
    start_peak(lab)
    took = lab.repeated(lambda: trainer.epoch(requests), most=EPOCHS - 1, limit_s=20)
    return {"step_ms": step, "epoch_s": took, "loss": float(trainer.loss), "peak_bytes": peak(lab)}


def host_fed(lab: Lab) -> dict[str, float]:
    """Milliseconds a minibatch of each part of PyG's work where the host draws and gathers: for GraphSAGE in
    float32."""
    from millrace.stages.kernels.runtime.threads import set_num_threads
    from millrace.stages.kernels.sampling.cpu import backend as cpu

    set_num_threads(len(os.sched_getaffinity(0)))
    request, workspace = lab.bulks(min(16, lab.minibatches), lab.batch)[0], cpu.Workspace()
    features, labels, trainer = lab.features.cpu(), lab.labels.cpu(), PyGTrainer(lab, "sage", "float32")
    spent: dict[str, float] = dict.fromkeys(("sample", "gather", "copy", "step"), 0.0)

    def timed(name: str, call: Callable[[], Any]) -> Any:
        kept: list[Any] = []
        spent[name] += 1000 * lab.seconds(lambda: kept.append(call())) / len(request.seeds)
        return kept[0]

    for _ in range(2):
        # The first time compiles.
        spent.update(dict.fromkeys(spent, 0.0))
        samples = timed(
            "sample",
            lambda: cpu.neighbor(lab.graph, NeighborDraws(request.seeds, request.keys, FANOUT, workspace=workspace)),
        )
        for m in samples:
            nodes, dst = torch.from_numpy(m.nodes), np.repeat(np.arange(len(m.indptr) - 1), np.diff(m.indptr))
            x, y = timed(
                "gather",
                lambda nodes=nodes, n=m.node_ends[0]: (features.index_select(0, nodes), labels[nodes[:n].long()]),
            )
            host = x, y, torch.from_numpy(np.stack([m.indices, dst]))
            x, y, edges = timed("copy", lambda host=host: [a.to(lab.device) for a in host])
            blocks = [(edges[:, : int(m.indptr[n])], n) for n in reversed(m.node_ends[:-1])]
            timed("step", lambda x=x, y=y, blocks=blocks: trainer.train(x, y, blocks))
    return spent


def millrace_epoch(
    lab: Lab, model: str, products: str, system: str = "bulk", kernel: str | None = None
) -> dict[str, Any]:
    """Seconds of each epoch of `millrace.run` but the first, the last loss, the most device memory held, and seconds by
    stage. The device draws unless another `kernel` is given."""
    import millrace as mr
    from millrace.storage.features import ArrayFeatures

    none = np.empty(0, np.int64)
    split = mr.Split(np.sort(lab.order), none, none)
    data = mr.Dataset(
        "gpu", lab.graph, ArrayFeatures(lab.features.cpu().numpy()), lab.labels.cpu().numpy(), split, CLASSES
    )
    # A run has its own.
    lab.drop("features", "labels")
    config = {
        "device": lab.device.type,
        "system": system,
        "model": {"name": model, "hidden": HIDDEN, "layers": len(FANOUT), "dropout": 0.0}
        | ({"heads": HEADS} if model == "gat" else {}),
        "sampler": {"name": "neighbor", "fanout": list(FANOUT)},
        "train": {
            "batch_size": lab.batch,
            "optimizer": "adam",
            "lr": LR,
            "evaluate_every": 0,
            "matmul_precision": products,
        },
        "queue": {"bulk_size": min(BULK, lab.minibatches)},
        "kernel": kernel or ("cuda" if lab.on_gpu else "cpu"),
    }
    start_peak(lab)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = mr.run(data, config=config, epochs=EPOCHS, out=Path(folder) / "run")
    return {
        "epoch_s": list(result.seconds["per_epoch"][1:]),
        "first_epoch_s": result.seconds["per_epoch"][0],
        "whole_run_s": time.perf_counter() - start,
        "loss": result.train_loss,
        "peak_bytes": max([*result.peak_device_bytes, peak(lab)]),
        "seconds": result.seconds,
    }


def start_peak(lab: Lab) -> None:
    """Forget the most that was held before."""
    lab.check_time()
    lab.drop("_flush")
    if lab.on_gpu:
        torch.cuda.reset_peak_memory_stats()


def peak(lab: Lab) -> int:
    """Bytes of device memory that tensors held at most since; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() if lab.on_gpu else 0


def floors(lab: Lab, model: str) -> dict[str, float]:
    """Counts of an epoch: operations, bytes of the layers, bytes of drawing; means over one bulk, times the
    minibatches."""
    request = lab.bulks(min(16, lab.minibatches), lab.batch)[0]
    made = draw(lab, "neighbor", request, Workspace())
    counts = [float(e.mean()) for e in made.node_ends]
    size = sizes(lab, "neighbor", made)
    widths = [FEATURES, HIDDEN, HIDDEN, CLASSES]
    flops = moved = 0.0
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        src, dst = counts[len(FANOUT) - i], counts[len(FANOUT) - i - 1]
        # SAGE multiplies a mean and the row itself; GAT, at its cheapest, each head's sum by that head's weights
        # (averaged: HEADS times).
        wide = 2 * a if model == "sage" else a * (HEADS if i == 2 else 1)
        flops += 2 * dst * wide * b * (2 if i == 0 else 3)
        result = dst * a * (1 if model == "sage" else HEADS)
        moved += 4 * (src * a + result) * (1 if i == 0 else 2)
    return {
        "flop": flops * lab.minibatches,
        "moved_bytes": (moved + 8 * size["edges"] / size["minibatches"]) * lab.minibatches,
        "sampled_bytes": floor_bytes(lab, "neighbor", size) / size["minibatches"] * lab.minibatches,
    }


def train_all(lab: Lab) -> None:
    """Part "training"."""
    found: dict[str, Any] = lab.details.setdefault("training", {})
    for model in MODELS:
        least: dict[str, float] = {}
        with lab.attempt(f"training: floor of {model}"):
            least = found[f"{model} floor"] = floors(lab, model)
        for products in PRODUCTS if lab.on_gpu else PRODUCTS[:1]:
            name = f"{model} {products}"
            sides: dict[str, dict[str, Any]] = {}
            for side, measured in (("millrace", millrace_epoch), ("PyG", pyg_epoch)):
                with lab.attempt(f"training: {name}, {side}"):
                    s = found[f"{name}, {side}"] = measured(lab, model, products)
                    # Labels are random: whatever trains stays near the logarithm of the number of classes, or falls
                    # from there.
                    if not s["loss"] < 2 * math.log(CLASSES):
                        raise AssertionError(f"the loss is {s['loss']}; near {math.log(CLASSES):.2f} is expected")
                    sides[side] = s
                    lab.say(
                        f"  {name}, {side}: epochs "
                        f"{', '.join(f'{t:.3f}' for t in s['epoch_s'])} s, loss {s['loss']:.3f}, "
                        f"at most {s['peak_bytes'] / 2**30:.2f} GiB"
                    )
                lab.clear()
            if (model, products) == ("sage", "float32"):
                with lab.attempt(f"training: {name}, PyG fed from the host"):
                    parts = found[f"{name}, PyG fed from the host"] = host_fed(lab)
                    lab.say(
                        f"  {name}, PyG fed from the host: ms a minibatch "
                        f"{ ({k: round(v, 2) for k, v in parts.items()}) }"
                    )
                    lab.add(f"step of {name}, PyG fed from the host, all parts", sum(parts.values()), "ms")
            if sides:
                with lab.attempt(f"training: {name}, rows"):
                    _rows(lab, name, sides, least, getattr(torch, products))
    with lab.attempt("training: grappa"):
        grappa_steps(lab, found)


def grappa_steps(lab: Lab, found: dict[str, Any]) -> None:
    """A step of GraphSAGE under `grappa`, one rank, with draws of the device and of the host."""
    sides = found["sage float32, grappa"] = {
        side: millrace_epoch(lab, "sage", "float32", "grappa", kernel)
        for side, kernel in (("device", None), ("host", "cpu"))
    }
    device, host = (1000 * statistics.median(s["epoch_s"]) / lab.minibatches for s in sides.values())
    lab.add("step of sage float32, grappa, the device draws", device, "ms", peer=host, against="the host draws")
    lab.clear()
    losses = [s["loss"] for s in sides.values()]
    if not abs(losses[0] - losses[1]) <= DIFFERENCE * losses[1]:
        raise AssertionError(f"the losses are {losses}, of the same minibatches")


def _rows(lab: Lab, name: str, sides: dict[str, dict[str, Any]], least: dict[str, float], dtype: torch.dtype) -> None:
    floor = None
    if least:
        moved = least["moved_bytes"] + least["sampled_bytes"]
        floor = least["flop"] / product_rate(lab, "layer 1", dtype) + moved / lab.copy_bytes_per_s
    theirs = sides.get("PyG")
    peer = statistics.median(theirs["epoch_s"]) if theirs else None
    if "millrace" in sides:
        s = statistics.median(sides["millrace"]["epoch_s"])
        lab.add(f"epoch of {name}, millrace.run", s, "s", floor=floor, peer=peer, against="PyG" if theirs else "")
        lab.add(f"step of {name}, millrace.run: epoch / minibatches", 1000 * s / lab.minibatches, "ms")
        lab.add(f"device memory of {name}, millrace.run", sides["millrace"]["peak_bytes"] / 2**30, "GiB")
    if theirs and peer is not None:
        lab.add(f"epoch of {name}, PyG on our minibatches", peer, "s", floor=floor)
        lab.add(f"step of {name}, PyG, minibatch there already", theirs["step_ms"], "ms")
        lab.add(f"device memory of {name}, PyG on our minibatches", theirs["peak_bytes"] / 2**30, "GiB")
