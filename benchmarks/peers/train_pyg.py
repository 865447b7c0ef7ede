"""PyG's SAGEConv or GATConv with `trim_to_layer`, fed by PyG's NeighborLoader if its sampling extension is installed,
else by ours."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, SAGEConv
from torch_geometric.utils import trim_to_layer
from train_task import BATCH, CLASSES, FANOUT, FEATURES, HEADS, HIDDEN, Epoch, Task, train
from train_torch import epochs

OWN = any(find_spec(name) for name in ("pyg_lib", "torch_sparse"))
"""True if PyG's own sampling extension is installed."""


class Model(nn.Module):
    """Three convolutions on the part of the minibatch that each needs."""

    def __init__(self, name: str, dropout: float, outputs: int = CLASSES) -> None:
        super().__init__()
        self.dropout = dropout
        if name == "sage":
            widths = [FEATURES, HIDDEN, HIDDEN, outputs]
            convs: list[nn.Module] = [SAGEConv(a, b) for a, b in zip(widths, widths[1:])]
        else:
            wide = HIDDEN // HEADS
            convs = [
                GATConv(FEATURES, wide, HEADS),
                GATConv(HIDDEN, wide, HEADS),
                GATConv(HIDDEN, outputs, HEADS, concat=False),
            ]
        self.convs = nn.ModuleList(convs)
        self.activation = F.relu if name == "sage" else F.elu

    def forward(self, m: Any) -> Tensor:
        """[n, F] -> logits, of which the first B rows count."""
        h, edges = m.x, m.edge_index
        for i, conv in enumerate(self.convs):
            if "num_sampled_nodes" in m:
                h, edges, _ = trim_to_layer(i, m.num_sampled_nodes, m.num_sampled_edges, h, edges)
            h = conv(F.dropout(h, self.dropout, self.training), edges)
            if i + 1 < len(self.convs):
                h = self.activation(h)
        return h


def sizes(m: Any) -> tuple[int, int, int]:
    """See `train_torch.epochs`: where hops are known, each layer leaves out the outermost one of the layer before."""
    count = m.edge_index.shape[1]
    hops = m.num_sampled_edges if "num_sampled_edges" in m else [count] + [0] * (len(FANOUT) - 1)
    return count, sum(sum(hops[: len(hops) - i]) for i in range(len(hops))), m.num_nodes


def data_of(task: Task) -> Data:
    """The graph with its features and labels."""
    indptr, indices = task.graph()
    edges = np.empty((2, len(indices)), np.int64)
    edges[0] = indices
    edges[1] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    features, labels = (torch.from_numpy(a) for a in task.data())
    return Data(x=features, edge_index=torch.from_numpy(edges), y=labels)


def loaders() -> Any:
    """The module with the loaders."""
    if OWN:
        from torch_geometric import loader

        return loader
    import millrace

    return millrace


def start(task: Task) -> Epoch:
    """See `train_task.train`."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    data, seeds = data_of(task), torch.from_numpy(task.seeds())
    loader = loaders().NeighborLoader(
        data, num_neighbors=list(FANOUT), input_nodes=seeds, batch_size=BATCH, shuffle=True
    )
    model = Model(task.model, task.dropout)

    def loss(m: Any, _: None) -> Tensor:
        return F.cross_entropy(model(m)[: m.batch_size], m.y[: m.batch_size])

    return epochs(loader, model, loss, sizes)


LOADER = "PyG's loader" if OWN else "Millrace's loader"

if __name__ == "__main__":
    train(start, loader=LOADER)
