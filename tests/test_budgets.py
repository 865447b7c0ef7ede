"""Measures of comfort stay within their budgets, which may only fall.

    python tests/test_budgets.py NAME      # the places that a measure counts

Whoever brings a measure down lowers its budget here. A budget that rises needs a line beside it that says what was
bought: a gain that was measured, or a capability.
"""

import sys
from pathlib import Path

import pytest

from millrace.tests.contracts.measures import Measures

ROOT = Path(__file__).resolve().parents[1]

BUDGETS: dict[str, float] = {
    # Goal: 61,209 with all that is planned, 58,000 for what there was when it was set. Raised while features come: it
    # bought readers of other programs' files, the chain over a cut, rows read from disk in order, and (from 67,500)
    # features packed beside samples; names in the place of long rows of arguments bought the last 180. From 67,900:
    # Planetoid's and PyG's files are read without running what is in them; graphs are shown without labels.
    # Full batches of isolated ranks (grappa.full_batch): 95. Hops' lists of mapped graphs,
    # announced ahead, and lines of a plan that are wrapped: 22. Training from packed samples alone, packing by tasks
    # and owned rows that stay on disk: 320, of which one Fetch in the place of twelve classes paid 135.
    # Words of sets, of folds and of no label, which were passed over without a word: 7.
    # Units of rows are read into buffers of the units before: 20, and 25 minibatches from disk take 2.0 for 3.4 s.
    # Parts that are missing, features that were packed anew at a place, a folder called karate: 9.
    # Feather, JSON lines, ORC, columns of folders, relation_column and one_hot are converted in pieces: 72, of 150.
    # Wrong ends, weights, labels, splits and features are refused in one message, in memory and in pieces: 42.
    # Exact evaluation from disk: sums go on while all sources go by, which takes 5 passes over the features in 2 GiB
    # in the place of 54, to the same bits: 145, of 240.
    # Workers whose working directory is another one see the caller's paths, or say that they do not: 24. Predictions of
    # other data without labels or a split, and what is said where these are needed: 12.
    # Columns of ids, of the split and of labels are looked for by their values, and named in one message with one
    # command: 83, some of them lines that formatting made of long calls.
    # Exact evaluation says if it will read features many times, and rows of any size go to scratch where memory is
    # short: 6.
    # Other data is scaled, filled and matched as the run's own was, which was wrong without a word: 198.
    # convert takes edges that GPUs have sorted in pieces; notes when a run starts say that an epoch is one step, and
    # that edges of weight 0 are drawn; PyG's arguments of NeighborSampler, a plan's unknown system, closed clients: 58.
    # Rows of a file that memory has no room for come past the cache of pages, 128 reads under way: 96, and a unit of 25
    # minibatches takes half of what a bare reader takes, and a sixth of its processor time.
    # Ids, splits, headers and matrices that were passed over without a word are read, or refused in one
    # message with one command; text of numbers is read: 33, of 89.
    # A run's own tables are read by its record, changes of edges and features are seen, and DataWarning says from
    # Python what predictions depend on; classes, weights and hidden edges of other data are compared: 56, of 60.
    # A repeated sweep of other data or code is refused: 19.
    # Explainers of weighted graphs ask for weights; times of none are none: 16.
    # A forward beside layers is refused, ranks leave alone what none has a gradient of, and what a callback unfreezes
    # learns: 32.
    # export says how its program's rows are made of tables: 9.
    # Long reads of a file of rows are cut: 4.
    # PyG's convolutions that average, or take a maximum, were given the sampler's correction as a weight, which trained
    # them on rows several times too large: 65 (and 2 of Any).
    # start_from compares columns, scales and classes by name: 27.
    # Sets in attributes of NetworkX and PyG are read or refused, where a split was drawn without a word: 15.
    # Other data keep their own sets (or are test data), learnt rows and types are found by name, dates and numbers do
    # not mix as times, codes keep their zeros, and each run of a sweep begins with the module as it was given: all of
    # this was wrong without a word: 219.
    # predict and evaluate were killed in 1 GiB: where memory is short, graph, degrees and rows lie in files, and what
    # has no room is refused before it is read: 16, of 139 with seconds from disk in plan.
    # Eleven kinds of files open at once, or are refused with a command to paste: 11.
    # A split of one's own, ids of no text, attention of several heads over files, keys that a run would not use: what
    # was passed over is taken, or refused: 18. doctor names each extra: 3.
    # Read wrongly without a word: further sections of Pajek, lists of neighbours, headers above text, matrices whose
    # rows have another order than their columns, edges that Gephi says are of both kinds: 14.
    # Runs of several epochs were killed in 1 and 2 GiB: waiting minibatches take an eighth of what is left, a graph
    # without room lies in a file if a disk has room for it, and rows ahead take no more than there is: 28. So were
    # runs on 20 GB of features in 1 GiB: labels lie in a file too, and degrees are not held three times: 7.
    # Rows larger than the machine's memory ended in ENOMEM where they were mapped, and maps of stores compiled kernels
    # of their own: 22. Addresses in a file were mapped as Python objects: 2.
    "lines_code": 64_528,
    # Goal: 35. A ratio: code that goes raises it.
    "none_checks_per_kloc": 33.4,
    "none_checks_of_types": 5,
    # Several of these rose with the same features, by functions that were not looked at one by one; they fall next.
    "functions_over_6_params": 42,
    "isinstance_on_policies": 10,
    "see_only_docstrings": 0,
    "any_annotations": 1586,
    "optional_arguments": 789,
    "hasattr": 44,
    "calls_over_6_positional": 0,
    "max_positional_args_at_a_call": 6,
    "banned_words": 0,
    "functions_named_by_preposition": 0,
}


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    return Measures(ROOT).values()


@pytest.mark.parametrize("name", BUDGETS)
def test_a_measure_is_within_its_budget(name: str, measured: dict[str, float]) -> None:
    assert measured[name] <= BUDGETS[name], f"the places: python tests/test_budgets.py {name}"


def test_all_measures_have_a_budget(measured: dict[str, float]) -> None:
    assert measured.keys() == BUDGETS.keys()


POLICY = '''"""A module.

Of several lines.
"""

# A comment.
class Swept:
    """A policy."""

    width: int = 3
    """Columns.

    Of a row."""

    def tell(self, a: Any, b: dict[str, Any] | None = None, *, c=0, d=0, e=0, f=0, g=0) -> None:
        """See `Rows.tell`."""
        text = """
two lines"""


@njit
def kernel(a, b, c, d, e, f, g):
    return a
'''
USER = """def of(x: "int | None", types=None):
    if isinstance(x, (int, Swept)) or type(x) is Swept:
        return None
    match x:
        case Swept(width=3):
            return hasattr(x, "width")
    if x.types is not None and x is None or types is None:
        call(1, 2, 3, 4, 5, 6, 7, 8)
        kernel(1, 2, 3, 4, 5, 6, 7, 8)
        return other(1, 2, 3, 4, 5, 6, 7, *x)
"""


def test_measures_count_what_they_are_said_to(tmp_path: Path) -> None:
    files = {"stages/fetch/rows.py": POLICY, "pipeline/unsaid/user.py": USER, "tests/ignored.py": USER}
    for path, text in files.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = Measures(tmp_path)
    # `kernel` is compiled, and a function named `call` takes anything.
    assert found.values() == {
        "lines_code": 8 + 10,
        "none_checks_of_types": 2,
        "none_checks_per_kloc": round(1000 * 3 / 18, 1),
        "functions_over_6_params": 1,
        "isinstance_on_policies": 3,
        "see_only_docstrings": 1,
        "any_annotations": 2,
        "optional_arguments": 2,
        "hasattr": 1,
        "calls_over_6_positional": 1,
        "max_positional_args_at_a_call": 7,
        "banned_words": 2,
        "functions_named_by_preposition": 1,
    }
    assert found.places["functions_over_6_params"] == ["stages/fetch/rows.py:15 tell"]


if __name__ == "__main__":
    print("\n".join(Measures(ROOT).places[sys.argv[1]]))
