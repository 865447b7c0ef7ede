"""Cost of sampling over block rows, for each replication and algorithm: what ``bulk.algorithm = "auto"`` goes by."""

import math
from dataclasses import dataclass

from ...stages.placement.grid_costs import BANDWIDTH, LATENCY_S, Degrees, expected, sampler_kind
from ...stages.placement.row_blocks import Grid
from ...stages.sample import SAMPLERS
from ...stages.sample.base import reads_times
from ..config.load import Job, build
from .candidate import Setting


@dataclass(frozen=True)
class GridForecast:
    """Sampling of one bulk on block rows of ``bulk.topology = "partitioned"``."""

    replication: int
    """c, ranks that hold each block."""
    algorithm: str
    """``owners`` or ``1.5d``."""
    words: float
    """Words of 4 bytes that a rank sends for a bulk."""
    messages: float
    """Messages that it waits for, one after the other."""
    seconds: float
    """Seconds of these messages, over the link of the plan, or over an assumed one."""
    chosen: bool
    """True if ``auto`` takes it, which assumes a link in a data centre."""


def grid_forecasts(at: Setting, job: Job) -> tuple[GridForecast, ...]:
    """Costs for each c that divides the ranks, but that of full replication; none for one rank, for a graph with
    types, for pairs, whose minibatches have seeds of no known number, for samples by time, which no block row has, or
    for a sampler whose traffic has no model."""
    sampler, graph, batch = build("sampler", SAMPLERS, job.sampler), at.dataset.graph, job.train.batch_size
    if sampler_kind(sampler) is None or reads_times(sampler) or not graph.types.is_single or at.numbers.of_pairs:
        return ()
    # An epoch may have fewer minibatches than a bulk.
    bulk = min(job.queue.bulk_size, math.ceil(at.train / batch / job.ranks))
    seen = Degrees.histogram(graph.in_degree)
    degrees = Degrees(seen.nodes * at.growth, seen.edges * at.growth)
    link = (at.link.latency_s, at.link.bandwidth) if at.link else (LATENCY_S, BANDWIDTH)
    found = []
    for c in (c for c in range(1, job.ranks) if job.ranks % c == 0):
        grid = Grid(job.ranks, c)
        costs = expected(sampler, degrees, grid, batch=batch, bulk=bulk, weighted=graph.is_weighted)
        best = min(costs, key=lambda name: costs[name].seconds())
        for name, cost in costs.items():
            found.append(GridForecast(c, name, cost.words, cost.messages, cost.seconds(*link), name == best))
    return tuple(found)
