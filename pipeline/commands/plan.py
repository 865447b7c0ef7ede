"""`millrace plan`: predict memory, bytes and time of each system, and recommend one."""

import math

from ...storage.errors import InputError
from ...storage.optional import present_items
from .shared.flags import MODEL, AllowCodeFlag, Flag, Flags, JobFile, JsonFlag, Options, SetFlag, only, with_flags
from .shared.job_table import job_table
from .shared.output import show

PLAN = {
    "nodes": Flag("In place of a dataset: its nodes.", int),
    "edges": Flag("In place of a dataset: its edges, in both directions.", int),
    "num_features": Flag("With --nodes: the width of a feature row.", int, 100),
    "classes": Flag("With --nodes: classes.", int, 16),
    "train_share": Flag("With --nodes: the share of them to train on.", float, 0.1),
    "hosts": Flag("Machines like this one that share the ranks.", int, 1),
    "memory": Flag("GiB for each rank; by default its share of this machine's.", float),
    "device_memory": Flag("GiB for each rank on its GPU; by default what is free on this machine's.", float),
    "link": Flag("Between ranks: data centre | wan | edge | proximity."),
    "bandwidth": Flag("Between ranks, Gb/s; with --latency in place of --link.", float),
    "latency": Flag("Between ranks, milliseconds one way.", float),
}
OF_JOB = only("dataset hidden layers fanout batch_size epochs dropout ranks device seed dtype split")


@with_flags({"model": MODEL, **OF_JOB}, PLAN)
def plan(
    job: JobFile = None,
    *,
    options: Options,
    flags: Flags,
    overrides: SetFlag = None,
    allow_code: AllowCodeFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict each system's memory, bytes and time."""
    from ..planning.inputs import Cluster, Numbers
    from ..planning.network import Link, link_named
    from ..planning.planner import plan as make_plan
    from ..planning.table import as_text
    from ..telemetry.console import Terminal

    table = job_table(job, flags, overrides)
    given = present_items(vars(options) | {"dataset": flags["dataset"]}).keys()
    if ("nodes" in given) != ("edges" in given) or {"nodes", "dataset"} <= given:
        raise InputError("--nodes and --edges go together, in place of --dataset; give both, or --dataset alone")
    if ("bandwidth" in given) != ("latency" in given) or {"bandwidth", "link"} <= given:
        raise InputError("--bandwidth and --latency go together, in place of --link; give both, or --link alone")
    numbers, over = None, None
    if "nodes" in given:
        sizes = options.nodes, options.edges, options.num_features
        numbers = Numbers(*sizes, options.classes, options.train_share)
    if "link" in given:
        over = link_named(options.link)
    elif "bandwidth" in given:
        over = Link(options.bandwidth * 1e9 / 8, options.latency / 1e3)
    for gib in (options.memory, options.device_memory):
        if gib is not None and not math.isfinite(gib):
            raise InputError(f"the memory is {gib:g} GiB; expected a number, as of 1.5 GiB")
    room, device_room = (None if gib is None else round(gib * 2**30) for gib in (options.memory, options.device_memory))
    cluster = Cluster(options.hosts, room, over, device_room)
    with Terminal() as terminal:
        made = make_plan(numbers=numbers, cluster=cluster, emit=terminal, config=table)
    show(as_text(made), made.to_record(), as_json)
    if made.recommended is None:
        raise InputError(made.why)
