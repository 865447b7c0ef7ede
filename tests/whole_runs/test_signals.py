"""Signals that reach a run: it ends in time with what it has, or goes on; nothing is left running; the parameters are
the same.

``pytest tests/whole_runs/test_signals.py --signal-cells=all`` goes through a covering table of 64 cells, one at a time,
and prints it with times, which are then held to a limit; ``--signal-cells=HUP`` through those with HUP in their names.
"""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from millrace.tests.contracts.signal_cells import LIMIT_S, Cell, Outcome, check, run_cell, table

FEW = [
    Cell("bulk", "driver", "INT", "imports", ranks=1),
    Cell("bulk", "driver", "TERM", "opening", ranks=1),
    Cell("bulk", "driver", "HUP", "training", ranks=1),
    Cell("bulk", "driver", "USR1", "training", ranks=1),
    Cell("bulk", "tree", "TERM", "training"),
    Cell("bulk", "worker", "TERM", "sampling"),
    Cell("grappa", "tree", "HUP", "partitioning"),
    Cell("sar", "rank", "INT", "training"),
    Cell("retexo", "tree", "TERM", "checkpoint"),
]
RESUMED = {FEW[2], FEW[4], FEW[8]}
"""True for the few cells; of all cells every one is."""


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, scheduler: str
) -> Iterator[dict[Cell, Future[Outcome]]]:
    """Two cells at a time: they mostly wait."""
    wanted = request.config.getoption("--signal-cells")
    cells = FEW if wanted == "few" else [c for c in table() if wanted == "all" or wanted in str(c)]
    if not cells:
        pytest.skip(f"no cell has {wanted} in its name")
    folder = tmp_path_factory.mktemp("signals")
    with ThreadPoolExecutor(2 if wanted == "few" else 1) as pool:
        few = wanted == "few"
        yield {
            c: pool.submit(run_cell, c, folder / str(c), not few or c in RESUMED, scheduler if few else None)
            for c in cells
        }


@pytest.mark.timeout(3600)
def test_every_cell_ends_as_promised(
    request: pytest.FixtureRequest, outcomes: dict[Cell, Future[Outcome]], capsys: pytest.CaptureFixture[str]
) -> None:
    everything = request.config.getoption("--signal-cells") != "few"
    by_job: dict[tuple[str, int], set[str]] = defaultdict(set)
    failed = []
    for cell, future in outcomes.items():
        outcome = future.result()
        if everything:
            with capsys.disabled():
                print("\n" + outcome.row(), end="")
        try:
            check(outcome)
            assert not everything or not cell.stops or outcome.seconds < LIMIT_S
        except AssertionError as e:
            failed.append(f"{cell}: {outcome}\n{e}")
        if outcome.parameters is not None:
            by_job[cell.system, cell.ranks].add(outcome.parameters)
    assert not failed, "\n\n".join(failed)
    assert {job: len(seen) for job, seen in by_job.items()} == dict.fromkeys(by_job, 1), (
        "whatever happened, the same parameters"
    )


def test_the_table_covers_every_pair() -> None:
    cells = table()
    assert len(cells) >= 64
    assert len(set(cells)) == len(cells)
    assert {(c.system, c.target) for c in cells} >= {
        ("bulk", "worker"),
        ("sar", "tree"),
        ("grappa", "rank"),
        ("retexo", "driver"),
    }
    assert {(c.signal, c.moment) for c in cells} >= {
        ("USR1", "imports"),
        ("HUP", "end"),
        ("TERM", "sampling"),
        ("INT", "partitioning"),
    }
