"""How far a newcomer reads: the functions that a piece of work passes through, by a trace.

    python benchmarks/ways.py                      # of this checkout
    python benchmarks/ways.py --checkout ../before --list

``task``: the functions that a Dask worker's sampling task enters for its first bulk, from its call to its return.
``lr``: the functions that are handed the job on the way of the learning rate, from `run` to torch's optimiser, of all
that are entered: to the one that is made to check the options, and to the one that trains. What imports call,
comprehensions and lambdas are left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

DATASET = "sbm:nodes=300,classes=3,degree=8,features=5,train=0.3"
JOB: dict[str, Any] = {
    "epochs": 1, "lr": 0.0123, "threads": 1, "batch_size": 16, "fanout": [4, 3], "hidden": 8, "verbose": False,
}  # fmt: skip
NO_SAMPLING = ("stages/models", "stages/losses", "pipeline/custom")
"""Of no concern to a task that samples."""
FILE = "MILLRACE_WAYS"
"""Environment variable of workers: where the functions of the task are written."""


def way_between(
    root: str, begins: Callable[[FrameType], bool], ends: Callable[[FrameType, str], bool], write: Callable[..., None]
) -> Callable[[FrameType, str, Any], None]:
    """A profiling function that notes the product's functions from one call to an event, and writes them once.

    Args:
        root: folder of the product.
        begins: true for the frame with which the way begins.
        ends: true for a frame and an event with which it ends.
        write: called with the functions, each [module, name], and those that were handed a job.
    """
    entered: dict[tuple[str, str], None] = {}
    handed: dict[tuple[str, str], None] = {}
    state = {"on": False, "done": False, "imports": 0}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if state["done"]:
            return
        if event == "call" and not state["on"]:
            state["on"] = begins(frame)
        if not state["on"]:
            return
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            state["imports"] += 1 if event == "call" else -1
        if event == "call" and not state["imports"] and code.co_filename.startswith(root) and code.co_name[0] != "<":
            function = code.co_filename[len(root) :], code.co_qualname
            entered[function] = None
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(type(frame.f_locals.get(name)).__name__ == "Job" for name in given):
                handed[function] = None
        if ends(frame, event):
            state["done"] = True
            write([*entered], [*handed])

    return profile


def trace_task(root: str, out: str) -> None:
    """In a Dask worker, before its first task: write the way of the first sampling task."""
    from millrace.pipeline.cluster import sample_task

    sample = sample_task.sample_bulk

    def write(entered: list[Any], handed: list[Any]) -> None:
        Path(out).write_text(json.dumps([entered, handed]))

    def is_task(frame: FrameType) -> bool:
        return frame.f_code is sample.__code__

    profile = way_between(root, is_task, lambda frame, event: event == "return" and is_task(frame), write)

    def traced(*args: Any) -> Any:
        sys.setprofile(profile)
        try:
            return sample(*args)
        finally:
            sys.setprofile(None)

    sample_task.sample_bulk = traced


def way_of_task(root: str, folder: Path) -> list[Any]:
    """Run a job whose minibatches a worker samples; the functions of its first task."""
    from distributed import Client, LocalCluster

    import millrace as mr

    mr.write_dataset(folder / "store", mr.open_dataset(DATASET), features_format="npy")
    found = folder / "task.json"
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        with Client(address) as client:
            client.run(trace_task, root, str(found))
        mr.run(
            folder / "store",
            out=folder / "task",
            scheduler=address,
            executor="dask",
            queue={"kind": "zarr", "bulk_size": 2},
            **JOB,
        )
    return json.loads(found.read_text())


def way_of_lr(root: str, out: Path, until: str) -> list[Any]:
    """Run a job in this process; the functions entered before torch's optimiser is made in a folder of the product."""
    import millrace as mr

    found: list[Any] = []

    def is_optimizer(frame: FrameType, event: str) -> bool:
        code = frame.f_code
        if event != "call" or code.co_name != "__init__" or "/torch/optim/" not in code.co_filename:
            return False
        above = frame.f_back
        while above is not None and not above.f_code.co_filename.startswith(f"{root}{until}/"):
            above = above.f_back
        return above is not None

    sys.setprofile(way_between(root, lambda frame: True, is_optimizer, lambda *ways: found.extend(ways)))
    try:
        mr.run(DATASET, out=out, **JOB)
    finally:
        sys.setprofile(None)
    return found


def modules(functions: list[Any]) -> int:
    """Number of their modules."""
    return len({module for module, _ in functions})


def main() -> None:
    """Trace, and print."""
    parser = argparse.ArgumentParser(description="The functions that a piece of work passes through.")
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--list", action="store_true", help="print the functions")
    args = parser.parse_args()
    if FILE not in os.environ:
        with tempfile.TemporaryDirectory(prefix="millrace-ways-") as folder:
            # The package has its name from the link, whatever the folder of the checkout is called.
            Path(folder, "millrace").symlink_to(args.checkout.resolve(), target_is_directory=True)
            variables = {"PYTHONPATH": folder, FILE: folder}
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=os.environ | variables).returncode)
    folder = Path(os.environ[FILE])
    root = f"{folder / 'millrace'}/"
    task, _ = way_of_task(root, folder)
    ways = {"task": task}
    wrong = [f for f in task if f[0].startswith(NO_SAMPLING)]
    print(f"task: {len(task)} functions in {modules(task)} modules, {len(wrong)} of models, losses or own code")
    for until in ("pipeline/setup", "pipeline/training"):
        entered, handed = way_of_lr(root, folder / Path(until).name, until)
        ways[f"lr, {until}"] = handed
        print(
            f"lr, to the optimiser of {until}: {len(handed)} functions in {modules(handed)} modules get the job, "
            f"of {len(entered)} in {modules(entered)}"
        )
    for title, way in ways.items() if args.list else ():
        print("\n".join([f"{title}:", *(f"  {module} {name}" for module, name in way)]))


if __name__ == "__main__":
    main()
