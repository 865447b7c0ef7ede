"""Memory and time of a run, extrapolated from its trial."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ...stages.feed.queue_feed import most_bulks
from ...stages.fetch.exchange import ahead_bytes
from ...stages.kernels import sampling_backend
from ...stages.kernels.runtime.device_memory import SHARE
from .candidate import Candidate
from .disk import DiskForecast
from .inputs import unpredicted
from .traffic import Moved, least_table, moves, row_bytes_of, rows_asked, table_memory, table_on_device
from .trial import EPOCHS, TrialResult

Parts = dict[str, int]
"""Bytes of memory by use."""


@dataclass(frozen=True)
class Forecast:
    """Predicted costs of a candidate. All bytes are payload."""

    label: str
    system: str
    fits: bool
    memory_bytes: int
    """Resident size of the largest rank; of a job that maps its graph, without the pages of files."""
    memory: Parts
    arithmetic: str
    """The sums of `memory` and `device_memory` in words."""
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes of the whole run over all ranks, by channel and kind."""
    bytes_per_epoch: dict[str, dict[str, int]] = field(default_factory=dict)
    epochs: int = 0
    """Epochs that the run trains."""
    steps_per_epoch: int = 0
    seconds_per_epoch: float | None = None
    """Seconds without evaluation; None without a trial, for a candidate that cannot fit."""
    network_seconds: float = 0.0
    """Seconds of these for messages on the link."""
    evaluate_seconds: float = 0.0
    """Seconds of one evaluation, which are not in `seconds_per_epoch`."""
    estimate: bool = True
    """True if a generated graph stood in for the real one, or fewer ranks for all."""
    device_bytes: int = 0
    """Memory of tensors on the GPU of the largest rank; 0 on CPUs."""
    device_memory: Parts = field(default_factory=dict)
    """The same by use."""
    disk: DiskForecast | None = None
    """Reading of features from disk; None: the run reads none."""
    share_seen: float = 0.0
    """Most of the nodes that a rank of isolated training sees at once; 0 if ranks are not isolated."""


def foresee(s: Candidate, room: int, seen: TrialResult | None = None) -> Forecast:
    """Forecast of the candidate's run from its trial; without one, its least memory.

    Args:
        s: the run, on GPUs `placed`.
        room: bytes of a rank's memory.
        seen: the trial.
    """
    moved = moves(s, seen) if seen else Moved()
    if not seen:
        memory = least_bytes(s)
        device = {name: sum(sizes) for name, sizes in arrays_of(s).items() if getattr(s.job.gpu, name) == "device"}
    else:
        memory, device = (of(s, seen, moved.most_seen) for of in (memory_of, device_memory_of))
    (total, words), (there, said) = as_sum(memory, room, "a rank"), as_sum(device, s.at.device_room, "its GPU")
    fits, words = total <= room and there <= s.at.device_room, f"{words}; {said}" if device else words
    shape = {"epochs": s.epochs, "steps_per_epoch": s.steps, "device_bytes": there, "device_memory": device}
    found = Forecast(s.label, s.system.name, fits, total, memory, words, **shape)
    if not seen:
        return replace(found, arithmetic=f"at least {words}")
    # Only full batches grow with the graph; minibatches of a step that each rank trains on come one after the other.
    work = s.in_turn(s.ranks) / s.in_turn(seen.ranks) if s.is_sampled else share_of_work(s)
    # As more threads than in the trial share each core, or ranks each GPU, each is slower.
    crowd, network = s.at.crowd(s.at.per_host) / s.at.crowd(seen.ranks), moved.seconds(s.at.link) if s.at.link else 0.0
    return replace(
        found,
        bytes=moved.bytes(1, s.epochs),
        bytes_per_epoch=moved.bytes(0, 1),
        seconds_per_epoch=s.fractional_steps * seen.step_s * work * crowd + network,
        network_seconds=network,
        evaluate_seconds=seen.evaluate_s * share_of_evaluation(s) * crowd,
        estimate=s.at.stands_in or seen.ranks < s.ranks,
        share_seen=moved.most_seen / s.at.dataset.num_nodes,
    )


def as_sum(parts: Parts, room: int, whose: str) -> tuple[int, str]:
    """The sum of parts of memory, and the arithmetic in words."""
    terms, total = " + ".join(f"{name} {size / 2**20:,.0f}" for name, size in parts.items()), sum(parts.values())
    return total, f"{terms} = {total / 2**20:,.0f} MiB, of {room / 2**20:,.0f} MiB for {whose}"


def least_share(s: Candidate) -> float:
    """Least share of the graph that a rank holds."""
    chunks = 2 if s.system.sample.is_isolated else s.replication if s.has_blocks else 1
    return 1.0 if not s.is_cut or s.ranks == 1 else chunks / s.ranks


def least_bytes(s: Candidate) -> Parts:
    """Memory of data that a rank needs in any case, known without a trial."""
    share = least_share(s)
    nodes, edges, features = s.at.numbers.nodes, s.at.numbers.edges, s.feature_bytes * share
    # The system can take back the pages of a mapped file.
    graph = 0 if s.job.graph == "mapped" else 8 * (nodes + 1) + (4 if nodes < 2**31 else 8) * edges
    mapped = s.job.features in ("mapped", "zarr") or s.ranks > 1
    if s.exchanges and not s.is_cut:
        features *= s.replication / s.ranks
    elif (s.job.graph, s.job.features) == ("mapped", "mapped") if s.is_cut else mapped:
        features = 0
    elif not s.is_cut:
        # Rows of each node type are as wide as they are.
        rows = s.at.dataset.features
        used = sum(of.num_rows * of.num_features for of in getattr(rows, "parts", (rows,)))
        features -= nodes * s.row_bytes[0] * (1 - used / (rows.num_rows * rows.num_features))
    pairs = {"pairs": s.at.numbers.pair_bytes * s.at.numbers.pairs} if s.at.numbers.pairs else {}
    return {
        "graph": round(graph * share),
        "features": round(features),
        **pairs,
        **table_memory(s, nodes, s.ranks, True),
    }


def memory_of(s: Candidate, seen: TrialResult, most_seen: int) -> Parts:
    """Memory of the largest rank, from that of the trial's largest one.

    Args:
        s: the run.
        seen: its trial.
        most_seen: most nodes seen by a rank of isolated training; else 0.
    """
    worst = int(np.argmax(seen.peak_rss_bytes))
    grows, step = growth_of_data(s, seen, worst, most_seen), 0 if s.at.gpus else seen.memory_bytes[worst]["step"]
    used = seen.peak_rss_bytes[worst] - step
    # The data are what they are, whatever a process takes without them.
    least, learned = sum(least_bytes(s).values()), table_memory(s, s.at.numbers.nodes, s.ranks, worst == 0)
    base = max(0, min(seen.base_bytes, used - round(least / grows)))
    tried = sum(table_memory(s, s.at.dataset.num_nodes, seen.ranks, worst == 0).values())
    data = max(0, round((used - base - tried) * grows))
    if s.exchanges and not s.has_blocks and not (s.at.gpus and s.job.gpu.features == "device"):
        data += round(s.replication * s.feature_bytes * (1 / s.ranks - 1 / seen.ranks))
    parts = {"process": base, "data": data, **learned, "step": round(step * (1 if s.is_sampled else grows))}
    return parts | waiting_bytes(s, seen) if s.is_sampled and not s.is_resident else parts


def growth_of_data(s: Candidate, seen: TrialResult, rank: int, most_seen: int) -> float:
    """Data of the largest rank, in multiples of that of a rank of the trial. See `memory_of`."""
    grows, features = s.at.growth, seen.memory_bytes[rank]["features"]
    if s.cut is not None and s.trial_cut is not None and s.ranks > 1:
        # Isolated ranks see more than their parts, and hold the features of all they see.
        isolated = most_seen and features
        if s.has_blocks:
            return grows * float(s.cut.nodes.max() / s.trial_cut.nodes.max())
        grows *= most_seen * s.row_bytes[0] / features if isolated else s.cut.most_held / s.trial_cut.most_held
    return grows


def placed(s: Candidate) -> Candidate:
    """The candidate, on GPUs with a choice for each array that lies there if it fits, in the run and not in a trial.

    Raises:
        InputError: the features of edges fit there, and those of nodes do not.
    """
    left, places = s.at.device_room, {}
    for name, sizes in arrays_of(s).items():
        where, fit = getattr(s.job.gpu, name), set[bool]()
        for size in filter(None, sizes):
            fit.add(there := where == "device" or (where == "auto" and size <= SHARE * left))
            left -= size * there
        if len(fit) > 1:
            raise unpredicted(f"gpu.{name} is '{where}', and only some of it fits", f"set gpu.{name}")
        places[name] = "pinned" if False in fit else "device"
    return replace(s, job=s.job.model_copy(update={"gpu": s.job.gpu.model_copy(update=places)}))


def arrays_of(s: Candidate) -> Mapping[str, tuple[int, ...]]:
    """Least bytes of neighbour lists, and of learnt rows and those of edges and of nodes, that a rank has for
    minibatches on a GPU: by key in `Gpu`. Full batches have a choice for learnt rows only."""
    if not s.at.gpus:
        return {}
    learned = least_table(s)
    if not s.is_sampled:
        return {"features": (learned,)} if learned else {}
    share, numbers, (row, edge_row) = least_share(s), s.at.numbers, s.row_bytes
    lists = ((4 if numbers.nodes < 2**31 else 8) + 8 * s.reads_times) * numbers.edges * s.is_resident
    held = s.replication / s.ranks if s.exchanges else share
    edges, rows = edge_row * numbers.edges * share, row * numbers.nodes * held
    return {"topology": (round(lists * share),), "features": (learned, round(edges), round(rows))}


def device_memory_of(s: Candidate, seen: TrialResult, most_seen: int) -> Parts:
    """Memory of tensors on the largest rank's GPU; see `memory_of`. Evaluation takes up to half of what is free."""
    if not s.at.gpus:
        return {}
    worst, gpu, growth = int(np.argmax(seen.peak_device_bytes)), s.job.gpu, s.at.growth
    held, grows = seen.memory_bytes[worst], growth_of_data(s, seen, worst, most_seen)
    base, row = min(seen.base_device_bytes, held["step"]), s.row_bytes[0]
    # Learnt rows count as features.
    nodes = held["features"] / (row + row_bytes_of(s))
    rows, later = row * nodes, row * nodes * grows
    if s.exchanges:
        rows, later = (s.replication * s.feature_bytes / of for of in (growth * seen.ranks, s.ranks))
    lists = held["graph"] * (gpu.topology == "device" and (s.is_resident or not s.is_sampled))

    def data(rows: float, cached: float, times: float, minibatches: float) -> float:
        """Lists, labels, tables, and rows."""
        rows = rows if gpu.features == "device" else min(cached, rows)
        return (lists + 8 * nodes) * times + table_bytes(s, nodes * times, minibatches) + rows

    tried = data(rows, gpu.cache_bytes / growth, 1, seen.minibatches / seen.ranks)
    planned = data(later, gpu.cache_bytes, grows, s.minibatches / s.ranks)
    trials = table_on_device(s, s.at.dataset.num_nodes, seen.ranks)
    there = min(1.0, (held["step"] - base) / max(1.0, tried + trials))
    step = held["step"] - base - (tried + trials) * there
    parts = {"process": base, "data": planned * there, "step": step * (1 if s.is_sampled else grows)}
    if trials:
        parts["learned"] = table_on_device(s, s.at.numbers.nodes, s.ranks) * there
    evaluation = seen.peak_device_bytes[worst] - held["step"]
    if evaluation and s.validates:  # while bulks are drawn, unlike that of the trial
        evaluation += table_bytes(s, nodes, seen.minibatches / seen.ranks)
    parts["evaluation"] = max(0.0, min(evaluation * grows, (s.at.device_room - sum(parts.values())) / 2))
    if s.is_resident:
        parts["bulks"] = resident_bulks(s, seen)
    return {use: round(size) for use, size in parts.items()}


def table_bytes(s: Candidate, nodes: float, minibatches: float) -> int:
    """Bytes on a GPU of the tables that bulks are drawn by, from a rank's nodes and the minibatches of its epoch."""
    bulk = min(s.job.queue.bulk_size, math.ceil(minibatches))
    return sampling_backend("cuda").table_bytes(round(nodes), bulk) if s.is_resident and not s.reads_times else 0


def resident_bulks(s: Candidate, seen: TrialResult) -> float:
    """Memory of the most bulks that a rank may have on its GPU, beyond the trial's, whose queue has room for one."""

    def most(minibatches: float, ranks: int, epochs: int, max_bytes: int) -> float:
        of_rank = math.ceil(minibatches / ranks)
        size = min(s.job.queue.bulk_size, of_rank)
        return most_bulks(epochs * math.ceil(of_rank / size), size * seen.minibatch_bytes, max_bytes) * size

    tried = most(seen.minibatches, seen.ranks, EPOCHS, 1)
    return max(0.0, most(s.minibatches, s.ranks, s.epochs, s.job.queue.max_bytes) - tried) * seen.minibatch_bytes


def waiting_bytes(s: Candidate, seen: TrialResult) -> Parts:
    """Memory of minibatches and rows that wait for training, beyond those that waited in the trial.

    Of N minibatches that take s seconds to prepare and t to train on, N (1 - s / t) are ready when the last one is.
    Validation takes time from training, but not from preparation.
    """
    trial_s = train_s = max(1e-9, seen.step_s / s.in_turn(seen.ranks))
    if s.validates:
        train_s += seen.evaluate_s * share_of_evaluation(s) / s.job.train.evaluate_every * s.ranks / s.minibatches
    trial, run = (seen.minibatches, seen.ranks, EPOCHS, trial_s), (s.minibatches, s.ranks, s.epochs, train_s)

    def ready(prepare_s: float, minibatches: float, ranks: int, epochs: int, train_s: float) -> float:
        return minibatches * epochs / ranks * max(0.0, 1 - prepare_s / train_s)

    parts, fetched = {}, [0.0, 0.0]
    if s.exchanges and seen.distinct and not s.at.gpus:  # a GPU fetches as much ahead as in the trial
        # A rank's own rows are copied beside those of others.
        asked = rows_asked(s, seen, *trial[:2])[1], rows_asked(s, seen, *run[:2])[1]
        sizes = [rows / of[0] * seen.distinct[0] for rows, of in zip(asked, (trial, run))]
        most = [ahead_bytes(s.system.options.get("prefetch_bytes", "auto")) / max(1.0, size) for size in sizes]
        fetched = [min(n, ready(max(seen.sample_s, seen.fetch_s), *of)) for n, of in zip(most, (trial, run))]
        tried, waiting = (n * (size + seen.minibatch_bytes) for n, size in zip(fetched, sizes))
        parts["rows"] = round(max(0.0, waiting - tried))
    size = seen.minibatch_bytes if s.job.queue.kind == "memory" else 0.0
    sampled = max(0.0, ready(seen.sample_s, *run) - fetched[1] - s.job.queue.bulk_size)
    return {**parts, "bulks": round(min(s.job.queue.max_bytes, sampled * size))}


def share_of_work(s: Candidate) -> float:
    """Work of a rank in full batches and evaluation, relative to a rank of the trial. Nodes and edges count alike."""
    growth = (s.at.growth + s.at.numbers.edges / max(1, s.at.dataset.graph.num_edges)) / 2
    return growth * (s.cut.work / s.trial_cut.work if s.cut is not None and s.trial_cut is not None else 1.0)


def share_of_evaluation(s: Candidate) -> float:
    """Work of a rank in evaluation, relative to a rank of the trial. Each held-out pair is ranked among all nodes."""
    return share_of_work(s) * (s.at.growth if s.at.numbers.task == "link" and not s.reads_times else 1.0)
