"""Advice for names of public datasets."""

import pytest

from millrace.pipeline.datasets.readers.foreign.public import how_to_get, near_ogb


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Cora", "mr.from_pyg(Planetoid('data', 'Cora')[0], name='cora')"),
        ("coauthor_cs", "then give coauthor-cs-store as the dataset"),
        ("arxiv", "is from OGB: give ogbn-arxiv"),
    ],
)
def test_how_to_get(name, told):
    assert told in how_to_get(name)


def test_unknown_names():
    assert how_to_get("my graph") is None
    assert near_ogb("ogbn-arxvi").endswith("did you mean 'ogbn-arxiv'?")
    assert "expected one of ogbn-arxiv" in near_ogb("zzz")
