"""DGL on labels of edges: its edge prediction sampler, which leaves all edges in the samples, three SAGEConv and the
head of `edges_task` (dgl 2.1.0). Runs in DGL's environment."""

from typing import Any

import dgl
import torch
from edges_task import Head, labelled, set_parameters
from torch import Tensor, nn
from torch.nn import functional as F
from train_dgl import Sage, graph_of, neighbours, sizes
from train_task import HIDDEN, PAIRS, Epoch, Task, train
from train_torch import HeadClock, epochs


def start(task: Task) -> Epoch:
    """See `train_task.train`."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    graph, features = graph_of(task), torch.from_numpy(task.data()[0])
    edges, labels, of_edges = map(torch.from_numpy, labelled(task))
    sampler = dgl.dataloading.as_edge_prediction_sampler(neighbours())
    loader = dgl.dataloading.DataLoader(
        graph, edges.to(graph.idtype), sampler, batch_size=PAIRS, shuffle=True, num_workers=0
    )
    layers, head, clock = Sage(task.dropout, HIDDEN), Head(), HeadClock()
    convs: Any = layers.convs
    parameters = [p for c in convs for p in (c.fc_self.weight, c.fc_neigh.weight, c.fc_self.bias)]
    set_parameters([*parameters, *head.parameters()])

    def gather(minibatch: Any) -> tuple[Tensor, Tensor, Tensor]:
        chosen = minibatch[1].edata[dgl.EID]
        return tuple(a.index_select(0, i) for a, i in ((features, minibatch[0]), (of_edges, chosen), (labels, chosen)))

    def loss(minibatch: Any, rows: Any) -> Tensor:
        h, x, y = rows
        source, destination = minibatch[1].edges()
        found = clock(layers(minibatch[-1], h), lambda z: head.of(z, source, destination, x))
        return F.cross_entropy(found, y)

    return epochs(loader, nn.ModuleList([layers, head]), loss, sizes, gather, clock)


if __name__ == "__main__":
    train(start)
