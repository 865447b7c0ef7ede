"""Policies of a rank that trains on a GPU: the place of its tensors, and the way minibatches get there."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...stages.capabilities import Need
from ...stages.messages import RankJob
from ...storage.errors import InputError
from ..config.capabilities import needs_of
from ..config.load import Job
from ..config.refusals import refuse
from ..config.systems import SYSTEMS, System
from ..machine.gpus import check_gpus, own_device

if TYPE_CHECKING:
    from ...stages.fetch.gather_cuda import DeviceMemory


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
    if job.device != "cpu" and not system.fetch.reads_edges_on_device:
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
    if rank_job.packed is not None:
        return system, rank_job

    def memory() -> "DeviceMemory":
        # Needs Triton.
        from ...stages.fetch.gather_cuda import DeviceMemory

        gpu = job.gpu
        return DeviceMemory(gpu.features, gpu.cache_bytes, gpu.topology, gpu.graphs)

    is_resident = system.sample.sampler is not None and job.kernel == "cuda"
    return replace(system, fetch=system.fetch.with_memory(memory)), replace(rank_job, resident=is_resident)
