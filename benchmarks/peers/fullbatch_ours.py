"""Millrace's layers over the whole graph as one neighbourhood, in one process."""

import torch
from fullbatch_task import CLASSES, FEATURES, HEADS, HIDDEN, LAYERS, LR, Epoch, FullBatch, train

from millrace.stages.arena import Arena, reusing
from millrace.stages.base import Fetched
from millrace.stages.kernels.threads import set_num_threads
from millrace.stages.models.gat import GAT
from millrace.stages.models.sage import SAGE
from millrace.stages.neighbourhood.block import whole_graph
from millrace.stages.train import forward_backward
from millrace.storage.graph import Graph


class AtTrainNodes(torch.nn.Module):
    """The model's rows that have a loss."""

    def __init__(self, model: torch.nn.Module, nodes: torch.Tensor) -> None:
        super().__init__()
        self.model, self.nodes = model, nodes

    def forward(self, hoods: tuple, h: torch.Tensor) -> torch.Tensor:
        """L neighbourhoods, [V, F] -> [n, C]."""
        return self.model(hoods, h)[self.nodes]


def start(task: FullBatch) -> Epoch:
    """See `fullbatch_task.train`."""
    torch.set_num_threads(task.threads)
    set_num_threads(task.threads)
    torch.manual_seed(0)
    hoods = (whole_graph(Graph(*task.graph())),) * LAYERS
    features, labels, nodes = (torch.from_numpy(task.array(name)) for name in ("features", "labels", "train"))
    config = GAT(hidden=HIDDEN, dropout=0.0, heads=HEADS) if task.model == "gat" else SAGE(hidden=HIDDEN, dropout=0.0)
    model = AtTrainNodes(config.build(FEATURES, CLASSES), nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    fetched, arena = Fetched(0, 0, hoods, features, labels[nodes]), Arena()

    def epoch() -> float:
        optimizer.zero_grad(set_to_none=True)
        with reusing(arena):
            done = forward_backward(model, fetched, 0, "multiclass", 1 / len(nodes))
            optimizer.step()
        arena.step()
        return done.loss_sum / done.seeds

    return epoch


if __name__ == "__main__":
    train(start)
