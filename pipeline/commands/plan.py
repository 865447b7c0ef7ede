"""`millrace plan`: predict memory, bytes and time of each system, and recommend one."""

from typing import Annotated

import typer

from ...storage.errors import InputError
from ...storage.optional import present_items
from .shared.flags import AllowCodeFlag, Flags, JobFile, JsonFlag, ModelFlag, SetFlag, with_flags
from .shared.job_table import job_table
from .shared.output import show


@with_flags("dataset hidden layers fanout batch_size epochs dropout ranks device seed dtype split")
def plan(
    job: JobFile = None,
    nodes: Annotated[int | None, typer.Option(help="In place of a dataset: its nodes.")] = None,
    edges: Annotated[int | None, typer.Option(help="In place of a dataset: its edges, in both directions.")] = None,
    num_features: Annotated[int, typer.Option(help="With --nodes: the width of a feature row.")] = 100,
    classes: Annotated[int, typer.Option(help="With --nodes: classes.")] = 16,
    train_share: Annotated[float, typer.Option(help="With --nodes: the share of them to train on.")] = 0.1,
    hosts: Annotated[int, typer.Option(help="Machines like this one that share the ranks.")] = 1,
    memory: Annotated[
        float | None, typer.Option(help="GiB for each rank; by default its share of this machine's.")
    ] = None,
    device_memory: Annotated[
        float | None, typer.Option(help="GiB for each rank on its GPU; by default what is free on this machine's.")
    ] = None,
    link: Annotated[str | None, typer.Option(help="Between ranks: data centre | wan | edge | proximity.")] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="Between ranks, Gb/s; with --latency in place of --link.")
    ] = None,
    latency: Annotated[float | None, typer.Option(help="Between ranks, milliseconds one way.")] = None,
    model: ModelFlag = None,
    *,
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

    table = job_table(job, {**flags, "model": model}, overrides)
    asked = {"nodes": nodes, "edges": edges, "dataset": flags["dataset"]}
    given = present_items({**asked, "bandwidth": bandwidth, "latency": latency, "link": link}).keys()
    if ("nodes" in given) != ("edges" in given) or {"nodes", "dataset"} <= given:
        raise InputError("--nodes and --edges go together, in place of --dataset; give both, or --dataset alone")
    if ("bandwidth" in given) != ("latency" in given) or {"bandwidth", "link"} <= given:
        raise InputError("--bandwidth and --latency go together, in place of --link; give both, or --link alone")
    numbers, over = None, None
    if nodes is not None and edges is not None:
        numbers = Numbers(nodes, edges, num_features, classes, train_share)
    if link is not None:
        over = link_named(link)
    elif bandwidth is not None and latency is not None:
        over = Link(bandwidth * 1e9 / 8, latency / 1e3)
    room, device_room = (None if gib is None else round(gib * 2**30) for gib in (memory, device_memory))
    cluster = Cluster(hosts, room, over, device_room)
    with Terminal() as terminal:
        made = make_plan(numbers=numbers, cluster=cluster, emit=terminal, config=table)
    show(as_text(made), made.to_record(), as_json)
    if made.recommended is None:
        raise InputError(made.why)
