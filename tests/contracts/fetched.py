"""Minibatches fetched from a whole graph in memory."""

import numpy as np
import numpy.typing as npt
import torch

from millrace.stages.fetch.fetch import HOST, Degrees, Labels, MinibatchFetcher
from millrace.stages.fetch.gather import HostRows
from millrace.stages.fetch.isolated import Weights
from millrace.stages.messages import Fetched, Placement
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph
from millrace.storage.minibatch import MiniBatch


def fetched(graph: Graph, x: npt.NDArray[np.floating], work: MiniBatch) -> Fetched:
    """Rows of `x`, features of edges and lists of a minibatch; labels are all 0."""
    none, labels = np.empty(0, np.int64), torch.zeros(graph.num_nodes, dtype=torch.int64)
    degree, split = torch.from_numpy(graph.degree), Split(none, none, none)
    placement = Placement(graph, ArrayFeatures(x), labels, degree, split, edge_features=graph.edge_features)
    return MinibatchFetcher(
        HostRows(placement, placement.features, placement.edge_features),
        Labels(placement, HOST, HOST),
        Degrees(placement, HOST),
        Weights(placement, "none"),
    ).fetch(work)
