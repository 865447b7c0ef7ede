"""DGL's SAGEConv or GATConv for all nodes (dgl 2.1.0). Runs in DGL's environment.

Option: way, ``whole`` (each layer over the whole graph at once) or ``batches`` (layer by layer, each in batches of 1024
nodes with all in-neighbours, as in DGL's examples).
"""

from collections.abc import Callable
from typing import Any

import dgl
import numpy as np
import torch
from dgl import nn as dglnn
from evaluate_task import CLASSES, FEATURES, HEADS, HIDDEN, LAYERS, Evaluation, evaluate
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 1024


def convolutions(task: Evaluation) -> nn.ModuleList:
    """With the parameters that all engines have."""
    wide = HIDDEN // HEADS
    if task.model == "gat":
        convs = [dglnn.GATConv(a, b, HEADS) for a, b in ((FEATURES, wide), (HIDDEN, wide), (HIDDEN, CLASSES))]
    else:
        widths = [FEATURES, HIDDEN, HIDDEN, CLASSES]
        convs = [dglnn.SAGEConv(a, b, "mean") for a, b in zip(widths, widths[1:])]
    for i, conv in enumerate(convs):
        given = {name: torch.from_numpy(w) for name, w in task.weights(i).items()}
        with torch.no_grad():
            if task.model == "gat":
                conv.fc.weight.copy_(given["product"])
                conv.attn_l.copy_(given["src"][None])
                conv.attn_r.copy_(given["dst"][None])
            else:
                conv.fc_self.weight.copy_(given["own"])
                conv.fc_neigh.weight.copy_(given["near"])
                for bias in (p for name, p in conv.named_parameters() if name.endswith("bias")):
                    bias.zero_()
    return nn.ModuleList(convs)


def start(task: Evaluation) -> Callable[[], np.ndarray]:
    """See `evaluate_task.evaluate`."""
    torch.set_num_threads(task.threads)
    gat = task.model == "gat"
    width = torch.int64 if task.options["way"] == "batches" else torch.int32
    indptr, indices = (torch.from_numpy(a).to(width) for a in task.graph(loops=gat))
    # GATConv's products refuse lists without edge ids.
    graph = dgl.graph(
        ("csc", (indptr, indices, torch.arange(len(indices), dtype=width))), num_nodes=len(indptr) - 1, idtype=width
    )
    features, convs = torch.from_numpy(task.features()), convolutions(task)

    def layer(i: int, block: Any, h: Any) -> Tensor:
        out = convs[i](block, h)
        if gat:
            out = out.mean(1) if i + 1 == LAYERS else F.elu(out.flatten(1))
        elif i + 1 < LAYERS:
            out = F.relu(out)
        return out

    def whole() -> np.ndarray:
        h = features
        for i in range(LAYERS):
            h = layer(i, graph, h)
        return h.numpy()

    def batches() -> np.ndarray:
        h = features
        for i in range(LAYERS):
            sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1)
            loader = dgl.dataloading.DataLoader(
                graph, torch.arange(graph.num_nodes()), sampler, batch_size=BATCH, shuffle=False, drop_last=False
            )
            out = torch.empty(graph.num_nodes(), CLASSES if i + 1 == LAYERS else HIDDEN)
            for sources, nodes, (block,) in loader:
                out[nodes] = layer(i, block, h[sources])
            h = out
        return h.numpy()

    compute = whole if task.options["way"] == "whole" else batches

    def run() -> np.ndarray:
        with torch.no_grad():
            return compute()

    return run


if __name__ == "__main__":
    evaluate(start)
