"""Millrace trains graph neural networks on graphs that have outgrown one process.

The names here are the public face; everything else may move.
"""

from millrace.pipeline.config import Job
from millrace.pipeline.datasets import ReadOptions, from_networkx, from_pyg, from_scipy, open_dataset
from millrace.pipeline.export import to_dgl_blocks, to_pyg
from millrace.pipeline.loaders import NeighborLoader
from millrace.pipeline.result import Result
from millrace.pipeline.run import run
from millrace.pipeline.systems import System, bulk
from millrace.stages.evaluate import infer
from millrace.stages.models import GAT, GCN, GIN
from millrace.stages.models import SAGE as GraphSAGE
from millrace.stages.neighbourhood.base import destinations
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError, MillraceError, RunError, StoreError
from millrace.storage.graph import Graph, from_edges
from millrace.storage.minibatch import Block, Bulk, MiniBatch
from millrace.storage.queue_zarr import ZarrQueue

__version__ = "0.1.0"

open_queue = ZarrQueue.open
"""Open a store of sampled minibatches to read it; iterating it gives every minibatch in order."""

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "Block",
    "Bulk",
    "Dataset",
    "FastGCNSampler",
    "Graph",
    "GraphSAGE",
    "InputError",
    "Job",
    "LaborSampler",
    "LadiesSampler",
    "MillraceError",
    "MiniBatch",
    "NeighborLoader",
    "NeighborSampler",
    "ReadOptions",
    "Result",
    "RunError",
    "Split",
    "StoreError",
    "System",
    "bulk",
    "destinations",
    "from_edges",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "infer",
    "open_dataset",
    "open_queue",
    "run",
    "to_dgl_blocks",
    "to_pyg",
    "write_dataset",
]
