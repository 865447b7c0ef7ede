"""Millrace trains graph neural networks on graphs that have outgrown one process.

The names listed here are the public interface; everything else may move. Each is imported when it is first used: torch
alone takes seconds to import, and a worker that only holds a rank's process does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.pipeline.config.load import Job
    from millrace.pipeline.config.systems import System
    from millrace.pipeline.custom.callback import Callback, RunView
    from millrace.pipeline.datasets import (
        ReadOptions,
        edge_dataset,
        from_networkx,
        from_pyg,
        from_relations,
        from_scipy,
        from_triples,
        link_dataset,
        open_dataset,
    )
    from millrace.pipeline.inference.evaluate import evaluate
    from millrace.pipeline.inference.finished_run import TrainedRun, load
    from millrace.pipeline.inference.pairs import LinkScores, predict_edges, predict_links
    from millrace.pipeline.inference.predict import Embeddings, embed, predict
    from millrace.pipeline.inference.predictions import EdgePredictions, Predictions
    from millrace.pipeline.inference.program import explainer, export_program
    from millrace.pipeline.inference.recommend import Recommendations, recommend
    from millrace.pipeline.ingest.convert import convert
    from millrace.pipeline.interop.conv_weights import conv_weights, set_conv_weights
    from millrace.pipeline.interop.export import to_dgl_blocks, to_pyg
    from millrace.pipeline.interop.pyg_hgt_loader import HGTLoader
    from millrace.pipeline.interop.pyg_lightning import LightningLinkData, LightningNodeData
    from millrace.pipeline.interop.pyg_link_loader import LinkNeighborLoader
    from millrace.pipeline.interop.pyg_loader import NeighborLoader
    from millrace.pipeline.interop.pyg_sampler import PyGSampler
    from millrace.pipeline.minibatches import Batch, Minibatches, minibatches
    from millrace.pipeline.planning.inputs import Cluster, Numbers
    from millrace.pipeline.planning.network import Link
    from millrace.pipeline.planning.planner import plan
    from millrace.pipeline.ready import dry_run
    from millrace.pipeline.report.write import Report, report
    from millrace.pipeline.run import run
    from millrace.pipeline.sample import sample
    from millrace.pipeline.setup.open_queue import open_queue
    from millrace.pipeline.setup.result import Result
    from millrace.pipeline.sweep.sweep import Sweep, sweep
    from millrace.pipeline.systems.bulk import bulk
    from millrace.pipeline.systems.grappa import grappa
    from millrace.pipeline.systems.retexo import retexo
    from millrace.pipeline.systems.sar import sar
    from millrace.stages.evaluate.layerwise import infer
    from millrace.stages.kernels.sampling.sparse import Sparse
    from millrace.stages.models import GAT, GCN, GIN, GINE, RGAT, RGCN, RSAGE, GATv2
    from millrace.stages.models import SAGE as GraphSAGE
    from millrace.stages.models.pyg.hetero import HeteroPyGModel
    from millrace.stages.models.pyg.model import PyGModel
    from millrace.stages.neighbourhood.base import destinations
    from millrace.stages.partition.quality import measure as partition_quality
    from millrace.stages.partition.registry import partitioner
    from millrace.stages.partition.stage import open_part, partition_dataset
    from millrace.stages.sample.fastgcn import FastGCNSampler
    from millrace.stages.sample.labor import LaborSampler
    from millrace.stages.sample.ladies import LadiesSampler
    from millrace.stages.sample.matrix import MatrixSampler, SubgraphSampler
    from millrace.stages.sample.minibatches import sample_minibatches
    from millrace.stages.sample.neighbor import NeighborSampler
    from millrace.stages.sample.ppr import PprSampler
    from millrace.stages.sample.saint import SaintSampler
    from millrace.stages.sample.temporal import TemporalSampler
    from millrace.storage.dataset import Dataset, Split
    from millrace.storage.dataset_store import write_dataset
    from millrace.storage.errors import DataWarning, InputError, MillraceError, RunError, StoreError
    from millrace.storage.graph import Graph, from_edges
    from millrace.storage.minibatch import Block, Bulk, MiniBatch
    from millrace.storage.partition.reorder import reorder

__version__ = "0.2.0"

_HOMES = {
    name: module
    for module, names in {
        "pipeline.config.load": "Job",
        "pipeline.datasets": "ReadOptions from_networkx from_pyg from_relations from_triples from_scipy "
        "open_dataset edge_dataset link_dataset",
        "pipeline.ingest.convert": "convert",
        "pipeline.interop.conv_weights": "conv_weights set_conv_weights",
        "pipeline.minibatches": "Batch Minibatches minibatches",
        "pipeline.interop.export": "to_dgl_blocks to_pyg",
        "pipeline.interop.pyg_loader": "NeighborLoader",
        "pipeline.interop.pyg_hgt_loader": "HGTLoader",
        "pipeline.interop.pyg_lightning": "LightningLinkData LightningNodeData",
        "pipeline.interop.pyg_link_loader": "LinkNeighborLoader",
        "pipeline.interop.pyg_sampler": "PyGSampler",
        "pipeline.planning.planner": "plan",
        "pipeline.planning.inputs": "Cluster Numbers",
        "pipeline.planning.network": "Link",
        "pipeline.custom.callback": "Callback RunView",
        "pipeline.inference.evaluate": "evaluate",
        "pipeline.inference.predict": "Embeddings embed predict",
        "pipeline.inference.pairs": "LinkScores predict_edges predict_links",
        "pipeline.inference.predictions": "EdgePredictions Predictions",
        "pipeline.inference.program": "explainer export_program",
        "pipeline.inference.recommend": "Recommendations recommend",
        "pipeline.setup.open_queue": "open_queue",
        "pipeline.report.write": "Report report",
        "pipeline.setup.result": "Result",
        "pipeline.ready": "dry_run",
        "pipeline.run": "run",
        "pipeline.sample": "sample",
        "pipeline.config.systems": "System",
        "pipeline.systems.bulk": "bulk",
        "pipeline.systems.grappa": "grappa",
        "pipeline.systems.retexo": "retexo",
        "pipeline.systems.sar": "sar",
        "pipeline.inference.finished_run": "TrainedRun load",
        "pipeline.sweep.sweep": "Sweep sweep",
        "stages.evaluate.layerwise": "infer",
        "stages.models": "GAT GATv2 GCN GIN GINE RGAT RGCN RSAGE",
        "stages.models.pyg.hetero": "HeteroPyGModel",
        "stages.models.pyg.model": "PyGModel",
        "stages.neighbourhood.base": "destinations",
        "stages.partition.registry": "partitioner",
        "stages.partition.stage": "open_part partition_dataset",
        "stages.sample.fastgcn": "FastGCNSampler",
        "stages.sample.labor": "LaborSampler",
        "stages.sample.ladies": "LadiesSampler",
        "stages.sample.neighbor": "NeighborSampler",
        "stages.sample.matrix": "MatrixSampler SubgraphSampler",
        "stages.kernels.sampling.sparse": "Sparse",
        "stages.sample.ppr": "PprSampler",
        "stages.sample.saint": "SaintSampler",
        "stages.sample.temporal": "TemporalSampler",
        "stages.sample.minibatches": "sample_minibatches",
        "storage.dataset": "Dataset Split",
        "storage.dataset_store": "write_dataset",
        "storage.errors": "DataWarning InputError MillraceError RunError StoreError",
        "storage.graph": "Graph from_edges",
        "storage.minibatch": "Block Bulk MiniBatch",
        "storage.partition.reorder": "reorder",
    }.items()
    for name in names.split()
} | {
    "GraphSAGE": "stages.models:SAGE",
    "partition_quality": "stages.partition.quality:measure",
}
"""Home of each public name: module, or module:name."""

__all__ = [
    "SubgraphSampler",
    "Sparse",
    "MatrixSampler",
    "GAT",
    "GATv2",
    "GCN",
    "GIN",
    "GINE",
    "RGAT",
    "RGCN",
    "RSAGE",
    "Batch",
    "Block",
    "Bulk",
    "Callback",
    "Cluster",
    "DataWarning",
    "Dataset",
    "EdgePredictions",
    "Embeddings",
    "FastGCNSampler",
    "Graph",
    "GraphSAGE",
    "HGTLoader",
    "HeteroPyGModel",
    "InputError",
    "Job",
    "LaborSampler",
    "LadiesSampler",
    "LightningLinkData",
    "LightningNodeData",
    "Link",
    "LinkNeighborLoader",
    "LinkScores",
    "MillraceError",
    "MiniBatch",
    "Minibatches",
    "NeighborLoader",
    "NeighborSampler",
    "Numbers",
    "PprSampler",
    "Predictions",
    "PyGModel",
    "PyGSampler",
    "ReadOptions",
    "Recommendations",
    "Report",
    "Result",
    "RunError",
    "RunView",
    "SaintSampler",
    "Split",
    "StoreError",
    "Sweep",
    "System",
    "TemporalSampler",
    "TrainedRun",
    "bulk",
    "conv_weights",
    "convert",
    "destinations",
    "dry_run",
    "edge_dataset",
    "embed",
    "evaluate",
    "explainer",
    "export_program",
    "from_edges",
    "from_networkx",
    "from_pyg",
    "from_relations",
    "from_triples",
    "from_scipy",
    "grappa",
    "infer",
    "link_dataset",
    "load",
    "minibatches",
    "open_dataset",
    "open_part",
    "open_queue",
    "partition_dataset",
    "partition_quality",
    "partitioner",
    "plan",
    "predict",
    "predict_edges",
    "predict_links",
    "recommend",
    "reorder",
    "report",
    "retexo",
    "run",
    "sample",
    "sample_minibatches",
    "sar",
    "set_conv_weights",
    "sweep",
    "to_dgl_blocks",
    "to_pyg",
    "write_dataset",
]


_PYG_LOADERS = (
    "AffinityMixin",
    "CachedLoader",
    "ClusterData",
    "ClusterLoader",
    "DataListLoader",
    "DataLoader",
    "DenseDataLoader",
    "DynamicBatchSampler",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "GraphSAINTSampler",
    "ImbalancedSampler",
    "LightningDataset",
    "LinkLoader",
    "NodeLoader",
    "PrefetchLoader",
    "RandomNodeLoader",
    "ShaDowKHopSampler",
    "TemporalDataLoader",
    "ZipLoader",
)
"""Names of PyG's loaders and data modules that a script imports beside ours: they are PyG's own."""


def _of_pyg(name: str) -> object:
    module = f"torch_geometric.{'data.lightning' if name.startswith('Lightning') else 'loader'}"
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as e:
        raise ImportError(f"millrace has no {name}: it is {module}.{name}, which cannot be imported ({e})") from None


def __getattr__(name: str) -> Any:
    if name in _PYG_LOADERS:
        return _of_pyg(name)
    if name not in _HOMES:
        raise AttributeError(f"module 'millrace' has no attribute '{name}'")
    module, _, inner = _HOMES[name].partition(":")
    value = getattr(import_module(f"millrace.{module}"), inner or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
