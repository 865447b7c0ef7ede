"""The whole chain as one shell script, which the launchers give to a cluster: from tables to predictions.

    python examples/chain.py --tables tables/ --work work/ --parts 2 --epochs 5 --ranks 2

prints it for a cluster that `millrace` starts here; `| sh` runs it. Its steps, with --tables:

    millrace convert     a store of the tables, in bounded memory (its further arguments: --convert="...")
    millrace partition   the store with its nodes renumbered part by part (--method, --parts); with --blocks its parts,
                         of which each rank holds one
    millrace sample      minibatches that are drawn once, with --sample; with --blocks by ranks that hold the parts;
                         with --pack their feature rows too, which training then reads in order
    millrace run         training, with all other arguments
    millrace evaluate    accuracy on every split
    millrace predict     a class for each node, in OUT/predictions.parquet

`sample` gets the arguments of `run`. Without --tables only `millrace run` is left. What to expect: what these commands
print. What is there is not made again, and a run that was stopped is resumed: to go on after a stop, give the same
command again.
"""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence

DEFAULTS = {
    "convert": "", "work": "work", "parts": 2, "method": "metis-streamed", "sample": False, "pack": False,
    "blocks": False,
}  # fmt: skip
"""Default values of the arguments of the stages before the training."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the chain's arguments to a launcher's; those that it does not know go to `millrace run`."""
    parser.add_argument("--tables", help="folder of Parquet, as `millrace convert` reads it: do the whole chain")
    parser.add_argument("--convert", help="with --tables: further arguments of `millrace convert`, in one")
    parser.add_argument("--work", help="with --tables: folder of the stores, which all machines see (work)")
    parser.add_argument("--parts", type=int, help="with --tables: parts of the renumbered store (2)")
    parser.add_argument("--method", help="with --tables: how it is cut (metis-streamed)")
    parser.add_argument("--job", help="job file of `millrace run`")
    parser.add_argument("--sample", action="store_true", help="with --tables: draw the minibatches first")
    parser.add_argument("--pack", action="store_true", help="with --tables: and pack their features beside")
    parser.add_argument("--blocks", action="store_true", help="with --tables: no rank holds the graph, each has a part")
    parser.add_argument("--out", help="folder of the run (WORK/run with --tables)")
    parser.set_defaults(**DEFAULTS)


def script(here: argparse.Namespace, cluster: Mapping[str, str], run: Sequence[str]) -> str:
    """The script.

    Args:
        here: arguments of `add_arguments`.
        cluster: keys of the section ``cluster``; none: one process, or a cluster that `millrace run` starts.
        run: further arguments of `millrace run`.
    """
    keys, out = _set(cluster), run_folder(here)
    job = [] if here.job is None else [here.job]
    train = ["millrace", "run", *job, *keys, *run, *([] if out is None else ["--out", out])]
    if here.tables is None:
        check(here)
        return f"exec {shlex.join(train)}"
    train += [*data(here), *(["--samples", f"{here.work}/samples"] if here.sample or here.pack else [])]
    address = ["--scheduler", cluster["scheduler"]] if "scheduler" in cluster else []
    predictions = f"{out}/predictions.parquet"
    return "\n".join(
        [
            # An interrupt is for the command that runs: a run writes a checkpoint before it ends.
            "trap : INT",
            *preparation(here, cluster, run),
            f"{shlex.join(train)} $(test ! -e {shlex.quote(f'{out}/job.toml')} || echo --resume)",
            shlex.join(["millrace", "evaluate", str(out), *address, *keys]),
            _unless(predictions, "predict", str(out), "--out", predictions, *address, *keys),
        ]
    )


def check(here: argparse.Namespace) -> None:
    """Refuse arguments of the stages before the training that are given without --tables."""
    unused = [f"--{flag}" for flag, default in DEFAULTS.items() if getattr(here, flag) != default]
    if here.tables is None and unused:
        raise SystemExit(f"{', '.join(unused)}: give --tables, whose chain has these stages, or leave them out")


def data(here: argparse.Namespace) -> list[str]:
    """Arguments of `millrace sample` and `run` that name the data."""
    if not here.blocks:
        return ["--dataset", f"{here.work}/parts"]
    cut = ["bulk.topology=partitioned", f"partition.owners={here.work}/parts"]
    return ["--dataset", f"{here.work}/store", *(word for key in cut for word in ("--set", key))]


def preparation(here: argparse.Namespace, cluster: Mapping[str, str], run: Sequence[str] = ()) -> list[str]:
    """The lines before the training: WORK/parts, and WORK/samples with --sample or --pack. See `script`."""
    store, parts, samples, keys = f"{here.work}/store", f"{here.work}/parts", f"{here.work}/samples", _set(cluster)
    as_files = ["--features", "npy", "--graph", "npy"]
    cut = ["--parts", str(here.parts), "--method", here.method, *(["--set", "executor=dask"] if cluster else [])]
    job, packed = [] if here.job is None else [here.job], ["--features"] * here.pack
    return [
        "set -e",
        _unless(store, "convert", here.tables, "--out", store, *as_files, *keys, *shlex.split(here.convert)),
        _unless(f"{parts}/manifest.json", "partition", store, "--out" if here.blocks else "--into", parts, *cut, *keys),
        *(
            [shlex.join(["millrace", "sample", *job, *run, *data(here), "--out", samples, *keys, *packed])]
            * (here.sample or here.pack)
        ),
    ]


def run_folder(here: argparse.Namespace) -> str | None:
    """The folder of the run; None: `millrace run` chooses one."""
    return here.out or (None if here.tables is None else f"{here.work}/run")


def _set(cluster: Mapping[str, str]) -> list[str]:
    return [word for key, value in cluster.items() for word in ("--set", f"cluster.{key}={value}")]


def _unless(made: str, *words: str) -> str:
    """A line that does a command unless what it makes is there: that appears whole, at the end."""
    return f"test -e {shlex.quote(made)} || {shlex.join(['millrace', *words])}"


def main() -> None:
    """Print the script for this machine."""
    parser = argparse.ArgumentParser(
        description="The whole chain as a shell script; other arguments go to `millrace run`.", allow_abbrev=False
    )
    add_arguments(parser)
    here, run = parser.parse_known_args()
    sys.stdout.write(script(here, {}, run) + "\n")


if __name__ == "__main__":
    main()
