"""DGL's NeighborSampler behind its DataLoader (no workers), and R-GCN as in its example: HeteroGraphConv of GraphConv,
with a linear layer of each node type for the node itself (dgl 2.1.0). Runs in DGL's environment."""

from typing import Any

import dgl
import torch
from dgl import nn as dglnn
from torch import Tensor, nn
from torch.nn import functional as F
from train_task import BATCH, Epoch, Task, train
from train_torch import epochs
from typed_dgl import heterograph
from typed_task import CLASSES, FEATURES, HIDDEN, LR, graph, papers


class Layer(nn.Module):
    """The mean of each relation times a matrix, and the node's own row times that of its type."""

    def __init__(self, types: dict[str, Any], width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = dglnn.HeteroGraphConv(
            {
                name: dglnn.GraphConv(width_in, width_out, "right", bias=False, allow_zero_in_degree=True)
                for _, name, _ in types["relations"]
            }
        )
        self.own = nn.ModuleDict({t: nn.Linear(width_in, width_out) for t in types["node_types"]})

    def forward(self, block: Any, h: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows of each type -> rows of those with destinations."""
        out = self.conv(block, h)
        return {t: rows + self.own[t](h[t][: len(rows)]) for t, rows in out.items()}


class Rgcn(nn.Module):
    """A projection of papers, a vector of each other type, and L layers."""

    def __init__(self, types: dict[str, Any], layers: int) -> None:
        super().__init__()
        self.target, *others = types["node_types"]
        self.projection = nn.Linear(FEATURES, HIDDEN)
        self.others = nn.ParameterDict({t: nn.Parameter(torch.randn(HIDDEN)) for t in others})
        widths = [HIDDEN] * layers + [CLASSES]
        self.layers = nn.ModuleList(Layer(types, a, b) for a, b in zip(widths, widths[1:]))

    def forward(self, blocks: list[Any], x: Tensor) -> Tensor:
        """[n, F] of the papers -> [B, C]."""
        h = {t: vector.expand(blocks[0].num_src_nodes(t), -1) for t, vector in self.others.items()}
        h[self.target] = self.projection(x)
        for i, (layer, block) in enumerate(zip(self.layers, blocks)):
            h = layer(block, h)
            if i + 1 < len(self.layers):
                h = {t: F.relu(rows) for t, rows in h.items()}
        return h[self.target]


def start(task: Task) -> Epoch:
    """See `train_task.train`."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    indptr, indices, kind, types = graph(task)
    hetero, fanout = heterograph(indptr, indices, kind, types), task.options["fanout"]
    features, labels, seeds = map(torch.from_numpy, papers(task, BATCH))
    target = types["node_types"][0]
    # DGL lists fanouts from the input inwards.
    sampler = dgl.dataloading.NeighborSampler(list(reversed(fanout)))
    loader = dgl.dataloading.DataLoader(hetero, {target: seeds}, sampler, batch_size=BATCH, shuffle=True, num_workers=0)
    model = Rgcn(types, len(fanout))

    def gather(minibatch: Any) -> tuple[Tensor, Tensor]:
        nodes, chosen, _ = minibatch
        return features.index_select(0, nodes[target]), labels.index_select(0, chosen[target])

    def loss(minibatch: Any, rows: Any) -> Tensor:
        x, y = rows
        return F.cross_entropy(model(minibatch[-1], x), y)

    def sizes(minibatch: Any) -> tuple[int, int, int]:
        edges = sum(b.num_edges() for b in minibatch[-1])
        return edges, edges, sum(map(len, minibatch[0].values()))

    return epochs(loader, model, loss, sizes, gather, lr=LR)


if __name__ == "__main__":
    train(start)
