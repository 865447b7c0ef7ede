"""Digests: the same content has one, any change has another."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from millrace.storage import fingerprint as module
from millrace.storage.dataset import Dataset, Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.fingerprint import (
    ArrayDigest,
    dataset_fingerprint,
    digest_arrays,
    digest_leaves,
    digest_of_leaves,
    digest_record,
    features_fingerprint,
    graph_fingerprint,
    leaf_rows,
)
from millrace.storage.graph import from_edges
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.messages import graphs, make_minibatch, minibatches

SAME_BYTES = {"<i4": "<u4", "<f8": "<i8", "|u1": "i1", "|b1": "u1"}
ARRAYS = hnp.arrays(
    st.sampled_from(["<i4", "<f8", "u1", "?"]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
)


@given(ARRAYS, ARRAYS)
def test_order_and_layout_do_not_matter(a, b):
    want = digest_arrays(a=a, b=b)
    assert digest_arrays(b=b, a=a) == want
    assert digest_arrays(a=np.asarray(a, order="F"), b=b) == want
    assert digest_arrays(a=np.repeat(a[None], 2, axis=0)[0], b=b.astype(b.dtype.newbyteorder(">"))) == want
    assert len(want) == 64


@given(ARRAYS.filter(lambda a: a.ndim), st.sampled_from([1, 7, 64, 1 << 22]), st.randoms())
def test_pieces_do_not_matter_and_leaves_may_be_digested_apart(a, leaf, random):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAF_BYTES", leaf)
        digest = ArrayDigest(a.dtype, a.shape)
        cuts = sorted(random.randrange(len(a) + 1) for _ in range(3))
        for piece in np.split(a, cuts):
            digest.update(piece)
        step = leaf_rows(a.dtype, a.shape)
        leaves = [digest_leaves(a[i : i + step], a.dtype) for i in range(0, len(a), step)]
        header = json.dumps([a.dtype.newbyteorder("<").str, list(a.shape)], separators=(",", ":")).encode()
        pieces = [a[i : i + step].tobytes() for i in range(0, len(a), step)] if a.size else []
        oracle = hashlib.sha256(header + b"".join(hashlib.sha256(p).digest() for p in pieces)).hexdigest()
        assert digest.hexdigest() == digest_of_leaves(a.dtype, a.shape, leaves) == oracle


@given(ARRAYS, st.randoms())
def test_any_change_matters(a, random):
    seen = {digest_arrays(a=a), digest_arrays(b=a), digest_arrays(a=a, b=None), digest_arrays(a=None)}
    assert len(seen) == 4
    assert digest_arrays(a=a[None]) not in seen
    assert digest_arrays(a=a.view(SAME_BYTES[a.dtype.str])) not in seen
    if a.size:
        changed = np.array(a)
        at = random.randrange(a.size)
        changed.reshape(-1)[at] = 0 if changed.reshape(-1)[at] else 1
        assert digest_arrays(a=changed) not in seen


def test_arrays_of_objects_are_refused():
    with pytest.raises(AssertionError, match="objects"):
        ArrayDigest(np.dtype(object), (1,))


def test_records():
    assert digest_record({"a": 1, "b": [1.5, None, "x"]}) == digest_record({"b": [1.5, None, "x"], "a": 1})
    assert len({digest_record({"a": v}) for v in (1, "1", 1.5, None, True, [1], {"a": 1})}) == 7
    with pytest.raises(TypeError):
        digest_record({"a": object()})


@given(graphs())
def test_graphs(g):
    want = graph_fingerprint(g)
    assert graph_fingerprint(replace(g, indices=g.indices.astype(np.int64))) == want
    others = [
        replace(g, indptr=np.append(g.indptr, g.indptr[-1])),
        replace(g, edge_weight=None if g.edge_weight is not None else np.ones(g.num_edges, np.float32)),
        replace(g, edge_id=None if g.edge_id is not None else np.arange(g.num_edges)),
    ]
    if g.num_edges and g.num_nodes > 1:
        others.append(replace(g, indices=(g.indices + 1) % g.num_nodes))
    assert want not in [graph_fingerprint(o) for o in others]


def test_features_are_digested_in_pieces(monkeypatch):
    rows = np.random.default_rng(0).random((31, 3)).astype(np.float32)
    want = features_fingerprint(ArrayFeatures(rows))
    assert want.startswith("float32[31,3]:")
    monkeypatch.setattr(module, "LEAF_BYTES", 50)
    small = ArrayDigest(rows.dtype, rows.shape)
    small.update(rows)
    assert features_fingerprint(ArrayFeatures(rows)) == f"float32[31,3]:{small.hexdigest()}" != want
    assert features_fingerprint(ArrayFeatures(rows[::-1])) != want
    assert features_fingerprint(ArrayFeatures(rows.astype(np.float64))) != want


def test_a_dataset_is_told_apart_by_its_parts():
    ids = np.array([0], np.int64)
    data = Dataset(
        "d",
        from_edges([0], [1], 3),
        ArrayFeatures(np.zeros((3, 2))),
        np.zeros(3, np.int64),
        Split(ids, ids + 1, ids + 2),
        1,
    )
    want = dataset_fingerprint(data)
    for part, change in {
        "graph": {"graph": from_edges([1], [0], 3)},
        "features": {"features": ArrayFeatures(np.ones((3, 2)))},
        "labels": {"labels": np.array([0, 0, -1])},
        "split": {"split": Split(ids + 1, ids, ids + 2)},
    }.items():
        other = dataset_fingerprint(replace(data, **change))
        assert [k for k in want if want[k] != other[k]] == [part]
    assert dataset_fingerprint(replace(data, name="other")) == want
    assert dataset_fingerprint(data, "known")["features"] == "known"


@given(minibatches())
def test_minibatches(m):
    want = minibatch_digest(m)
    wide = tuple(replace(b, src=b.src.astype(np.int64), indptr=b.indptr.astype(np.int64)) for b in m.blocks)
    assert minibatch_digest(replace(m, epoch=9, index=9, blocks=wide)) == want
    first = m.blocks[0]
    changes = [{"num_dst": first.num_dst + 1}, {"src": first.src + 1}, {"indptr": first.indptr + 1}]
    changes.append({"weight": None if first.weight is not None else np.ones(first.num_edges, np.float32)})
    changes.append({"edge_id": None if first.edge_id is not None else np.ones(first.num_edges, np.int64)})
    if first.num_edges:
        changes.append({"indices": first.indices + 1})
    for change in changes:
        assert minibatch_digest(replace(m, blocks=(replace(first, **change), *m.blocks[1:]))) != want


def test_the_order_of_blocks_matters():
    m = make_minibatch(np.random.default_rng(0), (2, 4, 9))
    assert minibatch_digest(replace(m, blocks=m.blocks[::-1])) != minibatch_digest(m)
