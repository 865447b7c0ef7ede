"""Policies of a rank that trains on a GPU: the place of its tensors, and the way minibatches get there."""

from dataclasses import replace
from typing import Any

import torch

from ...stages.capabilities import Need
from ...stages.fetch.exchange import ExchangeFetch
from ...stages.fetch.gather import GatherFetch
from ...stages.fetch.isolated import CoverageFetch
from ...stages.fetch.links import LinkCoverageFetch, LinkExchangeFetch, LinkFetch
from ...stages.fetch.phase_fetch import PhaseFetch
from ...stages.fetch.temporal import TemporalFetch
from ...stages.fetch.visit import VisitFetch
from ...stages.learned.fetch import LearnedFetch
from ...stages.messages import RankJob
from ...stages.sample.base import reads_times
from ...storage.errors import InputError
from ..config.capabilities import needs_of
from ..config.load import Job
from ..config.refusals import refuse
from ..config.systems import SYSTEMS, System
from ..machine.gpus import check_gpus, own_device


def check_device(job: Job) -> None:
    """Refuse a job that no GPU can run in this version, before any slow work.

    Raises:
        InputError: the system has no minibatches; see also `check_gpus`.
        MissingExtraError: a package is not installed.
    """
    refuse(Need.DEVICE, needs_of(job), job)
    check_gpus(job)


def check_types_on_device(job: Job, system: System, graph: str) -> None:
    """Refuse devices and kernels that do not know relations.

    Args:
        job: a resolved configuration.
        system: the training system.
        graph: a sentence's beginning that says which types the graph has.

    Raises:
        InputError: names the key to change.
    """
    if job.device != "cpu" and not isinstance(system.fetch, GatherFetch | ExchangeFetch | VisitFetch):
        raise InputError(
            f"{graph}, but device is '{job.device}', on which system '{job.system}' runs without relations in this "
            f'version; use device = "cpu", or system = "{next(iter(SYSTEMS))}"'
        )
    sampler: Any = getattr(system.sample, "sampler", None)
    by_device = ("cuda",) if getattr(sampler, "draws_relations_on_device", False) else ()
    if job.kernel not in ("cpu", "matrix", *by_device):
        raise InputError(
            f"{graph}, but kernel is '{job.kernel}', by which the sampler {getattr(sampler, 'name', 'of the system')} "
            'draws no relations in this version; use kernel = "cpu"'
        )


def ready_device(job: Job) -> torch.device | None:
    """Choose this rank's device and make it torch's current one; None if it trains on the CPU.

    Raises:
        InputError: see `own_device`.
    """
    if job.device == "cpu":
        return None
    to = own_device()
    if to.type == "cuda":
        # A device has no statistics before its first use.
        torch.cuda.init()
        torch.cuda.set_device(to)
        torch.cuda.reset_peak_memory_stats(to)
    return to


def on_device(system: System, rank_job: RankJob, job: Job) -> tuple[System, RankJob]:
    """Replace the policies of the system and of this rank's job by those for its device.

    Args:
        system: the run's system.
        rank_job: the rank's job, with its device.
        job: the configuration.
    """
    # Needs Triton.
    from ...stages.fetch.exchange_cuda import DeviceExchangeFetch, DeviceLinkFetch
    from ...stages.fetch.gather_cuda import DeviceCoverageFetch, DeviceGatherFetch, DeviceMoveFetch
    from ...stages.fetch.temporal_cuda import DeviceTemporalFetch

    inner, gpu = system.fetch, job.gpu
    if isinstance(inner, LearnedFetch):
        system, rank_job = on_device(replace(system, fetch=inner.inner), rank_job, job)
        return replace(system, fetch=replace(inner, inner=system.fetch)), rank_job
    if rank_job.packed is not None:
        return replace(system, fetch=DeviceMoveFetch(inner)), rank_job
    gathers: dict[type, type[DeviceGatherFetch]] = {
        GatherFetch: DeviceGatherFetch,
        LinkFetch: DeviceGatherFetch,
        TemporalFetch: DeviceTemporalFetch,
    }
    kind = gathers.get(type(inner))
    if isinstance(inner, LinkFetch) and reads_times(inner.sample.sampler):
        kind = DeviceTemporalFetch
    if kind is not None:
        policy = kind(gpu.features, gpu.cache_bytes, gpu.topology, gpu.graphs)
    elif isinstance(inner, CoverageFetch):
        policy = DeviceCoverageFetch(gpu.features, gpu.cache_bytes, gpu.topology, gpu.graphs, inner.correction)
    elif isinstance(inner, ExchangeFetch):
        policy = DeviceExchangeFetch(inner, gpu.features, gpu.cache_bytes, gpu.topology)
    elif isinstance(inner, VisitFetch | PhaseFetch):
        # They know the device from the rank's job.
        return system, rank_job
    else:
        return replace(system, fetch=DeviceMoveFetch(inner)), rank_job
    if isinstance(inner, LinkFetch | LinkExchangeFetch | LinkCoverageFetch):
        policy = DeviceLinkFetch(policy, inner.sample)
    return replace(system, fetch=policy), replace(rank_job, resident=job.kernel == "cuda")
