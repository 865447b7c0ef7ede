"""PyG on labels of edges: LinkNeighborLoader with labels and no negatives, three SAGEConv with `trim_to_layer` and the
head of `edges_task`. Fed as `train_pyg` is."""

from typing import Any

import torch
from edges_task import Head, labelled, set_parameters
from torch import Tensor, nn
from torch.nn import functional as F
from train_pyg import LOADER, Model, data_of, loaders, sizes
from train_task import FANOUT, HIDDEN, PAIRS, Epoch, Task, train
from train_torch import HeadClock, epochs


def start(task: Task) -> Epoch:
    """See `train_task.train`."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    data = data_of(task)
    del data.y
    edges, labels, of_edges = map(torch.from_numpy, labelled(task))
    loader = loaders().LinkNeighborLoader(
        data,
        num_neighbors=list(FANOUT),
        edge_label_index=data.edge_index[:, edges],
        edge_label=labels[edges],
        batch_size=PAIRS,
        shuffle=True,
    )
    layers, head, clock = Model("sage", task.dropout, HIDDEN), Head(), HeadClock()
    convs: Any = layers.convs
    parameters = [p for c in convs for p in (c.lin_r.weight, c.lin_l.weight, c.lin_l.bias)]
    set_parameters([*parameters, *head.parameters()])

    def loss(m: Any, _: None) -> Tensor:
        source, destination = m.edge_label_index
        x = of_edges[edges[m.input_id]]
        found = clock(layers(m), lambda z: head.of(z, source, destination, x))
        return F.cross_entropy(found, m.edge_label)

    return epochs(loader, nn.ModuleList([layers, head]), loss, sizes, head=clock)


if __name__ == "__main__":
    train(start, loader=LOADER)
