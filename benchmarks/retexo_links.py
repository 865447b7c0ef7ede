"""Predicted time of runs over slow links, and measured time over a real one: the part of ``benchmarks/retexo.py`` about
time."""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.benchmarks.namespaces import run_in
from millrace.pipeline.planning.network import LINKS, Link

CHANNELS = ("network", "evaluation")
SYSTEMS = {"RETEXO v3": ("retexo",), "standard (sar halo)": ("sar", "--set", "sar.mode=halo")}


def network_seconds(result: Mapping[str, Any], link: Link, channel: str = "network") -> dict[str, float]:
    """Seconds that the messages of a finished run would take over a link, by kind.

    The rank that sends most of a kind sets its pace. Kinds do not overlap: systems that exchange and train in turns
    come close to this, those that do both at once may need less. TCP's slow start comes on top: little for few large
    messages, about as much as the round trips for large ones that are far apart. If all ranks send to all at once, 1.4
    to 2.2 times this was measured.

    Args:
        result: contents of ``result.json``.
        link: the same for all ranks.
        channel: ``network`` for training, ``evaluation`` for evaluation.
    """
    per_rank, waits = result["bytes"]["per_rank"], result["waits"][channel]
    return {kind: link.seconds(max(r[channel][kind] for r in per_rank), count) for kind, count in waits.items()}


def extrapolated(a: Mapping[str, Any], b: Mapping[str, Any], epochs: int) -> dict[str, Any]:
    """The record of a longer run, from those of two shorter ones: bytes, waits and total seconds on a line through
    theirs."""
    steps, ahead = b["epochs"] - a["epochs"], epochs - b["epochs"]

    def on_line(first: Any, second: Any) -> Any:
        if isinstance(second, Mapping):
            return {k: on_line(first[k], v) for k, v in second.items()}
        if isinstance(second, list):
            return [on_line(x, y) for x, y in zip(first, second)]
        rise = (second - first) * ahead
        return second + (rise // steps if isinstance(rise, int) and rise % steps == 0 else rise / steps)

    seconds = {"total": on_line(a["seconds"]["total"], b["seconds"]["total"])}
    return {
        **b,
        "epochs": epochs,
        "bytes": on_line(a["bytes"], b["bytes"]),
        "waits": on_line(a["waits"], b["waits"]),
        "seconds": seconds,
    }


def over_links(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Seconds that the messages of training take over each of `LINKS`, and in them those of rows alone."""
    print("\nLINKS: seconds of network over typical links, predicted: all messages of training (and rows alone)")
    print(f"{'':<34}" + "".join(f"{name:>24}" for name in LINKS))
    told = []
    for run in runs:
        by_link = {name: network_seconds(run["record"], link) for name, link in LINKS.items()}
        cells = [f"{sum(s.values()):,.1f} ({s['features'] + s['activations']:,.1f})" for s in by_link.values()]
        print(f"{run['name']:<34}" + "".join(f"{c:>24}" for c in cells))
        told.append({"name": run["name"], "seconds": by_link})
    return told


def run_over(
    addresses: Sequence[str], spaces: Sequence[str] | None, system: Sequence[str], args: argparse.Namespace
) -> tuple[dict[str, Any], list[int]]:
    """One run: its record, with the seconds of training and evaluation as ``total``, and what each namespace sent."""
    words = (
        *(
            "--dataset",
            args.link_dataset,
            "--system",
            *system,
            "--epochs",
            str(args.link_epochs),
            "--hidden",
            "64",
            "--layers",
            "2",
        ),
    )
    record, wire = run_in(
        addresses, spaces, words, {"threads": 1, "partition.method": "hash", "train.evaluate_every": 0}
    )
    record["seconds"]["total"] = record["seconds"]["trained"]
    return record, wire


def over_namespaces(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Predicted and measured seconds over the link between namespaces, beyond what the same run takes on one
    machine."""
    link = Link(args.bandwidth_mbit * 1e6 / 8, args.latency_ms / 1e3)
    here = ["127.0.0.1"] * len(args.namespaces)
    print(
        f"\nLINKS, measured: {args.link_dataset}, 2 layers of 64, {len(here)} ranks, "
        f"{args.link_epochs} epochs (RETEXO: of each layer);"
    )
    print(
        f"{args.bandwidth_mbit:g} Mb/s, {args.latency_ms:g} ms; {args.repeats} runs each, of which the soonest counts;"
    )
    print(
        "seconds of training and evaluation; of network: predicted, and measured beyond the "
        "run on loopback; MB sent by the rank that sends"
    )
    print("most: by the ledger, and on the wire with headers and Dask's own")
    print(
        f"{'':<22}{'loopback s':>11}{'over link s':>12}{'predicted s':>12}"
        f"{'network: pred.':>16}{'meas.':>8}{'ledger MB':>11}{'wire MB':>9}"
    )
    told = []
    for name, system in SYSTEMS.items():
        base, there, wire = [], [], []
        # In turns, so that both see what else goes on here.
        for _ in range(args.repeats):
            base.append(run_over(here, None, system, args)[0])
            record, sent = run_over(args.addresses, args.namespaces, system, args)
            there.append(record)
            wire.append(max(sent))
        loop, over = (min(r["seconds"]["total"] for r in records) for records in (base, there))
        reference = {**there[0], "seconds": {"total": loop}}
        messages = (sum(network_seconds(reference, link, channel).values()) for channel in CHANNELS)
        predicted = reference["seconds"]["total"] + sum(messages)
        ledger = max(sum(rank[c][kind] for c in CHANNELS for kind in rank[c]) for rank in there[0]["bytes"]["per_rank"])
        print(
            f"{name:<22}{loop:>11.1f}{over:>12.1f}{predicted:>12.1f}{predicted - loop:>16.2f}{over - loop:>8.2f}"
            f"{ledger / 1e6:>11.2f}{statistics.median(wire) / 1e6:>9.2f}",
            flush=True,
        )
        by_kind = {c: network_seconds(there[0], link, c) for c in CHANNELS}
        told.append(
            {
                "name": name,
                "bandwidth_mbit": args.bandwidth_mbit,
                "latency_ms": args.latency_ms,
                "loopback_s": [r["seconds"]["total"] for r in base],
                "link_s": [r["seconds"]["total"] for r in there],
                "predicted_s": predicted,
                "predicted_network_s": by_kind,
                "measured_network_s": over - loop,
                "ledger_bytes": ledger,
                "wire_bytes": wire,
                "waits": there[0]["waits"],
                "bytes": there[0]["bytes"],
            }
        )
    return told
