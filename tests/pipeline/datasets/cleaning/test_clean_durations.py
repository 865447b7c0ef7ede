"""Durations are integers to NumPy's type tree, and none of a graph's numbers."""

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.datasets.cleaning.clean import clean
from millrace.pipeline.datasets.cleaning.options import ReadOptions
from millrace.pipeline.datasets.cleaning.raw import GivenLabels, Raw, RawEdges, RawNodes

N = np.arange(6)
GOOD = {
    "src": N,
    "dst": (N + 1) % 6,
    "labels": N % 2,
    "features": np.ones((6, 2)),
    "edge_weight": N + 1.0,
    "split": {"train": N[:3]},
}


def raw(src, dst, labels, features, edge_weight, split) -> Raw:
    edges, nodes = {None: RawEdges((src, dst), edge_weight)}, {None: RawNodes(features)}
    return Raw("g", edges, GivenLabels(labels), nodes, split=split)


@pytest.mark.parametrize("key", GOOD)
def test_a_duration_is_refused(key):
    options = ReadOptions(direction="directed")
    clean(raw(**GOOD), options, None, 0)
    given = GOOD[key]
    late = {"train": given["train"].astype("m8[s]")} if isinstance(given, dict) else given.astype("m8[s]")
    with pytest.raises(mr.InputError, match="timedelta64"):
        clean(raw(**(GOOD | {key: late})), options, None, 0)
