"""PyG's own tests of its loaders, run on Millrace's: `python benchmarks/pyg_tests.py PYG`, PYG a checkout of PyG.

Prints docs/design/pyg_tests.md. PyG's files are run as they are; what they import is replaced: the loaders by those of
Millrace, and what skips a test where pyg-lib or torch-sparse is not installed. Tests that call these two stay skipped.
Two stand-ins: the `SparseTensor` that a test looks edges up in, and a random graph of Cora's size, not a download.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

LOADERS = "NeighborLoader", "LinkNeighborLoader", "HGTLoader"
FILES = "test_neighbor_loader.py", "test_link_neighbor_loader.py", "test_hgt_loader.py"
SAMPLERS = {"pyg_lib"}, {"torch_sparse"}
FLAGS = "WITH_PYG_LIB", "WITH_TORCH_SPARSE", "WITH_WEIGHTED_NEIGHBOR_SAMPLE", "WITH_EDGE_TIME_NEIGHBOR_SAMPLE"
HEAD = """# PyG's own tests

PyG's tests of its own loaders also run on Millrace's.
Results of {cases} cases from PyG {tests}, run with {pyg}: {counts}.

`python benchmarks/pyg_tests.py PYG`, with a checkout of PyG, prints this page. The script runs PyG's test files
unchanged; only the loaders are Millrace's. A case is *empty* if it returns before making a loader: `induced`
subgraphs of int32 edges, and triplets with times but without `disjoint`. The two *skipped* tests make no loader:
they compare compiled libraries. One test needs `pytorch-frame`.
"""


class SparseTensor:
    """The little of torch_sparse's that test_hgt_loader.py calls: entries of some rows and columns."""

    def __init__(self, row: torch.Tensor, col: torch.Tensor, value: torch.Tensor) -> None:
        self.entries = row, col, value
        self.storage = SimpleNamespace(row=lambda: row, col=lambda: col, value=lambda: value)

    def __getitem__(self, index: tuple[torch.Tensor, torch.Tensor]) -> "SparseTensor":
        row, col, value = self.entries
        hits = (index[0][:, None, None] == row) & (index[1][None, :, None] == col)
        r, c, at = hits.nonzero(as_tuple=True)
        return SparseTensor(r, c, value[at])

    def nnz(self) -> int:
        """Entries."""
        return len(self.entries[0])

    def coo(self) -> tuple[torch.Tensor, ...]:
        """Rows, columns and values."""
        return self.entries


class OfCoraSize:
    """A data set of one random graph with 2,708 nodes, 10,556 directed edges and 1,433 features."""

    num_features, num_classes = 1433, 7

    def __getitem__(self, _: int) -> Any:
        from torch_geometric.data import Data

        torch.manual_seed(0)
        edges = torch.randint(2708, (2, 5278))
        return Data(x=torch.randn(2708, 1433) / 38, edge_index=torch.cat([edges, edges.flip(0)], 1))


class Replaced:
    """A plugin of pytest: what the test files import is Millrace's."""

    def __init__(self) -> None:
        self.made = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Replace what the files import."""
        import torch_geometric.loader
        import torch_geometric.testing
        import torch_geometric.typing

        import millrace

        for name in LOADERS:
            setattr(torch_geometric.loader, name, self.counted(getattr(millrace, name)))
        testing, self.typing = torch_geometric.testing, torch_geometric.typing
        need = testing.withPackage
        testing.onlyNeighborSampler = lambda function: function
        testing.withPackage = lambda *names: (lambda f: f) if set(names) in SAMPLERS else need(*names)
        self.flags = {name: getattr(self.typing, name) for name in (*FLAGS, "SparseTensor")}
        vars(self.typing).update({**dict.fromkeys(FLAGS, True), "SparseTensor": SparseTensor})

    def pytest_collection_finish(self) -> None:
        """PyG's own functions are to know what is installed."""
        vars(self.typing).update(self.flags)

    def counted(self, loader: type) -> type:
        """The loader, which counts how many are made."""

        def init(of: object, *args: object, **kwargs: object) -> None:
            self.made += 1
            loader.__init__(of, *args, **kwargs)  # type: ignore[misc]

        return type(loader.__name__, (loader,), {"__init__": init})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):
        """Note the cases in which no loader is made."""
        before = self.made
        found = yield
        if self.made == before:
            item.user_properties.append(("empty", "yes"))
        return found

    @pytest.fixture
    def get_dataset(self):
        """PyG's fixture, which downloads."""
        from torch_geometric.datasets import KarateClub

        return lambda name: KarateClub() if name == "karate" else OfCoraSize()


def outcome(case: ElementTree.Element) -> str:
    """Outcome of a case."""
    skipped, failed = case.find("skipped"), case.find("failure")
    if failed is None:
        failed = case.find("error")
    if skipped is not None:
        return "skipped"
    if failed is not None:
        return f"failed: {failed.get('message', '').splitlines()[0]}"
    return "passed" if case.find("properties") is None else "empty"


def table(report: Path, checkout: Path) -> str:
    """The page, from pytest's report on the tests of a checkout."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        key = case.get("classname", "").rpartition(".")[2], re.sub(r"\[.*", "", case.get("name", ""))
        rows.setdefault(key, Counter())[outcome(case)] += 1
    total = sum((Counter({w.partition(":")[0]: n for w, n in row.items()}) for row in rows.values()), Counter())
    found = re.search(r"__version__ = '([^']+)'", (checkout / "torch_geometric" / "__init__.py").read_text())
    assert found, "a checkout of PyG"
    counts = ", ".join(f"{n} {word}" for word, n in total.most_common())
    lines = [HEAD.format(tests=found[1], pyg=version("torch_geometric"), cases=sum(total.values()), counts=counts)]
    lines += ["| file | tests of which every case passed | others |", "|---|---|---|"]
    for file in dict.fromkeys(of for of, _ in rows):
        tests = {name: row for (of, name), row in rows.items() if of == file}
        others = (
            f"`{name}`: {', '.join(f'{n} {word}' for word, n in row.items())}"
            for name, row in tests.items()
            if set(row) != {"passed"}
        )
        passed = sum(set(row) == {"passed"} for row in tests.values())
        lines.append(f"| `{file}.py` | {passed} of {len(tests)} | {'; '.join(others)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the tests of a checkout, print the page."""
    if sys.argv[1] != "--run":
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            subprocess.run(
                [sys.executable, __file__, "--run", sys.argv[1], str(report)], stdout=sys.stderr, check=False
            )
            print(table(report, Path(sys.argv[1])))
        return
    folder = Path(sys.argv[2]) / "test" / "loader"
    quiet = "-q", "-p", "no:cacheprovider", "-W", "ignore", f"--confcutdir={folder}", f"--rootdir={folder}"
    files = [str(folder / name) for name in FILES]
    sys.exit(pytest.main([*quiet, f"--junitxml={sys.argv[3]}", *files], plugins=[Replaced()]))


if __name__ == "__main__":
    main()
