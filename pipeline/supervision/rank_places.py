"""Workers that hold ranks, and those that are left for sampling."""

import time
from collections.abc import Set
from typing import Any
from urllib.parse import urlsplit

from distributed import Client

from ...storage.errors import InputError
from ..cluster.dask_cluster import START_S, worker_records
from ..cluster.scheduler_watch import lost_scheduler
from ..machine.gpus import assign_gpus, visible
from ..machine.time_limit import in_time


def _spread(client: Client) -> list[str]:
    """All workers, hosts in turn."""
    by_host: dict[str, list[str]] = {}
    for address in sorted(worker_records(client)):
        by_host.setdefault(urlsplit(address).hostname or "", []).append(address)
    return [
        lane[i] for i in range(max(map(len, by_host.values()), default=0)) for lane in by_host.values() if i < len(lane)
    ]


def workers_of_ranks(client: Client, ranks: int, frozen: Set[str] = frozenset()) -> tuple[list[str], list[str]]:
    """Addresses of the workers that hold the ranks, by rank, spread over hosts; and of the other workers, for sampling.

    With fewer workers than ranks, some hold several; with none left over, Dask chooses where to sample. `frozen`
    workers are used only if there are no others.
    """
    known = _spread(client)
    spread = [address for address in known if address not in frozen] or known
    return [spread[r % len(spread)] for r in range(ranks)], spread[ranks:]


def gpus_of_ranks(
    client: Client, ranks: int, shared: bool, patience_s: float = 0.0
) -> tuple[list[tuple[str, str]], list[str]]:
    """Worker and GPU of each rank (`gpus.assign_gpus`), and the workers that are left for sampling.

    Args:
        client: of the cluster.
        ranks: P.
        shared: true if ranks may share a GPU.
        patience_s: longest wait for workers that may come back.

    Raises:
        InputError: no worker sees a GPU, or there are too few for ranks that may not share them.
    """
    until = time.monotonic() + patience_s
    while True:
        workers = _spread(client)
        try:
            seen: Any = in_time(START_S, client.run, visible, workers=workers, on_error="ignore")
        except TimeoutError as e:
            raise lost_scheduler(str(e), client) from e
        try:
            placed = assign_gpus(ranks, {address: seen[address] for address in workers if address in seen}, shared)
        except InputError:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)
        else:
            used = {address for address, _ in placed}
            return placed, [address for address in workers if address not in used]
