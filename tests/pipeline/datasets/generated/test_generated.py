"""Embedded and generated graphs: what they promise, and that they are functions of their text."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from millrace.pipeline.datasets import open_dataset


def matrix(d):
    g = d.graph
    return sp.csr_matrix((np.ones(g.num_edges), g.indices, g.indptr), shape=(g.num_nodes,) * 2)


def assert_simple_symmetric(a):
    assert a.max() == 1
    assert a.diagonal().sum() == 0
    assert (a != a.T).nnz == 0


@pytest.mark.parametrize(
    "text", ["digits", "sbm:nodes=300,classes=3,degree=6,features=4", "rmat:scale=7,edge_factor=4,features=5,classes=3"]
)
def test_generated_graphs_are_functions_of_their_text(text):
    a, b = open_dataset(text).check(), open_dataset(text, seed=9, name="other")
    assert np.array_equal(a.graph.indices, b.graph.indices)
    assert np.array_equal(a.labels, b.labels)
    assert np.array_equal(a.features.gather(np.arange(a.num_nodes)), b.features.gather(np.arange(a.num_nodes)))
    assert a.features.dtype == np.float32
    assert (a.name, b.name) == (text, "other")
    assert_simple_symmetric(matrix(a))


def test_digits_have_the_nearest_neighbours_by_distance_and_then_by_id():
    d = open_dataset("digits")
    x = (d.features.gather(np.arange(d.num_nodes)) * 16).astype(np.int64)
    pairs = set()
    for v in range(d.num_nodes):
        far = ((x - x[v]) ** 2).sum(1)
        nearest = [u for _, u in sorted((int(f), u) for u, f in enumerate(far) if u != v)[:10]]
        pairs |= {(v, u) for u in nearest} | {(u, v) for u in nearest}
    dst = np.repeat(np.arange(d.num_nodes), d.graph.in_degree)
    assert set(zip(d.graph.indices.tolist(), dst.tolist())) == pairs


def test_digits_are_scikit_learns_without_its_import():
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    d = open_dataset("digits")
    np.testing.assert_array_equal(d.features.gather(np.arange(len(labels))), (pixels / 16).astype(np.float32))
    np.testing.assert_array_equal(d.labels, labels)
    loaded = [
        sys.executable,
        "-c",
        "import sys, millrace as mr; mr.open_dataset('digits'); print('sklearn' in sys.modules)",
    ]
    assert subprocess.run(loaded, capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_digits():
    d = open_dataset("digits")
    assert (d.num_nodes, d.features.num_features, d.num_classes) == (1797, 64, 10)
    assert len(d.split.train) == 200
    assert d.graph.in_degree.min() >= 10
    assert d.features.gather(np.arange(1797)).max() == 1
    other = open_dataset("digits", seed=1)
    assert not np.array_equal(d.split.train, other.split.train)


def test_sbm_has_the_degree_the_homophily_and_the_noise_asked_for():
    d = open_dataset("sbm:nodes=4000,classes=4,degree=12,homophily=0.7,features=16,noise=0.5,train=0.2,val=0.3")
    dst = np.repeat(np.arange(4000), d.graph.in_degree)
    same = (d.labels[dst] == d.labels[d.graph.indices]).mean()
    assert abs(same - 0.7) < 0.02
    assert abs(d.graph.in_degree.mean() - 12) < 0.2
    assert np.bincount(d.labels).tolist() == [1000] * 4
    assert [len(ids) for ids in (d.split.train, d.split.val, d.split.test)] == [800, 1200, 2000]
    x = d.features.gather(np.arange(4000))
    means = np.stack([x[d.labels == c].mean(axis=0) for c in range(4)])
    assert abs((x - means[d.labels]).std() - 0.5) < 0.01
    assert np.allclose(np.linalg.norm(means, axis=1), 1, atol=0.1)


def test_sbm_neighbours_say_more_than_the_node_itself():
    d = open_dataset("sbm:nodes=3000,classes=8,degree=20")
    x = d.features.gather(np.arange(3000))
    means = np.stack([x[d.labels == c].mean(axis=0) for c in range(8)])
    alone = ((x @ means.T).argmax(1) == d.labels).mean()
    together = (((matrix(d) @ x) @ means.T).argmax(1) == d.labels).mean()
    assert alone < 0.75 < 0.9 < together


def test_seeds_and_corner_cases():
    a, b = open_dataset("sbm:nodes=50,classes=2,degree=4"), open_dataset("sbm:nodes=50,classes=2,degree=4,seed=1")
    assert not np.array_equal(a.graph.indices, b.graph.indices)
    assert open_dataset("sbm:nodes=2,classes=1,degree=0").graph.num_edges == 0
    assert open_dataset("sbm:nodes=5,classes=9,degree=3").num_classes == 9
    assert open_dataset("rmat:scale=1,edge_factor=0,features=1,classes=1").graph.num_edges == 0
    assert open_dataset("sbm:nodes=1e2").num_nodes == 100
    assert len(open_dataset("sbm:nodes=200,classes=2", split="random:5,5").split.train) == 10


def test_rmat_is_skewed_permuted_and_can_be_directed():
    d = open_dataset("rmat:scale=11,edge_factor=8,features=8,classes=4")
    degree = d.graph.in_degree
    assert degree.max() > 8 * degree.mean()
    # Unpermuted, the densest quarter would be the lowest ids.
    assert 0.35 < degree[:1024].sum() / degree.sum() < 0.65
    one_way = matrix(open_dataset("rmat:scale=8,edge_factor=8,symmetric=0,features=2"))
    assert (one_way != one_way.T).nnz > 0
    assert one_way.diagonal().sum() == 0
    assert one_way.max() == 1


def test_rmat_probabilities_are_those_asked_for():
    """With everything in one quarter the only edge is a self loop, which is dropped; with a and d, every edge is a
    loop."""
    for shares in ("a=1,b=0,c=0", "a=0.5,b=0,c=0"):
        assert open_dataset(f"rmat:scale=6,edge_factor=4,features=1,{shares}").graph.num_edges == 0
    # Sources all low, destinations all high: one edge each way.
    assert open_dataset("rmat:scale=6,edge_factor=4,features=1,a=0,b=1,c=0").graph.num_edges == 2


def test_rmat_labels_follow_the_neighbourhood_mean():
    """Least squares on the mean of the closed neighbourhood finds most labels; on the node's own features, few."""
    d = open_dataset("rmat:scale=12,edge_factor=8,features=16,classes=4")
    x = d.features.gather(np.arange(d.num_nodes)).astype(np.float64)
    mean = (x + matrix(d) @ x) / (1 + d.graph.in_degree)[:, None]
    busy = d.graph.in_degree > 5
    one_hot = np.eye(4)[d.labels]

    def accuracy(z):
        z = z[busy] / np.linalg.norm(z[busy], axis=1, keepdims=True)
        return ((z @ np.linalg.lstsq(z, one_hot[busy], rcond=None)[0]).argmax(1) == d.labels[busy]).mean()

    assert accuracy(mean) > 0.85
    assert accuracy(x) < 0.6
    assert np.bincount(d.labels).min() > 0.1 * d.num_nodes


@pytest.mark.parametrize(
    "text", ["sbm:nodes=50000,degree=20,features=1", "rmat:scale=16,edge_factor=8,features=1,classes=1"]
)
def test_memory_is_a_few_words_per_edge(text):
    tracemalloc.start()
    try:
        d = open_dataset(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * d.graph.num_edges


def test_sbm_targets_are_a_function_of_the_neighbours_and_noise():
    spec = "sbm:nodes=2000,classes=3,degree=6,features=4"
    d, classes = open_dataset(f"{spec},targets=2,target_noise=0.3").check(), open_dataset(spec)
    exact = open_dataset(f"{spec},targets=2,target_noise=0").labels
    assert (d.task, d.labels.shape, d.labels.dtype) == ("regression", (2000, 2), np.float32)
    assert np.array_equal(d.graph.indices, classes.graph.indices)
    x = d.features.gather(np.arange(2000)).astype("f8")
    mean = matrix(d) @ x / np.maximum(d.graph.in_degree, 1)[:, None]
    fitted = np.c_[mean, np.ones(2000)]
    linear = fitted @ np.linalg.lstsq(fitted, exact.astype("f8"), rcond=None)[0]
    np.testing.assert_allclose(linear, exact, atol=1e-5)
    np.testing.assert_allclose((exact.mean(axis=0), exact.std(axis=0)), [[0, 0], [1, 1]], atol=1e-5)
    noise = d.labels - exact
    np.testing.assert_allclose(noise.std(axis=0), 0.3, rtol=0.05)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1 and abs(noise.mean()) < 0.02
