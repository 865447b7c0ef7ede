"""A sample of PyG's convolutions and nets on five graphs: equal or refused by name; and what is wrong is found."""

import pytest

from millrace.benchmarks import pyg_convolutions as tried
from millrace.stages.models.pyg import model as models

pytest.importorskip("torch_geometric")
GOOD = ("equal", "refused", "not made")


@pytest.mark.filterwarnings("ignore")
def test_a_sample_is_equal_or_refused_by_name() -> None:
    found = list(tried.verdicts(sample=8, seed=5))
    assert len({name for name, *_ in found}) == 8 and len(found) >= 40
    assert not [case for case in found if case[3] not in GOOD]


@pytest.mark.parametrize("name", ["GCNConv", "GPSConv"])
def test_those_that_were_wrong(name: str) -> None:
    for make in tried.makers()[name]:
        for graph, edges, weight in tried.graphs():
            assert tried.verdict(make, name, edges, weight) in GOOD[:2], graph


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "check_on_blocks", lambda *_: None)
    graph = next(tried.graphs())
    assert tried.verdict(tried.makers()["SGConv"][0], "SGConv", *graph[1:]).startswith("differs by")
