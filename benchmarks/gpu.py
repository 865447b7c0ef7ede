"""Millrace on one GPU, compared with PyG on the same GPU and with the limits of its memory and matrix units. Under ten
minutes, one command:

    python benchmarks/gpu.py --json gpu.json
    python benchmarks/gpu.py --all --against gpu.json

A GPU that is lent for a quarter of an hour goes first into what would be wrong, then into what is too slow:

    python benchmarks/gpu.py --only bits,runs,products,training,sampling --minutes 13 --json gpu.json

`--all` tells all that a machine with GPUs can: also several ranks, where there are several GPUs (`--ranks` of them),
and RAPIDS, where it is installed; it may take half an hour. `--against` sets each line beside that of an earlier run.

The task is that of `epoch.py`: an R-MAT graph of ogbn-products' size, 100 features, 47 classes, an epoch of 192
minibatches of 1024 seeds, fanout 15, 10, 5, three layers of width 256 (GAT: 4 heads of 64), Adam, no dropout. Parts run
one after the other, print as they go, and a part that fails is reported and leaves the others alone:

    machine    rates measured here, which the floors of all others are made of
    bits       samples beside those of the compiled kernels of the CPU
    sampling   edges a second of each sampler, in bulks of 16, 64 and 192 minibatches, and the time of each kernel
    gather     features of a bulk's nodes, from the device's memory and from pinned memory of the host
    layers     aggregation and attention of a block, forward and backward, beside PyG's
    products   products of layers in float32, beside cuBLAS, and their errors
    training   steps and whole epochs, in float32 and with products in bfloat16, beside PyG on the same minibatches
    full-batch epochs of sar and of retexo's layers, beside PyG on the whole graph, and their losses beside the CPU's
    runs       whole runs of every system, by one rank and by two that share the GPU, end with the CPU's parameters
    ranks      epochs of every system by several ranks, over NCCL, beside one rank; losses beside ranks on the CPU
    rapids     every check of rapids.py

Times of kernels are medians over events, each on a cache that was flushed; those of epochs are the host's clock, with
all its waits. In the table, "floor" is the best that the machine allows, "share" how much of it was reached, "ratio"
how many times faster than the peer. Parts other than training, full-batch and runs need numpy, torch, Triton and PyG
alone, "bits" numba too.

Without a GPU, `--device cpu` runs every part in Triton's interpreter, to see that they run; choose a tiny graph, such
as `--scale 600,4000 --batch 16 --minibatches 4`. Its times mean nothing.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gpu_lab import Lab

PARTS = ("machine", "bits", "sampling", "gather", "layers", "products", "training", "full-batch", "runs")
ALL = (*PARTS, "ranks", "rapids")
LIMIT_MINUTES, LIMIT_ALL_MINUTES = 9.0, 30.0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Millrace on one GPU, beside PyG and the machine's floor.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: Triton's interpreter")
    parser.add_argument("--only", type=lambda s: s.split(","), help=f"in this order: of {', '.join(ALL)}")
    parser.add_argument("--all", action="store_true", help="ranks on several GPUs and RAPIDS too, where they are")
    parser.add_argument("--ranks", type=int, help="number of ranks of the part ranks; default: of GPUs")
    parser.add_argument(
        "--scale",
        type=lambda s: tuple(map(int, s.split(","))),
        help="nodes,pairs of the graph; default: ogbn-products'",
    )
    parser.add_argument("--batch", type=int, default=1024, help="seeds of a minibatch")
    parser.add_argument("--minibatches", type=int, default=192, help="of an epoch")
    parser.add_argument("--minutes", type=float, help="nothing begins after so many; default: 9, or 30 with --all")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path, help="what --json wrote in an earlier run")
    args = parser.parse_args()
    if unknown := set(args.only or ()) - set(ALL):
        parser.error(f"--only has {', '.join(sorted(unknown))}; known are {', '.join(ALL)}")
    if args.scale and (len(args.scale) != 2 or min(args.scale) < 2):
        parser.error("--scale has two numbers, at least 2 each: nodes,pairs")
    if min(args.batch, args.minibatches) < 2:
        parser.error("--batch and --minibatches must be at least 2")
    if args.scale and args.batch * args.minibatches > args.scale[0]:
        parser.error(
            f"an epoch has {args.batch * args.minibatches} seeds and the graph "
            f"{args.scale[0]} nodes; take fewer minibatches"
        )
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu runs all parts in Triton's interpreter")
    if args.against and not args.against.is_file():
        parser.error(f"--against: there is no file {args.against}")
    gpus = torch.cuda.device_count() if args.device == "cuda" else 1
    if args.ranks is not None and (args.ranks < 2 or (args.device == "cuda" and args.ranks > gpus)):
        parser.error(f"--ranks must be at least 2, and at most the number of GPUs here, {gpus}")
    asked = [*PARTS, *(["ranks"] if args.ranks or (args.all and gpus > 1) else []), *(["rapids"] if args.all else [])]
    args.only = args.only or asked
    args.ranks = args.ranks or max(gpus, 2)
    args.minutes = args.minutes if args.minutes is not None else LIMIT_ALL_MINUTES if args.all else LIMIT_MINUTES
    return args


def show(lab: "Lab", before: dict[str, float] | None = None) -> None:
    """The table; with `before`, the measurements of an earlier run by name, also how many times better each is now."""
    head = ("name", "measured", "unit", "floor", "share", "peer", "ratio", "beside")
    head += () if before is None else ("before", "better")
    lines = [head, ("---",) * len(head)]
    for r in lab.rows:
        numbers = [("" if x is None else f"{x:.4g}") for x in (r.measured, r.floor, r.peer)]
        share, ratio = ("" if x is None else form.format(x) for x, form in ((r.share, "{:.0%}"), (r.ratio, "{:.2f}")))
        line = (r.name, numbers[0], r.unit, numbers[1], share, numbers[2], ratio, r.against)
        earlier = None if before is None else replace(r, peer=before.get(r.name))
        better = "" if earlier is None or earlier.ratio is None else f"{earlier.ratio:.2f}"
        lines.append(line if earlier is None else (*line, f"{earlier.peer:.4g}" if better else "", better))
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
    print()
    for line in lines:
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(line, wide)) + " |")
    for name, why in lab.failures.items():
        print(f"FAILED {name}: {why}")


def main() -> int:
    """Measure and print. Returns 1 if something failed."""
    args = arguments()
    if args.device == "cpu":
        # Read when Triton is first imported.
        os.environ["TRITON_INTERPRET"] = "1"
    from gpu_full_batch import full_batches
    from gpu_lab import Lab
    from gpu_layers import gather, layers, machine
    from gpu_products import products as of_layers
    from gpu_ranks import ranks, rapids
    from gpu_runs import runs
    from gpu_sampling import same_bits, sample_all
    from gpu_training import train_all
    from graphs import RECIPES

    products = RECIPES["products"]
    nodes, pairs = args.scale or (products.num_nodes, products.num_pairs)
    begun = time.monotonic()
    device = torch.device("cuda", torch.cuda.current_device()) if args.device == "cuda" else torch.device("cpu")
    lab = Lab(device, nodes, pairs, args.batch, args.minibatches, begun + 60 * args.minutes, args.ranks)
    functions = (
        machine,
        same_bits,
        sample_all,
        gather,
        layers,
        of_layers,
        train_all,
        full_batches,
        runs,
        ranks,
        rapids,
    )
    parts: dict[str, Callable[[Lab], None]] = dict(zip(ALL, functions, strict=True))
    for name in args.only:
        lab.say(f"{name} ({time.monotonic() - begun:.0f} s)")
        with lab.attempt(name):
            lab.check_time()
            parts[name](lab)
        if args.json:
            said = {k: v if not isinstance(v, Path) else str(v) for k, v in vars(args).items()} | {
                "seconds": time.monotonic() - begun
            }
            rows = [asdict(r) | {"share": r.share, "ratio": r.ratio} for r in lab.rows]
            report = {"arguments": said, "rows": rows, "failures": lab.failures, "details": lab.details}
            args.json.write_text(json.dumps(report, indent=1) + "\n")
    earlier = {r["name"]: r["measured"] for r in json.loads(args.against.read_text())["rows"]} if args.against else None
    show(lab, earlier)
    return 1 if lab.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
