"""The names of ``millrace``: type checkers and Python are told the same homes, and what one name gives another one
takes."""

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import millrace as mr

ROOT = Path(__file__).resolve().parents[1]


def told_to_type_checkers() -> dict[str, str]:
    """Name -> "module:attribute", from the imports below ``if TYPE_CHECKING``."""
    body = ast.parse((ROOT / "__init__.py").read_text()).body
    block = next(n for n in body if isinstance(n, ast.If))
    imports = [n for n in block.body if isinstance(n, ast.ImportFrom)]
    return {a.asname or a.name: f"{n.module}:{a.name}" for n in imports for a in n.names}


def test_type_checkers_and_python_are_told_the_same():
    homes = {name: f"millrace.{home}" if ":" in home else f"millrace.{home}:{name}" for name, home in mr._HOMES.items()}
    assert homes == told_to_type_checkers()
    assert set(homes) == set(mr.__all__)


@pytest.mark.parametrize("name", mr.__all__)
def test_each_name_leads_somewhere(name):
    assert getattr(mr, name).__doc__
    assert name in dir(mr)


def test_names_of_pygs_loaders_are_handed_through(monkeypatch):
    loader = pytest.importorskip("torch_geometric.loader")
    for name in loader.__all__:
        found = getattr(mr, name)
        assert found is getattr(loader, name) or name in mr.__all__
    assert mr.LightningDataset is pytest.importorskip("torch_geometric.data.lightning").LightningDataset
    monkeypatch.setitem(sys.modules, "torch_geometric.loader", None)
    with pytest.raises(ImportError, match=r"it is torch_geometric.loader.ShaDowKHopSampler, which cannot be imported"):
        from millrace import ShaDowKHopSampler  # noqa: F401


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="'Graf'"):
        mr.Graf  # noqa: B018


def test_a_partitioning_by_public_names(tmp_path):
    dataset = mr.open_dataset("sbm:nodes=300,classes=3,degree=6")
    chosen = mr.partitioner("metis")
    book = chosen.assign(dataset.graph, 3, seed=1)
    report = mr.partition_dataset(dataset, chosen, 3, tmp_path / "parts", seed=1)
    assert report.quality == mr.partition_quality(dataset.graph, book, dataset.split.train)
    for number in range(3):
        part, rows = mr.open_part(tmp_path / "parts", number)
        assert np.array_equal(part.owned, book.owned(number))
        assert part.num_halo == report.quality.parts[number].halo
        assert len(rows.split.train) == report.quality.parts[number].train
    assert mr.sar(partitioner=chosen).partition.partitioner == chosen


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: mr.link_dataset(d, seed="a"), "seed is 'a'; expected a whole number"),
        (lambda d: mr.open_dataset("sbm:nodes=20,classes=2,features=2", seed=None), "seed is None; expected a whole"),
        (lambda d: mr.NeighborSampler(1.5), "fanout is 1.5; expected one number per layer"),
        (lambda d: mr.to_pyg(d), "minibatch is of type Dataset; expected a MiniBatch"),
        (lambda d: mr.report(1), "runs is of type int; expected the folder of a run"),
        (lambda d: mr.Numbers("a", 1), "nodes is 'a'; expected a whole number of at least 2"),
        (lambda d: mr.Cluster(hosts=None).check(2), "hosts is None; expected a whole number"),
        (lambda d: mr.Cluster(memory_bytes="8 GB").check(2), "the memory of a rank is '8 GB' bytes; expected a fin"),
        (lambda d: mr.Cluster(memory_bytes=float("inf")).check(2), "is inf bytes; expected a finite number above 0"),
        (lambda d: mr.Cluster(link=mr.Link("a", 0)).check(2), "the link is Link(bandwidth='a', latency_s=0)"),
        (lambda d: mr.open_queue(None), "location is of type NoneType; expected a store's folder or URL"),
    ],
)
def test_arguments_of_wrong_types_are_named(call, message):
    with pytest.raises(mr.InputError, match=re.escape(message)):
        call(mr.open_dataset("sbm:nodes=20,classes=2,features=2"))
