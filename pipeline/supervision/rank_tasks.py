"""Dask tasks that hold the ranks of a generation: on which workers they run, and with what they start."""

from dataclasses import asdict, dataclass

from distributed import Future

from ...storage.optional import when_present
from ..cluster.dask_cluster import START_S
from ..cluster.futures import seeing
from ..cluster.rank_host import hold_rank
from ..cluster.rank_main import RankSpec
from ..machine.gpus import VISIBLE, backend
from ..machine.malloc import allocator
from ..setup.sampling import Sampling
from .cluster_run import ClusterRun
from .rank_places import gpus_of_ranks, workers_of_ranks
from .rank_work import threads_of_ranks


@dataclass(frozen=True)
class RankWorkers:
    """Workers of a generation."""

    addresses: list[str]
    """The worker that holds each rank."""
    variables: list[dict[str, str]]
    """Environment variables of each rank: the GPU that it sees."""
    sampling: list[str]
    """Workers that hold no rank."""


def assign_ranks(run: ClusterRun, generation: int) -> RankWorkers:
    """Choose a worker, and a GPU where the job has them, for each rank."""
    if run.job.device == "cpu":
        addresses, sampling = workers_of_ranks(run.client, run.ranks, run.frozen)
        return RankWorkers(addresses, [{} for _ in addresses], sampling)
    # Later generations wait, since a lost worker is being started again.
    placed, sampling = gpus_of_ranks(
        run.client, run.ranks, shared=backend(run.job) == "gloo", patience_s=START_S if generation else 0.0
    )
    return RankWorkers([address for address, _ in placed], [{VISIBLE: gpu} for _, gpu in placed], sampling)


def rank_variables(prepared: Sampling) -> dict[str, str]:
    """Environment variables of all ranks, for the allocator.

    Steps over minibatches free memory and take it again; full batches keep theirs, and would only hold more.
    """
    return allocator(prepared.job.cluster.keep_freed_bytes) if prepared.frees_steps else {}


def start_rank(run: ClusterRun, generation: int, rank: int, placed: RankWorkers, kill: str) -> Future:
    """Submit the task that holds a rank.

    Args:
        run: what the generations share.
        generation: number of this one.
        rank: number of the rank.
        placed: workers of the ranks.
        kill: name of the Dask event that makes workers kill their ranks.
    """
    job = run.job
    spec = RankSpec(
        job=job.model_dump(mode="json"),
        data=asdict(run.data),
        parts=when_present(str, run.parts),
        out=str(run.out),
        rank=rank,
        size=run.ranks,
        generation=generation,
        meeting=run.meeting.address(generation),
        threads=threads_of_ranks(run.sampling),
        environment={**rank_variables(run.sampling), **placed.variables[rank]},
        **run.work.of_rank(run.sampling, run.out),
    )
    # Pinned and never tried again by Dask: ranks start together or not at all.
    return run.client.submit(
        seeing,
        (run.out,),
        hold_rank,
        asdict(spec),
        run.topic,
        kill,
        key=(f"train-{run.name}", generation, rank),
        workers=[placed.addresses[rank]],
        allow_other_workers=False,
        retries=0,
        pure=False,
        priority=1 << 40,
    )
