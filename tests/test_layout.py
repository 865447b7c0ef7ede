"""The tests of a module are found by its name."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from millrace.tests.layout import (
    FOLDER_TESTS,
    TESTS,
    files_for_changes,
    files_of,
    is_of,
    is_of_folder,
    mirrored_files,
    module_files,
)


def by_folder(files: Iterable[Path]) -> defaultdict[Path, list[Path]]:
    """Files by their folder."""
    found = defaultdict[Path, list[Path]](list)
    for file in files:
        found[file.parent].append(file)
    return found


MODULES = module_files()
FILES = mirrored_files()
BESIDE = by_folder(FILES)


def test_each_module_has_a_test_of_its_name_or_its_folder_has_one():
    unnamed = {
        m for m in MODULES if not any(is_of(test, m) or is_of_folder(test, m.parent) for test in BESIDE[m.parent])
    }
    assert not sorted(str(m) for m in unnamed if str(m.parent) not in FOLDER_TESTS)
    unnamed = {str(m.parent) for m in MODULES if not any(is_of(test, m) for test in BESIDE[m.parent])}
    assert not sorted(set(FOLDER_TESTS) - unnamed), "folders that need no entry"


def test_each_test_file_is_named_for_a_module_a_folder_or_in_the_table():
    listed = {test for tests in FOLDER_TESTS.values() for test in tests}
    modules = by_folder(MODULES)
    lost = [
        test
        for test in FILES
        if not any(is_of(test, m) for m in modules[test.parent])
        and not (test.parent in modules and is_of_folder(test, test.parent))
        and str(test) not in listed
    ]
    assert not lost


@pytest.mark.parametrize("folder", sorted(FOLDER_TESTS))
def test_the_table_names_files_that_exist(folder: str):
    assert not [test for test in FOLDER_TESTS[folder] if not (TESTS / test).is_file()]


@pytest.mark.parametrize(
    ("test", "module", "yes"),
    [
        ("storage/test_graph.py", "storage/graph.py", True),
        ("storage/test_graph_of_weights.py", "storage/graph.py", True),
        ("storage/test_graphs.py", "storage/graph.py", False),
        ("storage/test_graph.py", "stages/graph.py", False),
    ],
)
def test_names_are_compared_whole(test: str, module: str, yes: bool):
    assert is_of(Path(test), Path(module)) is yes


SOURCES = {
    Path("storage/test_graph.py"): "",
    Path("storage/test_dataset.py"): "from millrace.tests.contracts.graphs import hub",
    Path("stages/models/test_models.py"): "from millrace.tests.contracts import graphs",
    Path("whole_runs/test_run.py"): "",
    Path("test_layers.py"): "",
}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("storage/graph.py", {"storage/test_graph.py"}),
        ("stages/models/gcn.py", {"stages/models/test_models.py"}),
        ("pipeline/run.py", set()),
        ("tests/whole_runs/test_run.py", {"whole_runs/test_run.py"}),
        ("tests/contracts/graphs.py", {"storage/test_dataset.py", "stages/models/test_models.py"}),
        ("README.md", set()),
    ],
)
def test_a_change_is_checked_by_the_tests_of_what_changed(changed: str, tests: set[str]):
    found = files_for_changes([Path(changed)], SOURCES)
    assert {str(t) for t in found} == tests | {"test_layers.py"}


def test_every_module_has_tests():
    assert not [m for m in MODULES if not files_of(m, FILES)]
