"""Notes before a run: what the data have and it does not read or weigh, and epochs of one step."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from ..stages.models.small_graph import reads_weights
from ..stages.sample.base import reads_times
from ..storage.plural import counted
from .config.job import Job
from .datasets.cleaning.splits import NO_SPLIT
from .setup.configure import unread_keys
from .setup.model import typed_input
from .setup.open_queue import PACKED
from .setup.prepare import Prepared
from .setup.result import ONE_STEP

FEWER_SEEDS = 8
"""Minibatches that an epoch would have, about, with the batch size that is advised."""


def idle_sections(jobs: Sequence[Job]) -> Iterator[str]:
    """Sentences on keys of a cluster and of GPUs that none of these runs reads; the same job on others reads them."""
    alone = all(j.executor == "inline" and (j.cluster.starts_here or j.read.edges_on != "gpu") for j in jobs)
    unread = {"cluster": 'one process does all the work (executor = "dask" starts others)'} if alone else {}
    unread |= {"gpu": 'device is "cpu"'} if all(j.device == "cpu" for j in jobs) else {}
    said = chain.from_iterable(unread_keys(j, unread) for j in jobs)
    yield from (f"{text}: it is not read." for text in dict.fromkeys(said))


def idle_keys(prepared: Prepared) -> Iterator[str]:
    """`idle_sections` of a run; and keys that rows in memory, or a stored split, do without."""
    job, data, options = prepared.job, prepared.dataset, prepared.system.options
    yield from idle_sections([job])
    in_memory = job.features == job.graph == "memory" and PACKED not in prepared.fingerprint
    if in_memory and options.get("topology") == "replicated" and options["prefetch_bytes"] != "auto":
        yield "bulk.prefetch_bytes is set, but all rows are in memory: it is not read."
    if options.get("hot_by") == "degree" and not options.get("cache_fraction"):
        yield "bulk.hot_by is set, but bulk.cache_fraction is 0: it is not read."
    is_drawn = data.of_pairs or str(job.split).strip().startswith(("random:", "fraction:"))
    if job.seeds.split is not None and not is_drawn and not any(NO_SPLIT in note for note in data.notes):
        yield "seeds.split is set, but the split is not drawn: it is not read."


def idle_patience(prepared: Prepared) -> Iterator[str]:
    """A sentence if patience never runs out before the last epoch: too few validations search for one best epoch."""
    epochs, patience, every = prepared.job.epochs, prepared.job.train.patience, prepared.job.train.evaluate_every
    if patience is not None:
        phases = prepared.system.schedule.phases(epochs, prepared.model.build())
        ends, firsts = {p.last_epoch for p in phases}, {0, *(p.first_epoch for p in phases if p.fresh_optimizer)}
        most = max(sum(e % every == 0 or e in ends for e in range(first + 1, first + epochs)) for first in firsts)
        if patience >= most:
            yield f"train.patience={patience} cannot run out in {counted(most, 'validation')} before the last epoch."


def one_step(prepared: Prepared) -> Iterator[str]:
    """A sentence with a smaller batch size, if one step of a sampled run takes all minibatches of an epoch."""
    job, seeds = prepared.job, prepared.outline.splits["train"]
    size, per_step = job.train.batch_size, job.train.per_step(job.ranks)
    if prepared.has_minibatches and 1 < seeds <= size * per_step:
        idle = "; some ranks have no work" if -(-seeds // size) < job.ranks else ""
        smaller = 1 << max(0, (seeds // (FEWER_SEEDS * per_step)).bit_length() - 1)
        held = f"{counted(per_step, 'minibatch', 'minibatches')} of {size:,} seeds"
        yield f"{ONE_STEP}: {held} would hold all {seeds:,}{idle}. More steps: e.g. --batch-size {smaller}."


def not_read(prepared: Prepared) -> Iterator[str]:
    """A sentence for each kind of values, times among them, that neither the model nor the sampler of a run reads."""
    graph, outline, name = prepared.dataset.graph, prepared.outline, prepared.model.name
    width, sampler = outline.edge_width, prepared.system.sample.sampler
    if graph.has_edge_times and not reads_times(sampler):
        yield "the times of edges are not read, so nodes see later edges too; sampler.name=temporal hides these."
    elif graph.has_node_times and not reads_times(sampler):
        yield "the times of nodes are not read when neighbours are drawn, so nodes see later ones too."
    by_weight = graph.is_weighted and getattr(sampler, "weighted", False)
    if by_weight and -1 in getattr(sampler, "fanout", ()):
        zeros = int(np.count_nonzero(graph.edge_weight == 0))
        them = f", {counted(zeros, 'edge')} of weight 0 too" if zeros else ""
        yield f"fanout -1 takes rows whole, and a weighted sampler weighs their edges alike{them}; evaluation does not."
    weighs = graph.is_weighted and not by_weight
    if not (weighs or (width and not prepared.model.reads_edges)):
        return
    given = outline.num_features, width, typed_input(prepared.job, outline)
    # Of a model that cannot be tried nothing is said.
    reads = reads_weights(prepared.model.build(), given)
    if width and not prepared.model.reads_edges:
        as_weight = "; given as edge_weight it would be the weight of each edge" if width == 1 and reads else ""
        columns = counted(width, "column")
        yield f"the model {name} reads no features of edges: edge_attr ({columns}) is not read{as_weight}."
    if weighs and not reads:
        yield f"the model {name} reads no weights of edges: edge_weight is not read."
