"""Flips a bit in each of many places of what a run leaves, and uses it: the same result, or a refusal by name, never
another result.

```sh
.venv/bin/python benchmarks/flipped_bits.py --places 200
```

Mapped features are not verified while they are read: of them, `millrace check` must find each flip.
"""

import argparse
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import millrace as mr
from millrace.pipeline.precompute import precompute
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.sweep.task import several_runs
from millrace.pipeline.telemetry.events import silent
from millrace.pipeline.verify import verify
from millrace.stages.partition.stage import open_neighbours, open_part, open_shards
from millrace.storage.errors import MillraceError
from millrace.storage.fingerprint import digest_arrays, digest_record
from millrace.storage.partition.book import open_book

DATA = "sbm:nodes=60,classes=3,degree=4,features=4,train=0.5"
OPTIONS: dict[str, Any] = {"fanout": [3, 2], "hidden": 4, "batch_size": 8, "verbose": False, "threads": 1}
PARTS = 2


class Target:
    """Something on disk, and a use of it that gives a text."""

    def __init__(self, folder: Path, files: str, use: Callable[[Path], str]) -> None:
        """
        Args:
            folder: copied for each use that writes.
            files: pattern of the files to damage.
            use: of a folder.
        """
        self.folder, self.use = folder, use
        self.files = sorted(f for f in folder.rglob(files) if f.is_file() and f.stat().st_size)
        self.expected = use(folder)

    @contextmanager
    def damaged(self, random: np.random.Generator) -> Iterator[tuple[Path, str]]:
        """A copy with one bit flipped, and where that is."""
        sizes = np.array([f.stat().st_size for f in self.files])
        at, bit = int(random.integers(sizes.sum())), int(random.integers(8))
        number = int(np.searchsorted(np.cumsum(sizes), at, side="right"))
        at -= int(sizes[:number].sum())
        with TemporaryDirectory() as aside:
            copy = Path(aside) / "copy"
            shutil.copytree(self.folder, copy)
            file = copy / self.files[number].relative_to(self.folder)
            content = bytearray(file.read_bytes())
            content[at] ^= 1 << bit
            file.write_bytes(content)
            yield copy, f"{file.relative_to(copy)}, byte {at}, bit {bit}"

    def outcome(self, random: np.random.Generator) -> tuple[str, str]:
        """(same | refused | another | a traceback's class, where) of one flip."""
        with self.damaged(random) as (copy, where), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return ("same" if self.use(copy) == self.expected else "another"), where
            except MillraceError:
                return "refused", where
            except Exception as e:
                return f"{type(e).__name__}: {e}", where


def targets(folder: Path, wanted: list[str]) -> Iterator[tuple[str, Target]]:
    """What is damaged, made in a folder."""
    if "parameters" in wanted:
        mr.run(DATA, epochs=2, out=folder / "run", **OPTIONS)
        yield "parameters", Target(folder / "run", "model.pt", _predictions)
    if "learnt rows" in wanted:
        mr.run(DATA, epochs=2, out=folder / "learnt", learned=3, **OPTIONS)
        yield "learnt rows", Target(folder / "learnt", "learned.npy", _predictions)
    if "checkpoints" in wanted:
        for epochs in (1, 2):
            mr.run(DATA, epochs=epochs, out=folder / "begun", resume=epochs > 1, **OPTIONS)
        yield "checkpoints", Target(folder / "begun", "checkpoints/*/*", _resumed)
    if "parts" in wanted:
        mr.partition_dataset(mr.open_dataset(DATA), mr.partitioner("ldg"), PARTS, folder / "parts")
        yield "parts", Target(folder / "parts", "*", _opened_parts)
    if "samples" in wanted:
        job = configure({"dataset": DATA}, epochs=2, fanout=[3, 2], batch_size=8)
        precompute(job, folder / "samples", emit=silent, stop=lambda: False)
        yield "samples", Target(folder / "samples", "*", _trained)
    if "mapped" in wanted:
        mr.write_dataset(folder / "mapped", mr.open_dataset(DATA), features_format="npy", graph_format="npy")
        yield "mapped", Target(folder / "mapped", "*.npy", _verified)


NAMES = ("parameters", "learnt rows", "checkpoints", "parts", "samples", "mapped")


def _predictions(run: Path) -> str:
    return digest_arrays(rows=np.asarray(mr.predict(run).probabilities))


def _resumed(run: Path) -> str:
    with TemporaryDirectory() as aside:
        shutil.copytree(run, Path(aside) / "run")
        return mr.run(out=Path(aside) / "run", resume=True, epochs=3, verbose=False).parameters_sha256


def _opened_parts(folder: Path) -> str:
    found: dict[str, Any] = {"book": open_book(folder / "book").fingerprint}
    for part in range(PARTS):
        partition, rows = open_part(folder, part)
        shards, owned, again = open_shards(folder, part)
        features, degree = open_neighbours(folder, part, loops=True)
        arrays = {**vars(partition), **vars(shards), "owned again": owned, "degree": degree}
        arrays |= {f"rows {k}": v for each in (rows, again) for k, v in {**vars(each), **vars(each.split)}.items()}
        arrays |= {"features": features.gather(np.arange(features.num_rows))}
        found[str(part)] = digest_arrays(**{k: v for k, v in arrays.items() if isinstance(v, np.ndarray)})
    return digest_record(found)


def _trained(samples: Path) -> str:
    with TemporaryDirectory() as aside:
        run = mr.run(DATA, samples=samples, epochs=2, out=Path(aside) / "run", **OPTIONS)
        return run.parameters_sha256


def _verified(store: Path) -> str:
    return str(asdict(verify(store, silent))["damaged"])


def campaign(places: int, seed: int, wanted: list[str] | None = None) -> dict[str, Counter[str]]:
    """Number of outcomes by target; those that must not be are printed with their places."""
    found = {}
    with TemporaryDirectory() as folder, several_runs():
        for name, target in targets(Path(folder), wanted or list(NAMES)):
            random, found[name] = np.random.default_rng((seed, NAMES.index(name))), Counter[str]()
            for _ in range(places):
                outcome, where = target.outcome(random)
                # Of what is mapped another text is the one that names the damage.
                outcome = {"another": "found", "same": "missed"}.get(outcome, outcome) if name == "mapped" else outcome
                found[name][outcome] += 1
                if outcome not in ("same", "refused", "found"):
                    print(f"{name}: {outcome} at {where}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--of", nargs="*", choices=NAMES)
    parser.add_argument("--jobs", type=int, default=2, help="processes, each with a kind at a time")
    given = parser.parse_args()
    # The places of each kind are the same however many kinds there are, and whoever tries them.
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        for found in pool.map(partial(campaign, given.places, given.seed), ([name] for name in given.of or NAMES)):
            for name, outcomes in found.items():
                told = ", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items()))
                print(f"{name:<12}", told, flush=True)
