"""`NeighborLoader` against PyG's documented fields, order and law; and the exports of a MiniBatch to PyG and DGL."""

import gc
import sys
import threading
import time
import types
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ImbalancedSampler, ZipLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NumNeighbors, SamplerOutput
from torch_geometric.utils import trim_to_layer

import millrace
from millrace import NeighborLoader, to_dgl_blocks, to_pyg
from millrace.pipeline.interop import pyg_loader
from millrace.pipeline.interop.pyg_prefetch import THREAD
from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError, MissingExtraError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.tests.contracts.messages import make_minibatch

# Columns are edges 0..8: a chain 4 -> 3 -> 1 -> 0, a branch 2 -> 0, a multi-edge 1 -> 0, a self loop at 3, a cycle 0 ->
# 2; 5 is isolated.
EDGES = torch.tensor([[1, 2, 3, 4, 1, 3, 0, 4, 0], [0, 0, 1, 3, 0, 3, 2, 1, 4]])


def small() -> Data:
    """Node-level x, y, tag; edge-level edge_attr, w; and what is neither."""
    return Data(
        x=torch.arange(12.0).view(6, 2),
        y=torch.arange(6) * 10,
        tag=np.arange(6) + 100,
        edge_index=EDGES,
        edge_attr=torch.arange(9.0)[:, None],
        w=torch.arange(1.0, 10.0),
        name="small",
        scale=torch.tensor([7.0]),
    )


def random_data(seed: int = 0, nodes: int = 200, edges: int = 3000) -> Data:
    rng = torch.Generator().manual_seed(seed)
    return Data(x=torch.rand(nodes, 4, generator=rng), edge_index=torch.randint(nodes, (2, edges), generator=rng))


def signature(batch: Data) -> tuple[Any, ...]:
    return batch.n_id.tolist(), batch.e_id.tolist(), batch.edge_index.tolist(), batch.input_id.tolist()


def signatures(loader: NeighborLoader) -> list[tuple[Any, ...]]:
    return [signature(b) for b in loader]


def check(batch: Data, data: Data, hops: int) -> None:
    """Check PyG's promises for every minibatch."""
    nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
    assert (len(nodes), len(edges)) == (hops + 1, hops)
    assert (sum(nodes), sum(edges)) == (len(batch.n_id), len(batch.e_id))
    assert nodes[0] == batch.batch_size == len(batch.input_id)
    found = batch.n_id[batch.batch_size :]
    assert len(torch.unique(found)) == len(found) and not torch.isin(found, batch.n_id[: batch.batch_size]).any()
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    known, seen = torch.tensor([0, *nodes]).cumsum(0), 0
    for h, count in enumerate(edges):
        row, col = batch.edge_index[:, seen : seen + count]
        # A hop's edges lead into what the hop before found, by destination, and out of anything found so far.
        assert ((known[h] <= col) & (col < known[h + 1])).all() and (col.diff() >= 0).all()
        assert (row < known[h + 2]).all()
        new = torch.unique(row[row >= known[h + 1]])
        assert len(new) == nodes[h + 1]
        seen += count


# --- fields and order
# -----------------------------------------------------------------------------------------------------------------


def test_fields_on_a_fixed_graph_with_every_neighbour() -> None:
    data = small()
    (batch,) = NeighborLoader(data, [-1, -1], torch.tensor([0, 5]), batch_size=2)
    check(batch, data, 2)
    assert batch.n_id[:2].tolist() == [0, 5] and batch.input_id.tolist() == [0, 1]
    assert batch.batch_size == 2 and isinstance(batch.batch_size, int)
    # Hop 1 into {0, 5}: columns 0, 1, 4 find {1, 2}. Hop 2 into {1, 2}: columns 2, 7, 6 find {3, 4}. Columns 3, 5, 8
    # are never reached.
    assert batch.num_sampled_nodes == [2, 2, 2] and batch.num_sampled_edges == [3, 3]
    assert set(batch.n_id[2:4].tolist()) == {1, 2} and set(batch.n_id[4:].tolist()) == {3, 4}
    assert Counter(batch.e_id[:3].tolist()) == Counter([0, 1, 4]) and Counter(batch.e_id[3:].tolist()) == Counter(
        [2, 6, 7]
    )
    pairs = Counter(map(tuple, batch.n_id[batch.edge_index].t().tolist()))
    assert pairs == Counter({(1, 0): 2, (2, 0): 1, (3, 1): 1, (4, 1): 1, (0, 2): 1})


def test_every_attribute_is_filtered_as_pyg_does() -> None:
    data = small()
    (batch,) = NeighborLoader(data, [-1, -1], [0, 5], batch_size=2)
    assert torch.equal(batch.x, data.x[batch.n_id]) and torch.equal(batch.y, data.y[batch.n_id])
    assert np.array_equal(np.asarray(batch.tag), data.tag[batch.n_id.numpy()])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id]) and torch.equal(batch.w, data.w[batch.e_id])
    assert batch.name == "small" and torch.equal(batch.scale, data.scale)
    assert batch.num_nodes == 6 and batch.batch is None
    for name in ("n_id", "e_id", "input_id", "edge_index"):
        assert batch[name].dtype == torch.int64
    assert "n_id" not in data and "batch_size" not in data


def test_ids_that_data_has_already_are_filtered_and_kept() -> None:
    data = small()
    data.n_id, data.e_id = torch.arange(6) + 1000, torch.arange(9) + 2000
    (batch,) = NeighborLoader(data, [-1], [0], batch_size=1)
    assert sorted(batch.n_id.tolist()) == [1000, 1001, 1002] and sorted(batch.e_id.tolist()) == [2000, 2001, 2004]


def test_num_nodes_without_features() -> None:
    (batch,) = NeighborLoader(Data(edge_index=EDGES, num_nodes=6), [-1], [5], batch_size=1)
    assert batch.num_nodes == 1 and batch.n_id.tolist() == [5] and batch.edge_index.shape == (2, 0)


def test_edge_index_classes_of_pyg_and_sorted_promises_change_nothing() -> None:
    plain = signatures(NeighborLoader(random_data(), [3, 2], batch_size=50, seed=1))
    data = random_data()
    data.edge_index = EdgeIndex(data.edge_index, sparse_size=(200, 200))
    assert signatures(NeighborLoader(data, NumNeighbors([3, 2]), batch_size=50, seed=1, is_sorted=True)) == plain


class Net(torch.nn.Module):
    def __init__(self, inputs: int, outputs: int, hidden: int = 32) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(inputs, hidden), SAGEConv(hidden, outputs)])

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, trim: tuple[list[int], list[int]] | None = None
    ) -> torch.Tensor:
        for i, conv in enumerate(self.convs):
            if trim is not None:
                x, edge_index, _ = trim_to_layer(i, *trim, x, edge_index)
            x = conv(x, edge_index)
            x = x.relu() if i == 0 else x
        return x


def test_trim_to_layer_gives_the_seeds_the_same_output() -> None:
    torch.manual_seed(0)
    net, data = Net(4, 3), random_data()
    for batch in NeighborLoader(data, [4, 3], torch.arange(60), batch_size=20, seed=0):
        whole = net(batch.x, batch.edge_index)[: batch.batch_size]
        trimmed = net(batch.x, batch.edge_index, (batch.num_sampled_nodes, batch.num_sampled_edges))[: batch.batch_size]
        assert torch.allclose(whole, trimmed, atol=1e-6)


def test_full_neighbourhoods_give_the_whole_graphs_output() -> None:
    torch.manual_seed(0)
    net, data = Net(4, 3), random_data()
    whole = net(data.x, data.edge_index)
    for batch in NeighborLoader(data, [-1, -1], batch_size=64, shuffle=True, seed=0):
        assert torch.allclose(net(batch.x, batch.edge_index)[: batch.batch_size], whole[batch.input_id], atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_graph(draws: st.DataObject) -> None:
    n = draws.draw(st.integers(1, 9))
    ends = st.lists(st.integers(0, n - 1), max_size=25)
    src = draws.draw(ends)
    dst = draws.draw(st.lists(st.integers(0, n - 1), min_size=len(src), max_size=len(src)))
    data = Data(x=torch.arange(n)[:, None], edge_index=torch.tensor([src, dst], dtype=torch.int64).view(2, -1))
    fanout = draws.draw(st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=1, max_size=3))
    replace = draws.draw(st.booleans())
    degree = np.bincount(dst, minlength=n)
    for batch in NeighborLoader(data, fanout, batch_size=draws.draw(st.integers(1, 4)), replace=replace, seed=0):
        check(batch, data, len(fanout))
        assert torch.equal(batch.x[:, 0], batch.n_id)
        kept = Counter(batch.n_id[batch.edge_index[1]].tolist())
        hop = np.repeat(np.arange(len(fanout) + 1), batch.num_sampled_nodes)
        for v, h in zip(batch.n_id.tolist(), hop):
            s = fanout[h] if h < len(fanout) else 0
            d = int(degree[v])
            assert kept[v] == (d if s < 0 else s * (d > 0) if replace else min(d, s))
        if not replace:
            assert len(torch.unique(batch.e_id)) == len(batch.e_id)


# --- seeds, order, epochs
# -------------------------------------------------------------------------------------------------------------


def test_input_nodes_as_mask_index_list_or_all() -> None:
    data = random_data()
    mask = torch.zeros(200, dtype=torch.bool)
    mask[[150, 3, 77]] = True
    for form in (mask, mask.numpy()):
        (batch,) = NeighborLoader(data, [2], form, batch_size=10)
        assert batch.n_id[:3].tolist() == [3, 77, 150] and batch.input_id.tolist() == [3, 77, 150]
    for form in (torch.tensor([150, 3, 77]), np.array([150, 3, 77], np.int32), [150, 3, 77]):
        (batch,) = NeighborLoader(data, [2], form, batch_size=10)
        assert batch.n_id[:3].tolist() == [150, 3, 77] and batch.input_id.tolist() == [0, 1, 2]
    batches = list(NeighborLoader(data, [2], batch_size=64))
    assert torch.cat([b.n_id[: b.batch_size] for b in batches]).tolist() == list(range(200))
    assert torch.cat([b.input_id for b in batches]).tolist() == list(range(200))
    (batch,) = NeighborLoader(data, [2], [150, 3, 77], batch_size=10, input_id=torch.tensor([7, 8, 9]))
    assert batch.input_id.tolist() == [7, 8, 9]


@pytest.mark.parametrize("nodes", [[], torch.zeros(200, dtype=torch.bool)])
def test_no_input_nodes(nodes: Any) -> None:
    loader = NeighborLoader(random_data(), [2], nodes)
    assert len(loader) == 0 and list(loader) == []


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [30, 30, 10]), (True, [30, 30])])
@pytest.mark.parametrize("shuffle", [False, True])
def test_sizes_and_length(drop_last: bool, sizes: list[int], shuffle: bool) -> None:
    loader = NeighborLoader(
        random_data(), [2], torch.arange(70), batch_size=30, drop_last=drop_last, shuffle=shuffle, bulk_size=2
    )
    assert len(loader) == len(sizes) and len(loader.dataset) == 70 and loader.batch_size == 30
    assert [b.batch_size for b in loader] == sizes


def test_shuffle_permutes_the_seeds_anew_each_epoch() -> None:
    nodes = torch.arange(100, 150)
    loader = NeighborLoader(random_data(), [2], nodes, batch_size=8, shuffle=True, seed=3)
    epochs = []
    for _ in range(2):
        batches = list(loader)
        ids = torch.cat([b.input_id for b in batches])
        assert torch.equal(nodes[ids], torch.cat([b.n_id[: b.batch_size] for b in batches]))
        assert sorted(ids.tolist()) == list(range(50))
        epochs.append(ids.tolist())
    assert epochs[0] != epochs[1] and epochs[0] != list(range(50))


def test_samples_differ_between_epochs_and_follow_the_seed() -> None:
    def make(**options: Any) -> NeighborLoader:
        return NeighborLoader(random_data(), [3, 3], batch_size=40, shuffle=True, **options)

    loader = make(seed=5)
    first, second = signatures(loader), signatures(loader)
    assert first != second and loader.epoch == 2
    again = make(seed=5)
    again.epoch = 1
    assert signatures(again) == second
    assert signatures(make(seed=5)) == first != signatures(make(seed=6))


def test_generator_and_torchs_own_decide_where_no_seed_does() -> None:
    def two(**k: Any) -> list[Any]:
        loader = NeighborLoader(random_data(), [3], batch_size=100, shuffle=True, **k)
        return [signatures(loader), signatures(loader)]

    with_generator = two(generator=torch.Generator().manual_seed(1))
    assert (
        with_generator
        == two(generator=torch.Generator().manual_seed(1))
        != two(generator=torch.Generator().manual_seed(2))
    )
    assert with_generator[0] != with_generator[1]
    torch.manual_seed(4)
    first = two()
    torch.manual_seed(4)
    assert two() == first != two()


@pytest.mark.parametrize(
    "options", [{"bulk_size": 1}, {"bulk_size": 3, "prefetch_bulks": 2}, {"num_workers": 4}, {"bulk_size": 100}]
)
def test_bulks_and_workers_do_not_show(options: dict[str, int]) -> None:
    plain = NeighborLoader(random_data(), [3, 2], batch_size=20, shuffle=True, seed=1)
    assert signatures(
        NeighborLoader(random_data(), [3, 2], batch_size=20, shuffle=True, seed=1, **options)
    ) == signatures(plain)


def test_two_iterations_at_once() -> None:
    loader = NeighborLoader(random_data(), [3], batch_size=20, seed=1, bulk_size=2)
    both = [(signature(a), signature(b)) for a, b in zip(loader, loader)]
    fresh = NeighborLoader(random_data(), [3], batch_size=20, seed=1)
    assert [a for a, _ in both] == signatures(fresh) and [b for _, b in both] == signatures(fresh)


# --- the law of sampling
# --------------------------------------------------------------------------------------------------------------


STARS = 600


def stars(degree: int, **attributes: Any) -> Data:
    """Nodes 0..599 have `degree` in-edges each, in order."""
    leaves = torch.arange(STARS * degree)
    return Data(
        edge_index=torch.stack([STARS + leaves, leaves // degree]), num_nodes=STARS * (degree + 1), **attributes
    )


def picks(data: Data, **options: Any) -> np.ndarray:
    """Number of draws of each in-edge, two draws for each of 600 nodes."""
    loader = NeighborLoader(data, [2], range(STARS), batch_size=50, seed=0, **options)
    degree = data.num_edges // STARS
    return np.bincount(np.concatenate([b.e_id.numpy() for b in loader]) % degree, minlength=degree)


def test_uniform_sampling_is_uniform() -> None:
    count = picks(stars(5))
    # Each edge is kept with probability 2/5: 240 of 600, standard deviation 12.
    assert count.sum() == 1200 and (abs(count - 240) < 4.5 * 12).all()


def test_weight_attr_draws_in_proportion() -> None:
    data = stars(4, heft=torch.tensor([0.0, 1.0, 2.0, 5.0], dtype=torch.float64).repeat(STARS))
    count = picks(data, weight_attr="heft", replace=True)
    share = np.array([0, 1, 2, 5]) / 8
    assert (
        count[0] == 0
        and count.sum() == 1200
        and (abs(count - 1200 * share) <= 4.5 * np.sqrt(1200 * share * (1 - share))).all()
    )
    count = picks(data, weight_attr="heft")
    # Successive sampling of 2: P(keep i) = p_i + sum_j p_j p_i / (1 - p_j).
    keep = share + np.array([sum(share[j] * share[i] / (1 - share[j]) for j in range(4) if j != i) for i in range(4)])
    assert count[0] == 0 and (abs(count - 600 * keep) <= 4.5 * np.sqrt(600 * keep * (1 - keep))).all()
    (batch,) = NeighborLoader(data, [2], [0], weight_attr="heft")
    assert len(batch.heft) == 2 and torch.equal(batch.heft, data.heft[batch.e_id])


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"disjoint": True}])
@pytest.mark.parametrize("typed", [False, True])
def test_edges_of_weight_0_are_drawn_by_no_number_nor_by_all(typed: bool, options: Any) -> None:
    """Whole rows by -1 are those of a number that is large enough; a node with such edges alone has no neighbours."""
    weight = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0])
    ends = torch.tensor([[1, 2, 3, 4, 5], [0, 0, 0, 0, 1]])
    if typed:
        data = HeteroData(n={"num_nodes": 6})
        data["n", "to", "n"].edge_index, data["n", "to", "n"].w = ends, weight
    else:
        data = Data(edge_index=ends, w=weight, num_nodes=6)
    seeds = ("n", [0, 1]) if typed else [0, 1]
    for number in (-1, 5):
        (batch,) = NeighborLoader(data, [number], seeds, weight_attr="w", batch_size=2, **options)
        store = batch["n", "to", "n"] if typed else batch
        found = store.e_id.tolist()
        # With replacement an edge may come several times, and another not at all.
        assert set(found) <= {1, 2} and found if options.get("replace") else sorted(found) == [1, 2]
        assert (store.w > 0).all()
    if not options and not typed:
        (batch,) = NeighborLoader(data, [-1], [0], weight_attr="w", subgraph_type="induced")
        assert sorted(batch.n_id.tolist()) == [0, 2, 3] and sorted(batch.e_id.tolist()) == [1, 2]
        (batch,) = NeighborLoader(data, [-1], [0, 4], weight_attr="w", subgraph_type="induced", batch_size=2)
        assert sorted(batch.e_id.tolist()) == [1, 2, 3]


# --- threads, memory, errors
# ----------------------------------------------------------------------------------------------------------


def assert_no_thread() -> None:
    gc.collect()
    deadline = time.monotonic() + 120
    while any(t.name == THREAD for t in threading.enumerate()):
        assert time.monotonic() < deadline, "the sampling thread is still there"
        time.sleep(0.005)


def test_the_thread_ends_with_the_iteration() -> None:
    loader = NeighborLoader(random_data(), [2], batch_size=1, bulk_size=2)
    list(loader)
    assert_no_thread()
    for _ in loader:
        assert any(t.name == THREAD for t in threading.enumerate())
        break
    assert_no_thread()
    iterator = iter(loader)
    next(iterator)
    del iterator
    assert_no_thread()
    loader.transform = lambda batch: 1 / 0
    with pytest.raises(ZeroDivisionError):
        list(loader)
    assert_no_thread()


def settled(made: list[int], number: int) -> list[int]:
    """Items that a thread has appended a while after there are so many."""
    deadline = time.monotonic() + 120
    while len(made) < number and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.1)
    return made


def test_the_thread_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], NeighborSampler.sample
    monkeypatch.setattr(NeighborSampler, "sample", lambda self, g, r, *a: made.append(r.number) or real(self, g, r, *a))
    iterator = iter(NeighborLoader(random_data(), [2], batch_size=1, bulk_size=2, prefetch_bulks=3))
    next(iterator)
    assert settled(made, 4) == [0, 1, 2, 3]
    next(iterator), next(iterator)
    assert settled(made, 5) == [0, 1, 2, 3, 4]


def test_an_error_of_the_thread_reaches_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    real = NeighborSampler.sample

    def sample(self: NeighborSampler, graph: Any, request: Any, *rest: Any) -> Any:
        if request.number == 1:
            raise MemoryError("no room")
        return real(self, graph, request, *rest)

    monkeypatch.setattr(NeighborSampler, "sample", sample)
    got = []
    loader = NeighborLoader(random_data(), [2], batch_size=10, bulk_size=3, transform=got.append)
    with pytest.raises(MemoryError, match="no room"):
        list(loader)
    assert len(got) == 3
    assert_no_thread()


def test_minibatches_own_their_memory() -> None:
    loader = NeighborLoader(random_data(), [3, 3], batch_size=10, seed=1, bulk_size=2)
    kept = list(loader)
    before = [signature(b) for b in kept]
    for _ in range(3):
        list(loader)
    assert [signature(b) for b in kept] == before
    for b in kept:
        assert b.n_id.untyped_storage().nbytes() == b.n_id.nbytes and b.e_id.untyped_storage().nbytes() == b.e_id.nbytes
        b.x.zero_(), b.edge_index.zero_(), b.n_id.zero_(), b.e_id.zero_(), b.input_id.zero_()
    assert signatures(NeighborLoader(random_data(), [3, 3], batch_size=10, seed=1)) == before
    loader.epoch = 0
    assert signatures(loader) == before


def test_transform_is_called_in_the_callers_thread() -> None:
    seen = []

    def transform(batch: Data) -> tuple[str, int]:
        seen.append(threading.current_thread())
        return "mine", batch.batch_size

    assert list(NeighborLoader(random_data(), [2], batch_size=100, transform=transform)) == [("mine", 100)] * 2
    assert set(seen) == {threading.current_thread()}


# --- training
# ----------------------------------------------------------------------------------------------------------------------
# ---


def test_a_pyg_training_script_runs_unchanged() -> None:
    source = millrace.open_dataset("sbm:nodes=1500,classes=5,degree=15,features=24,noise=0.5")
    dst = np.repeat(np.arange(1500), source.graph.in_degree)
    data = Data(
        x=torch.from_numpy(source.features.gather(np.arange(1500))),
        y=torch.from_numpy(source.labels),
        edge_index=torch.from_numpy(np.stack([source.graph.indices.astype(np.int64), dst])),
    )
    for part in ("train", "val", "test"):
        mask = torch.zeros(1500, dtype=torch.bool)
        mask[torch.from_numpy(getattr(source.split, part))] = True
        data[f"{part}_mask"] = mask
    torch.manual_seed(12345)
    train_loader = NeighborLoader(
        data, num_neighbors=[10, 5], batch_size=50, input_nodes=data.train_mask, shuffle=True, num_workers=2
    )
    test_loader = NeighborLoader(data, num_neighbors=[-1, -1], batch_size=500, input_nodes=data.test_mask)
    model = Net(24, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(5):
        model.train()
        total = examples = 0
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.batch_size
            examples += batch.batch_size
        losses.append(total / examples)
    assert examples == int(data.train_mask.sum()) and losses[-1] < losses[0]
    model.eval()
    correct = 0
    with torch.no_grad():
        for batch in test_loader:
            assert batch.test_mask[: batch.batch_size].all()
            prediction = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(-1)
            correct += int((prediction == batch.y[: batch.batch_size]).sum())
    accuracy = correct / int(data.test_mask.sum())
    assert accuracy > 0.9, accuracy


# --- as a DataLoader
# ------------------------------------------------------------------------------------------------------------------


def test_the_loader_is_a_dataloader() -> None:
    options = {
        "batch_size": 4,
        "shuffle": True,
        "drop_last": True,
        "num_workers": 3,
        "persistent_workers": True,
        "prefetch_factor": 2,
    }
    with pytest.warns(UserWarning, match="ignores prefetch_factor, persistent_workers"):
        loader = NeighborLoader(small(), [2], **options)
    assert isinstance(loader, DataLoader) and {name: getattr(loader, name, True) for name in options} == options
    assert len(loader) == 1 and len(loader.dataset) == 6 and isinstance(loader.sampler, RandomSampler)
    assert len(list(loader._get_iterator())) == 1 and str(loader) == "NeighborLoader()"
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 5


def test_a_call_samples_these_positions() -> None:
    data = random_data()
    nodes = torch.tensor([30, 10, 20])
    loader = NeighborLoader(
        data, [3, 2], nodes, batch_size=2, seed=1, input_id=torch.tensor([7, 8, 9]), transform=lambda b: (b, "mine")
    )
    batch, word = loader([2, 0])
    check(batch, data, 2)
    assert (
        word == "mine"
        and batch.n_id[:2].tolist() == [20, 30]
        and batch.input_id.tolist() == [9, 7]
        and loader.epoch == 0
    )
    for index in (torch.tensor([2, 0]), np.array([2, 0])):
        again = NeighborLoader(data, [3, 2], nodes, batch_size=2, seed=1, input_id=torch.tensor([7, 8, 9]))
        assert signature(again(index)) == signature(batch) != signature(again(index))
    assert loader([])[0].num_nodes == 0
    for wrong, message in (
        ([3], r"\[3, 3\]; expected \[0, 3\)"),
        ([-1], r"\[-1, -1\]"),
        ([0.5], "whole numbers"),
        ([True], "whole"),
        (1, "whole"),
    ):
        with pytest.raises(InputError, match=f"index .*{message}"):
            loader(wrong)
    assert signature(NeighborLoader(data, [2], [5]).collate_fn([0]))[3] == [0]


@pytest.mark.parametrize("filter_per_worker", [True, False])
@pytest.mark.filterwarnings("ignore:NeighborLoader ignores filter_per_worker")
def test_other_loaders_call_its_parts(filter_per_worker: bool) -> None:
    data = random_data()
    one = NeighborLoader(data, [2], range(50), filter_per_worker=filter_per_worker)
    assert isinstance(one([0]), Data) and isinstance(one.collate_fn([0]), Data if filter_per_worker else SamplerOutput)
    two = NeighborLoader(data, [2], range(50, 95))
    pairs = list(ZipLoader([one, two], batch_size=10, filter_per_worker=filter_per_worker))
    assert pairs[0][0].n_id[:10].tolist() == list(range(10)) and pairs[0][1].n_id[:10].tolist() == list(range(50, 60))
    plain = DataLoader(two.dataset, batch_size=20, collate_fn=two.collate_fn)
    assert len(pairs) == 5 and isinstance(next(iter(plain)), Data if filter_per_worker else SamplerOutput)


def test_a_sampler_gives_the_order() -> None:
    data, nodes = random_data(), torch.arange(100, 150)
    options = {"batch_size": 8, "seed": 1}
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))[:30]
    for sampler in (order.tolist(), order, SubsetRandomSampler(order.tolist(), torch.Generator().manual_seed(1))):
        loader = NeighborLoader(data, [2], nodes, sampler=sampler, drop_last=True, **options)
        batches = list(loader)
        ids = torch.cat([b.input_id for b in batches]).tolist()
        assert len(loader) == len(batches) == 3 and len(set(ids)) == 24 and set(ids) <= set(order.tolist())
        assert ids == order.tolist()[:24] or isinstance(sampler, SubsetRandomSampler)
    plain = signatures(NeighborLoader(data, [2], nodes, **options))
    assert signatures(NeighborLoader(data, [2], nodes, sampler=range(50), **options)) == plain
    assert (
        signatures(NeighborLoader(data, [2], nodes, batch_sampler=BatchSampler(range(50), 8, False), seed=1)) == plain
    )
    ragged = NeighborLoader(data, [2], nodes, batch_sampler=[[4, 5, 6], torch.tensor([7])])
    assert [b.input_id.tolist() for b in ragged] == [[4, 5, 6], [7]] and ragged.batch_size is None
    with pytest.raises(InputError, match=r"batch_sampler holds positions in \[50, 50\]; expected \[0, 50\)"):
        iter(NeighborLoader(data, [2], nodes, batch_sampler=[[50]]))


def test_pygs_imbalanced_sampler() -> None:
    data = random_data()
    data.y = (torch.arange(200) >= 190).long()
    mask = torch.arange(200) >= 50
    torch.manual_seed(0)
    sampler = ImbalancedSampler(data, input_nodes=mask)
    loader = NeighborLoader(data, [3, 2], mask, batch_size=50, sampler=sampler, bulk_size=2)
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    for batch in batches:
        check(batch, data, 2)
        assert torch.equal(batch.n_id[:50], batch.input_id) and mask[batch.input_id].all()
    # Half of 150 seeds are of the class of ten nodes: 75, standard deviation 6.1.
    assert abs(sum(int(b.y[:50].sum()) for b in batches) - 75) < 4.5 * 6.1


def test_transform_sampler_output() -> None:
    def transform(out: SamplerOutput) -> SamplerOutput:
        assert torch.equal(out.node[out.col], EDGES[1, out.edge])
        return out.to_bidirectional()

    (batch,) = NeighborLoader(small(), [-1], [0], transform_sampler_output=transform)
    assert batch.is_undirected() and "num_sampled_edges" not in batch and torch.equal(batch.w, batch.e_id + 1.0)
    (batch,) = NeighborLoader(
        small(), [-1], [0], transform_sampler_output=lambda o: SamplerOutput(o.node, o.row, o.col, None)
    )
    assert batch.input_id.tolist() == [0] and "e_id" not in batch and batch.num_nodes == 3
    with pytest.raises(InputError, match="transform_sampler_output returned NoneType; expected PyG's SamplerOutput"):
        next(iter(NeighborLoader(small(), [-1], [0], transform_sampler_output=lambda _: None)))


@pytest.mark.parametrize(
    "data", [Data(x=torch.arange(3.0)[:, None]), Data(num_nodes=3, edge_index=torch.empty((2, 0), dtype=torch.int64))]
)
@pytest.mark.parametrize(
    "options", [{}, {"subgraph_type": "induced"}, {"subgraph_type": "bidirectional"}, {"disjoint": True}]
)
def test_data_without_edges(data: Data, options: dict[str, Any]) -> None:
    batches = list(NeighborLoader(data, [2, 2], batch_size=2, **options))
    assert [b.n_id.tolist() for b in batches] == [[0, 1], [2]] and all(b.num_edges == len(b.e_id) == 0 for b in batches)
    assert ("edge_index" in batches[0]) == ("edge_index" in data)


def test_pin_memory_pins_where_there_is_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = []
    monkeypatch.setattr(pyg_loader, "pin_memory", lambda batch: pinned.append(batch) or batch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert len(list(NeighborLoader(small(), [2], pin_memory=True))) == 6 and not pinned
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert list(NeighborLoader(small(), [2], pin_memory=True)) == pinned != []


# --- time
# -----------------------------------------------------------------------------------------------------------------


def timed_data(seed: int, nodes: int = 30, edges: int = 200, times: int = 8) -> Data:
    """Node and edge times with many ties, multi-edges and self loops."""
    rng = torch.Generator().manual_seed(seed)
    data = Data(edge_index=torch.randint(nodes, (2, edges), generator=rng), num_nodes=nodes)
    data.at = torch.randint(times, (nodes,), generator=rng)
    data.edge_at = torch.randint(times, (edges,), generator=rng)
    return data


def tree(data: Data, root: int, moment: float, hops: int, of_nodes: bool) -> tuple[Counter[int], set[int]]:
    """Edges of a seed's whole tree, by column, and its nodes: the definition."""
    edges, nodes, frontier = Counter[int](), {root}, {root}
    for _ in range(hops):
        found = set()
        for column, (u, v) in enumerate(data.edge_index.T.tolist()):
            if v in frontier and (data.at[u] if of_nodes else data.edge_at[column]) <= moment:
                edges[column] += 1
                found.add(u)
        frontier = found - nodes
        nodes |= frontier
    return edges, nodes


@pytest.mark.parametrize("attribute", ["at", "edge_at"])
@pytest.mark.parametrize("seed", range(3))
def test_whole_trees_have_exactly_what_is_not_later_than_their_seed(attribute: str, seed: int) -> None:
    data = timed_data(seed)
    seeds, moments = torch.tensor([3, 3, 7, 20, 11]), torch.tensor([2.5, 6, 0, -1, 7])
    loader = NeighborLoader(data, [-1, -1], seeds, moments, time_attr=attribute, batch_size=3)
    for batch, first in zip(loader, (0, 3)):
        assert torch.equal(batch.seed_time, moments[first : first + 3])
        for i in range(batch.batch_size):
            edges, nodes = tree(data, int(seeds[first + i]), float(moments[first + i]), 2, attribute == "at")
            inside = batch.batch == i
            assert sorted(batch.n_id[inside].tolist()) == sorted(nodes)
            assert Counter(batch.e_id[inside[batch.edge_index[1]]].tolist()) == edges


@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("replace", [False, True])
def test_no_sample_is_later_than_its_seed(strategy: str, replace: bool) -> None:
    data = timed_data(5, edges=900, times=40)
    options = {"temporal_strategy": strategy, "replace": replace, "batch_size": 7, "seed": 4}
    for batch in NeighborLoader(data, [3, 2], time_attr="at", **options):
        assert "seed_time" not in batch, "as in PyG: it was not given"
        assert (batch.at <= batch.at[batch.batch]).all(), "the first nodes are the seeds"
    moments = torch.arange(30) + 5
    for batch in NeighborLoader(data, [3, 2], None, moments, time_attr="edge_at", **options):
        assert (batch.edge_at <= batch.seed_time[batch.batch[batch.edge_index[1]]]).all()


def test_the_last_edges_are_those_before_the_seed() -> None:
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4, 5], [0] * 5]), t=torch.tensor([5, 1, 4, 2, 3]), num_nodes=6)
    loader = NeighborLoader(data, [2], [0, 0, 0], [9, 3, 1], time_attr="t", temporal_strategy="last", batch_size=1)
    assert [b.t.tolist() for b in loader] == [[4, 5], [2, 3], [1]]


def test_temporal_samples_follow_the_seed_not_bulks() -> None:
    data, shown = timed_data(1), []
    for bulk_size in (1, 4):
        loader = NeighborLoader(data, [3, 3], time_attr="at", batch_size=4, shuffle=True, seed=2, bulk_size=bulk_size)
        shown.append(signatures(loader))
    assert shown[0] == shown[1]


# --- refusals
# ----------------------------------------------------------------------------------------------------------------------
# ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_attr": "tagg"}, "time_attr is 'tagg'; expected the name of an attribute.*did you mean 'tag'"),
        ({"time_attr": 3}, "time_attr is 3; expected the name of an attribute"),
        ({"time_attr": "x"}, r"time_attr: data.x has shape \[6, 2\]; expected \[6\].*or \[9\]"),
        ({"time_attr": "name"}, "time_attr: data.name is str; expected a tensor"),
        ({"time_attr": "nan", "input_time": torch.zeros(6)}, "time_attr: data.nan: times hold NaN"),
        ({"time_attr": "y", "weight_attr": "w"}, "both time_attr and weight_attr are given"),
        ({"time_attr": "y", "subgraph_type": "induced"}, "disjoint is not supported with subgraph_type 'induced'"),
        ({"time_attr": "w"}, "time_attr is 'w', a time of edges; give the seeds theirs by input_time"),
        ({"time_attr": "y", "input_time": [1, 2]}, r"input_time has shape \[2\]; expected \[6\]"),
        ({"time_attr": "y", "input_time": torch.full((6,), float("nan"))}, "input_time holds NaN"),
        ({"time_attr": "y", "input_time": torch.zeros(6, dtype=torch.bool)}, "input_time is bool; expected numbers"),
        ({"input_time": torch.zeros(6)}, "input_time is given without time_attr"),
        ({"temporal_strategy": "last"}, "temporal_strategy is given without time_attr"),
        (
            {"temporal_strategy": "lst"},
            "temporal_strategy is 'lst'; expected one of uniform, last; did you mean 'last'",
        ),
        ({"disjoint": True, "subgraph_type": "induced"}, "disjoint is not supported with subgraph_type 'induced'"),
        ({"subgraph_type": "inducd"}, "subgraph_type is 'inducd'; expected one of .*; did you mean 'induced'"),
        ({"subgraph_type": 3}, "subgraph_type is 3; expected one of directional, bidirectional, induced"),
        ({"neighbor_sampler": object()}, "neighbor_sampler is object; expected a millrace.PyGSampler"),
        ({"sampler": iter([0])}, "sampler is list_iterator; expected an iterable with a length"),
        ({"batch_sampler": 3}, "batch_sampler is int; expected an iterable with a length"),
        ({"sampler": [0], "shuffle": True}, "DataLoader refuses.*mutually exclusive"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "DataLoader refuses.*mutually exclusive"),
        ({"custom_cls": HeteroData}, "custom_cls is for feature stores, and data is Data"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": None}, "batch_size is None"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"bulk_size": 0}, "bulk_size is 0"),
        ({"prefetch_bulks": 0}, "prefetch_bulks is 0"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"seed": 1, "generator": torch.Generator()}, "both seed and generator"),
        ({"seed": "1"}, "seed is '1'; expected a whole number"),
        ({"generator": 1}, "generator is int; expected a torch.Generator"),
        ({"transform": 1}, "transform is int; expected a function"),
        ({"transform_sampler_output": 1}, "transform_sampler_output is int; expected a function"),
        ({"weight_attr": 1}, "weight_attr is 1; expected the name"),
        ({"input_nodes": object()}, "input_nodes is object; expected a tensor"),
        ({"input_id": "a"}, "input_id is str; expected a tensor"),
        ({"weight_attr": "ww"}, "weight_attr is 'ww'.*did you mean 'w'"),
        ({"weight_attr": "x"}, "weight_attr: data.x has shape"),
        ({"weight_attr": "negative"}, "weight_attr: data.negative holds negative, NaN"),
        ({"weight_attr": "nan"}, "weight_attr: data.nan holds negative, NaN"),
        ({"input_nodes": [0, 6]}, r"input_nodes lie in \[0, 6\]"),
        ({"input_nodes": [-1]}, r"input_nodes lie in \[-1, -1\]"),
        ({"input_nodes": torch.zeros(5, dtype=torch.bool)}, r"input_nodes is a mask of shape \[5\]"),
        ({"input_nodes": [0.5]}, "input_nodes is float"),
        ({"input_nodes": [[0]]}, r"input_nodes is int64\[1, 1\]"),
        ({"input_nodes": "paper"}, "input_nodes names a node type"),
        ({"input_nodes": ("paper", torch.tensor([0]))}, "input_nodes names a node type"),
        ({"input_id": [1, 2]}, r"input_id has shape \[2\]; expected \[6\]"),
        ({"num_neighbors": [2, 0]}, "num_neighbors: .*holds 0"),
        ({"num_neighbors": [-2]}, "num_neighbors: .*holds -2"),
        ({"num_neighbors": 5}, "num_neighbors is 5"),
        ({"num_neighbors": [2.5]}, r"num_neighbors is \[2.5\]"),
        ({"num_neighbors": {("a", "to", "b"): [2]}}, "num_neighbors is for each edge type, and data has one"),
    ],
)
def test_refused_by_name(options: dict[str, Any], message: str) -> None:
    data = small()
    data.negative, data.nan = torch.full((9,), -1.0), torch.full((9,), float("nan"))
    with pytest.raises(InputError, match=message):
        NeighborLoader(data, **{"num_neighbors": [2], **options})


@pytest.mark.filterwarnings("ignore:Unable to accurately infer")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((object(), object()), r"data is \(object, object\); expected a pair of FeatureStore and GraphStore"),
        ("cora", "data is str; expected a torch_geometric.data.Data"),
        (Data(), "data has neither node attributes nor edges"),
        (Data(x=torch.zeros(3, 1), adj_t=torch.eye(3)), "data has adj_t, which is not supported"),
        (Data(x=torch.zeros(3, 1), edge_index=torch.zeros(4, dtype=torch.int64)), r"edge_index has shape \[4\]"),
        (
            Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0], [3]])),
            r"edge ids lie in \[0, 3\]; expected \[0, 3\)",
        ),
    ],
)
def test_refused_data(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NeighborLoader(data, [2])


def test_unknown_argument_is_a_type_error_that_helps() -> None:
    with pytest.raises(TypeError, match="no argument 'batchsize'; did you mean 'batch_size'"):
        NeighborLoader(small(), [2], batchsize=3)
    with pytest.raises(InputError, match="no argument 'weight_attribute'; did you mean 'weight_attr'"):
        NeighborLoader(small(), [2], weight_attribute="w")


def test_dataloader_arguments_without_effect_are_named_in_one_warning() -> None:
    idle = {"persistent_workers": True, "worker_init_fn": print, "prefetch_factor": 4, "collate_fn": print}
    with pytest.warns(UserWarning, match="ignores") as caught:
        loader = NeighborLoader(small(), [2], num_workers=2, filter_per_worker=True, **idle)
    (warning,) = caught
    for name in (*idle, "filter_per_worker"):
        assert name in str(warning.message)
    assert warning.filename == __file__ and loader.num_workers == 2 and len(list(loader)) == 6


def test_dataloader_arguments_at_their_defaults_are_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NeighborLoader(
            small(), [2], pin_memory=False, persistent_workers=False, prefetch_factor=None, num_workers=1, sampler=None
        )


def test_pyg_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(MissingExtraError, match=r"NeighborLoader needs PyTorch Geometric.*\.\[pyg\]"):
        NeighborLoader(object(), [2])
    with pytest.raises(MissingExtraError, match="to_pyg needs"):
        to_pyg(make_minibatch(np.random.default_rng(0), (2, 4)))


# --- exports of a MiniBatch
# -----------------------------------------------------------------------------------------------------------


def minibatch(expand: Any = "new", edge_weight: Any = None) -> Any:
    graph = from_edges(EDGES[0].numpy(), EDGES[1].numpy(), 6, edge_weight=edge_weight, keep_edge_id=True)
    sampler = NeighborSampler((-1, -1), expand=expand, edge_ids=True)
    bulk = sampler.sample(graph, SeedPlan(np.array([0, 5]), 2, 1, 0, shuffle=False).request(0, 0), cpu)
    return graph, bulk.check().minibatches[0]


def test_to_pyg() -> None:
    graph, m = minibatch(edge_weight=np.arange(1.0, 10.0))
    data = small()
    out = to_pyg(m, data.x, data.y)
    assert out.batch_size == 2 and out.input_id.tolist() == [0, 5] and out.num_nodes == 6
    assert out.num_sampled_nodes == [2, 2, 2] and out.num_sampled_edges == [3, 3]
    assert torch.equal(out.x, data.x[out.n_id]) and torch.equal(out.y, data.y[out.n_id])
    columns = torch.from_numpy(graph.edge_id)[out.e_id]
    assert torch.equal(out.n_id[out.edge_index], EDGES[:, columns])
    assert torch.equal(out.edge_weight, columns + 1.0)
    (loaded,) = NeighborLoader(data, [-1, -1], [0, 5], batch_size=2)
    assert torch.equal(loaded.edge_index, out.edge_index) and torch.equal(loaded.e_id, columns)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: x.numpy(), lambda x: ArrayFeatures(x.numpy())])
def test_to_pyg_features_of_any_kind_are_copied(form: Any) -> None:
    x = torch.arange(12.0).view(6, 2)
    out = to_pyg(minibatch()[1], form(x))
    assert torch.equal(out.x, x[out.n_id]) and "y" not in out and "edge_weight" not in out
    out.x.zero_()
    assert x.any()


def test_to_pyg_owns_its_memory() -> None:
    m = make_minibatch(np.random.default_rng(0), (2, 5, 9))
    out = to_pyg(m)
    whole = m.blocks[0]
    for ours, theirs in (
        (out.n_id, whole.src),
        (out.e_id, whole.edge_id),
        (out.input_id, m.seeds),
        (out.edge_weight, whole.weight),
    ):
        assert np.array_equal(ours.numpy(), theirs) and not np.shares_memory(ours.numpy(), theirs)


def test_to_pyg_refuses_short_tables_and_layers_apart() -> None:
    m = minibatch()[1]
    for short in (torch.zeros(3, 2), np.zeros((3, 2)), ArrayFeatures(np.zeros((3, 2), np.float32))):
        with pytest.raises(InputError, match="features has 3 rows and the minibatch names node 5"):
            to_pyg(m, short)
    with pytest.raises(InputError, match="labels has 2 rows"):
        to_pyg(m, None, torch.zeros(2))
    with pytest.raises(InputError, match=r"2 edge lists.*expand='new'.*to_dgl_blocks"):
        to_pyg(minibatch("all")[1])
    single = make_minibatch(np.random.default_rng(0), (2, 5), nested=False)
    assert to_pyg(single).num_sampled_nodes == [2, 3]


class FakeBlock:
    def __init__(self, data: Any, num_src_nodes: int, num_dst_nodes: int) -> None:
        kind, (self.indptr, self.indices, self.edge_ids) = data
        assert kind == "csc"
        self.num_src, self.num_dst = num_src_nodes, num_dst_nodes
        self.srcdata, self.dstdata, self.edata = {}, {}, {}


@pytest.fixture
def fake_dgl(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("dgl")
    module.create_block, module.NID, module.EID = FakeBlock, "_ID", "_ID"
    monkeypatch.setitem(sys.modules, "dgl", module)


@pytest.mark.parametrize("expand", ["new", "all"])
@pytest.mark.usefixtures("fake_dgl")
def test_to_dgl_blocks(expand: str) -> None:
    _, m = minibatch(expand, np.arange(1.0, 10.0))
    blocks = to_dgl_blocks(m)
    assert len(blocks) == 2 and blocks[-1].dstdata["_ID"].tolist() == [0, 5]
    assert torch.equal(blocks[0].dstdata["_ID"], blocks[1].srcdata["_ID"])
    for block, ours in zip(blocks, m.blocks):
        # DGL refuses arrays of different types, and takes an empty third one as 0, 1, 2, ...
        assert {t.dtype for t in (block.indptr, block.indices, block.edge_ids)} == {
            torch.int64
        } and block.edge_ids.numel() == 0
        assert (block.num_src, block.num_dst) == (ours.num_src, ours.num_dst)
        assert block.indptr.tolist() == ours.indptr.tolist() and block.indices.tolist() == ours.indices.tolist()
        assert (
            block.srcdata["_ID"].tolist() == ours.src.tolist()
            and block.dstdata["_ID"].tolist() == ours.src[: ours.num_dst].tolist()
        )
        assert (
            block.edata["_ID"].tolist() == ours.edge_id.tolist()
            and block.edata["weight"].tolist() == ours.weight.tolist()
        )
        assert not np.shares_memory(block.edata["weight"].numpy(), ours.weight)


@pytest.mark.usefixtures("fake_dgl")
def test_to_dgl_blocks_without_ids_and_weights() -> None:
    (block,) = to_dgl_blocks(make_minibatch(np.random.default_rng(0), (2, 5), weight=False, edge_id=False))
    assert not block.edata


def test_dgl_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(MissingExtraError, match="to_dgl_blocks needs DGL"):
        to_dgl_blocks(minibatch()[1])
