"""Predictions by time on a GPU: samples that it draws, over rows in its memory or in locked memory of the host."""

import torch
from torch import Tensor, nn

from ...stages.evaluate import temporal
from ...stages.models.base import reads_edges
from ...stages.sample.temporal import timed_graph
from ...storage.dataset import Dataset
from ...storage.features import FeatureStore
from ...storage.store.bytes_left import fits_in_memory
from ..config.load import Job


def device_of(model: nn.Module) -> torch.device:
    """The device that computes a model's outputs: its parameters'."""
    return next((p.device for p in model.parameters() if p.is_floating_point()), torch.device("cpu"))


def device_chunks(model: nn.Module, data: Dataset, job: Job, seeds: int | None) -> temporal.Chunk | None:
    """Outputs over draws of the model's GPU; None if the host draws: it has the model, or the run's ``kernel`` says so.

    Args:
        model: on any device.
        data: with times of edges.
        job: of the run.
        seeds: nodes that are asked for; None: many.
    """
    device = device_of(model)
    # A queue on disk has samples of the host, whoever predicts.
    by_host = job.device == "cuda" and job.kernel != "cuda" and job.queue.kind == "memory"
    if device.type != "cuda" or by_host:
        return None
    # Needs Triton.
    from ...stages.evaluate.temporal_cuda import DeviceChunks

    timed_graph(data.graph).on_device(job.gpu.topology)
    stores = data.features, data.graph.edge_features if reads_edges(model) else None
    # One minibatch reads the rows of its own nodes; others share rows.
    several = seeds is None or seeds > temporal.CHUNK
    rows = [_device_rows(x, device, job) if x is not None and several else None for x in stores]
    return DeviceChunks(data.graph, *rows)


def _device_rows(features: FeatureStore, device: torch.device, job: Job) -> Tensor | None:
    """All rows where kernels of the device read them, as ``gpu.features`` says; None if neither the device nor the host
    has room for a copy."""
    from ...stages.fetch.gather_cuda import upload
    from ...stages.kernels.runtime.device_memory import goes_to_device

    num_bytes = features.num_rows * features.num_features * features.dtype.itemsize
    there = goes_to_device(num_bytes, device, job.gpu.features)
    if not there and not fits_in_memory(num_bytes):
        return None
    return upload(features, device, "device" if there else "pinned").rows
