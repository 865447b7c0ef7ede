"""Full-batch training: how a rank's rows and edges lie, and that ranks together compute what one process does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from millrace.pipeline.training.evaluate_together import evaluate_together
from millrace.stages.comm.base import Group
from millrace.stages.comm.solo import Solo
from millrace.stages.evaluate.measures import Scored
from millrace.stages.feed.full_batch_feed import FullBatchWork
from millrace.stages.fetch.visit import Mode, VisitFetch, Visits
from millrace.stages.forward_backward import forward_backward
from millrace.stages.messages import Fetched, Placement
from millrace.stages.models.base import Model, ModelConfig
from millrace.stages.models.gat import GAT
from millrace.stages.models.gcn import GCN
from millrace.stages.models.gin import GIN
from millrace.stages.models.sage import SAGE
from millrace.stages.neighbourhood.base import Neighbourhood
from millrace.stages.neighbourhood.full_batch import FullBatch, View
from millrace.stages.nn.dropout import dropout
from millrace.stages.placement.sharded import Sharded, Share
from millrace.stages.reduce.seed_weighted import AllSeedsMean
from millrace.storage.dataset import SPLITS, Dataset
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.accuracies import evaluate
from millrace.tests.contracts.full_batch import C, Case, F, job, make_case
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads
from millrace.tests.contracts.whole_graph import whole_graph

F64 = torch.float64
CASES = st.builds(make_case, st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4, 8]))
CHECKED = settings(deadline=None, max_examples=25)


def shares(case: Case, layers: int, prune: bool) -> list[Share]:
    return run_threads(lambda group: case.share(group, layers, prune), case.parts)


def edges_of(batches: list[FullBatch], p: int, view: Callable[[FullBatch], View]) -> dict[int, tuple[int, int, float]]:
    """The edges that a view of rank p holds, by their number in the whole graph: (source, destination, weight)."""
    batch, found = batches[p], {}
    for q, shard in enumerate(view(batch).shards):
        # What rank q sends lies in the order in which p expects it.
        sources = batches[q].names[view(batches[q]).wanted[p]] if q != p else batch.names
        for i, (a, b) in enumerate(zip(shard.lists.indptr, shard.lists.indptr[1:])):
            row = i if shard.rows is None else int(shard.rows[i])
            for e in range(a, b):
                number = int(batch.numbers.first[row] + shard.edge[e])
                assert number not in found
                weight = 1.0 if shard.weight is None else float(shard.weight[e])
                found[number] = int(sources[shard.lists.indices[e]]), int(batch.names[row]), weight
    return found


@given(case=CASES, layers=st.integers(1, 3), prune=st.booleans())
@CHECKED
def test_rows_and_edges_lie_in_the_order_in_which_layers_need_them(case: Case, layers: int, prune: bool) -> None:
    graph = case.graph
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    every = {
        e: (int(u), int(v), 1.0 if graph.edge_weight is None else float(graph.edge_weight[e]))
        for e, (u, v) in enumerate(zip(graph.indices, dst))
    }
    batches = [s.graph for s in shares(case, layers, prune)]
    near = [case.near(k) for k in range(layers + 1)]
    for p, batch in enumerate(batches):
        assert sorted(batch.names) == case.book.owned(p).tolist()
        assert batch.names.tolist() == case.book.owned(p)[batch.order].tolist()
        assert sorted(batch.names[: batch.num_seeds]) == sorted(set(case.split.train) & set(batch.names))
        assert np.array_equal(batch.numbers.own, graph.num_edges + batch.names)
        weights = (
            graph.in_degree
            if graph.edge_weight is None
            else np.bincount(dst, graph.edge_weight.astype(float), graph.num_nodes)
        )
        assert np.array_equal(batch.degree.numpy(), weights[batch.names])
        assert edges_of(batches, p, lambda b: b.whole) == {e: x for e, x in every.items() if x[1] in set(batch.names)}
        assert len(batch.layers) == layers
        assert batch.num_edges == batch.layers[0].num_edges
        for i, view in enumerate(batch.layers):
            if not prune:
                assert view is batch.whole
                continue
            hops = layers - 1 - i
            rows = set(batch.names[: view.num_dst])
            assert rows == set(np.flatnonzero(near[hops])) & set(batch.names)
            assert set(batch.names[: view.num_src]) == set(np.flatnonzero(near[hops + 1])) & set(batch.names)
            assert edges_of(batches, p, lambda b, i=i: b.layers[i]) == {e: x for e, x in every.items() if x[1] in rows}
            assert np.array_equal(view.kept, graph.in_degree[batch.names[: view.num_dst]])
    for i in range(layers):
        rows = near[layers - 1 - i] if prune else np.ones(graph.num_nodes, bool)
        assert sum(b.layers[i].remote_rows for b in batches) == case.remote_rows(rows)


@given(case=CASES, prune=st.booleans())
@CHECKED
def test_what_ranks_tell_each_other_beforehand_is_counted_as_graph(case: Case, prune: bool) -> None:
    def sent(group: ThreadGroup) -> tuple[int, int, int]:
        batch = case.share(group, 2, prune).graph
        # What is asked for, and for each rank how much of it each layer reads.
        ends = 8 * (group.size - 1) * (4 if prune else 1)
        asked = 8 * batch.whole.remote_rows
        return group.ledger.get("network", "graph"), sum(group.ledger.counts()), ends + asked

    for graph, everything, told in run_threads(sent, case.parts):
        assert graph == everything
        # With pruning also the rows that each hop reaches, each of them once.
        assert told <= graph <= told + (told if prune else 0)


@given(case=CASES)
@CHECKED
def test_bytes_are_those_of_the_arrays(case: Case) -> None:
    for share in shares(case, 2, True):
        batch = share.graph
        arrays = [batch.names, batch.order, batch.numbers.first, batch.numbers.own, *batch.whole.wanted]
        for s in batch.whole.shards:
            t = s.lists.transposed
            arrays += [s.lists.indptr, s.lists.indices, s.edge, t.indptr, t.dst, t.edge]
            arrays += [] if s.rows is None else [s.rows]
            arrays += [] if s.weight is None else [s.weight.numpy()]
        assert batch.nbytes == sum(a.nbytes for a in arrays)


@given(case=CASES, prune=st.booleans())
@CHECKED
def test_a_share_has_the_rows_of_its_nodes_in_their_order(case: Case, prune: bool) -> None:
    for share in shares(case, 2, prune):
        names = share.graph.names
        assert np.array_equal(share.x.numpy(), case.x[names])
        assert torch.equal(share.labels, case.labels[torch.from_numpy(names)])
        for name, rows in share.splits.items():
            assert sorted(names[rows.numpy()]) == sorted(set(getattr(case.split, name)) & set(names))
        assert sorted(share.splits["train"].tolist()) == list(range(share.graph.num_seeds))


@pytest.mark.parametrize(
    "change",
    [
        lambda b: replace(b, names=np.zeros_like(b.names)),
        lambda b: replace(b, order=b.order + 1),
        lambda b: replace(b, num_seeds=len(b.names) + 1),
        lambda b: replace(b, num_seeds=b.layers[-1].num_dst + 1),
        lambda b: replace(b, rank=1),
        lambda b: replace(b, layers=b.layers[::-1]),
        lambda b: replace(b, whole=replace(b.whole, wanted=(np.zeros(2, np.int32),))),
        lambda b: replace(b, whole=replace(b.whole, wanted=(np.array([b.whole.num_src], np.int32),))),
        lambda b: replace(b, whole=replace(b.whole, num_dst=1)),
    ],
)
def test_check_sees_bad_batches(change: Callable[[FullBatch], FullBatch]) -> None:
    batch = make_case(8, 1).share(Solo(), 2, True).graph
    assert batch.layers[0].num_src > batch.layers[1].num_dst
    with pytest.raises(AssertionError):
        change(batch).check()


def test_the_whole_data_are_one_part() -> None:
    case = make_case(9, 1)
    data = Placement(case.graph, ArrayFeatures(case.x), case.labels, torch.from_numpy(case.graph.in_degree), case.split)
    share = Sharded().place(data, None, job(Solo(), 2))  # type: ignore[arg-type]
    own = case.share(Solo(), 2, True)
    assert np.array_equal(share.graph.names, own.graph.names)
    assert torch.equal(share.x, own.x)
    assert edges_of([share.graph], 0, lambda b: b.whole) == edges_of([own.graph], 0, lambda b: b.whole)

    def rank(group: ThreadGroup) -> str:
        with pytest.raises(InputError) as e:
            Sharded().place(data, None, job(group, 2))  # type: ignore[arg-type]
        return str(e.value)

    assert run_threads(rank, 2) == ["2 ranks got the whole graph each; expected one part for each rank"] * 2


def test_nothing_is_left_out_where_training_depends_on_all_rows() -> None:
    case = make_case(8, 1)
    assert case.share(Solo(), 2, True, needs_all_rows=True).graph.layers[0].num_dst == case.graph.num_nodes
    assert case.share(Solo(), 2, True).graph.layers[-1].num_dst == len(case.split.train) < case.graph.num_nodes


def test_an_epoch_is_one_step_of_all_ranks() -> None:
    whole, share, of = FullBatchWork(), make_case(8, 1).share(Solo(), 2, True), job(Solo(), 2)
    assert whole.record() == {"name": "whole"} and whole.num_layers is None
    assert whole.num_minibatches(share, of) == 1
    with pytest.raises(InputError, match="minibatches_per_step is 3, but full-batch training takes one step an epoch"):
        whole.num_minibatches(share, replace(of, minibatches_per_step=3))
    feed = whole.feed(share, None, of, (0, 0))  # type: ignore[arg-type]
    got = feed.get(4, 0)
    assert (got.epoch, got.names is share.graph.names, feed.sample_s) == (4, True, 0.0)
    feed.release(4, 0), feed.close()


def test_modes_are_one_for_all_layers_or_one_for_each() -> None:
    assert VisitFetch(("keep",)).for_layers(3) == ("keep",) * 3
    assert VisitFetch(("keep", "halo")).for_layers(2) == ("keep", "halo")
    with pytest.raises(
        InputError, match="sar has 2 modes for a model of 3 layers; give one for each layer, or one for all"
    ):
        VisitFetch(("keep", "halo")).for_layers(3)


class Own(Model):
    """A layer of the user's own, with dropout before and after its messages."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(F, 4), nn.Linear(4, C)

    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        z = (self.first, self.last)[i](dropout(h, 0.3, self.training, neighbourhood.names))
        near = neighbourhood.apply(
            lambda s, d, w: torch.tanh(s + d) * (self.last.bias.sum() if i else 1.0), z, (), "mean"
        )
        return (
            dropout(
                near,
                0.3,
                self.training,
                None if neighbourhood.names is None else neighbourhood.names[: neighbourhood.num_dst],
            )
            + z[: neighbourhood.num_dst]
        )


CONFIGS: dict[str, ModelConfig | None] = {
    "sage": SAGE(hidden=8, layers=2, dropout=0.4),
    "sage, narrow": SAGE(hidden=4, layers=3, dropout=0.0, norm="layer", activation="elu"),
    "gcn": GCN(hidden=8, layers=2, dropout=0.3),
    "gcn, batch": GCN(hidden=6, layers=3, dropout=0.2, norm="batch"),
    "gat": GAT(hidden=6, layers=2, heads=2, dropout=0.3, attention_dropout=0.4),
    "gat, batch": GAT(hidden=8, layers=3, heads=4, dropout=0.0, attention_dropout=0.2, norm="batch"),
    "gin, batch": GIN(hidden=6, layers=2, dropout=0.2, norm="batch"),
    "own": None,
}
MODES: dict[str, tuple[Mode, ...]] = {
    "rematerialize": ("rematerialize",) * 3,
    "keep": ("keep",) * 3,
    "halo": ("halo",) * 3,
    "mixed": ("halo", "rematerialize", "keep"),
}
AHEAD = (0, 200, 1 << 30)


def build(name: str) -> Any:
    torch.manual_seed(5)
    config = CONFIGS[name]
    model = (Own() if config is None else config.build(F, C)).double()
    for p in model.parameters():
        nn.init.normal_(p)
    return model


def needs_all_rows(name: str) -> bool:
    return "batch" in name


def learn(model: Any, run: nn.Module, fetched: Fetched, group: Group, multilabel: bool) -> dict[str, Any]:
    """One step, as the loop takes it: what is learnt from `fetched`, by ``run(hoods, h)``."""
    policy = AllSeedsMean()
    statistics = policy.statistics(model, group)
    with statistics.minibatch(group.rank, group.size):
        done = forward_backward(run, fetched, 7, "multilabel" if multilabel else "multiclass", 1.0)
    statistics.finish(group.size)
    seeds, _ = policy.reduce(list(model.parameters()), done.seeds, group)
    grads = {k: torch.zeros_like(p) if p.grad is None else p.grad for k, p in model.named_parameters()}
    found = {**grads, **dict(model.named_buffers())}
    return {"loss": float(done.loss_sum), "seeds": seeds, **{k: t.cpu().clone().numpy() for k, t in found.items()}}


DENSE = 11
"""The case in which every rank has edges from every other one."""
ON_DEVICE = ("gat, batch", "gcn", "own")
"""Models that learn on a device too, where kernels are slow in the interpreter."""


def modes_of(at: int, seed: int, several: bool) -> list[str]:
    """The modes of a model: one, or on the dense graph all and on others two of the four, which differ by graph.

    One rank has nobody to visit, nor has a graph without edges or train nodes; and pruned or not, what a mode does is
    the same.
    """
    modes = list(MODES)
    if not several or seed % 8 in (2, 6):
        return [modes[(at + seed // 4) % len(modes)]]
    return modes if seed == DENSE else [modes[(at + seed) % 4], modes[(at + seed + 1) % 4]]


def train(
    group: Group, seeds: tuple[int, ...], size: int, on_device: bool = False
) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {}
    device = pretended_device.install_for_good() if on_device else None
    for seed in seeds:
        case = make_case(seed, size, multilabel=seed % 2 == 0)
        for at, name in enumerate(CONFIGS):
            if needs_all_rows(name) and case.graph.num_nodes == 1:
                continue
            if on_device and name not in ON_DEVICE[: 1 if size > 2 else 3]:
                continue
            layers = build(name).num_layers
            for prune in (True,) if on_device else (False, True):
                share = case.share(group, layers, prune, needs_all_rows(name))
                for mode in modes_of(at, seed, several=prune and size > 1 and not on_device):
                    modes = MODES[mode]
                    model = build(name) if device is None else build(name).to(device)
                    visits = Visits(share, modes[:layers], AHEAD[(seed + prune) % 3], group, device)
                    fetched = visits.fetch(replace(share.graph, epoch=seed))
                    found[seed, name, prune, mode] = learn(model, model, fetched, group, seed % 2 == 0)
    return found


class OfTrain(nn.Module):
    """The rows of the train nodes of a model's result."""

    def __init__(self, model: nn.Module, train: Tensor) -> None:
        super().__init__()
        self.model, self.train_nodes = model, train

    def forward(self, neighbourhoods: Any, h: Tensor) -> Tensor:
        return self.model(neighbourhoods, h)[self.train_nodes]


def dense(case: Case, seed: int, name: str) -> dict[str, Any]:
    model, train = build(name), torch.from_numpy(case.split.train)
    neighbourhoods = (whole_graph(case.graph, F64),) * model.num_layers
    fetched = Fetched(seed, 0, neighbourhoods, torch.from_numpy(case.x), case.labels[train])
    return learn(model, OfTrain(model, train), fetched, Solo(), seed % 2 == 0)


@pytest.mark.parametrize(("size", "seeds"), [(1, (8,)), (2, (12, 14)), (3, (2, 5)), (4, (DENSE,))])
def test_models_learn_what_they_learn_from_the_whole_graph(size: int, seeds: tuple[int, ...]) -> None:
    """With dropout and attention dropout, for any number of ranks, in every mode, pruned or not."""
    check(size, [train(Solo(), seeds, 1)] if size == 1 else run_ranks(train, size, seeds, size, timeout_s=240))


@pytest.mark.usefixtures("on_device")
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning")
@pytest.mark.parametrize(("size", "seeds"), [(1, (9,)), (2, (13,)), (3, (DENSE,))])
def test_models_learn_the_same_on_a_device(size: int, seeds: tuple[int, ...]) -> None:
    check(
        size, [train(Solo(), seeds, 1, True)] if size == 1 else run_ranks(train, size, seeds, size, True, timeout_s=240)
    )


def check(size: int, ranks: list[Any]) -> None:
    """Compare with a step on the whole graph."""
    wanted: dict[tuple[int, str], dict[str, Any]] = {}
    for seed, name, prune, mode in ranks[0]:
        case = make_case(seed, size, multilabel=seed % 2 == 0)
        want = wanted.setdefault((seed, name), dense(case, seed, name))
        got = [rank[seed, name, prune, mode] for rank in ranks]
        what = f"{name}, {mode}, {'pruned' if prune else 'whole'}, case {seed}"
        assert sum(g["loss"] for g in got) == pytest.approx(want["loss"], rel=1e-10), what
        for key in want.keys() - {"loss"}:
            for g in got:
                np.testing.assert_allclose(g[key], want[key], rtol=1e-10, atol=1e-10, err_msg=f"{what}: {key}")


def accuracy_of(scored: Scored | None) -> float | None:
    return None if scored is None else scored.accuracy


def evaluated(group: Group, size: int) -> tuple[list[dict[str, float | None]], dict[str, dict[str, int]], list[bool]]:
    ledger: Any = getattr(group, "_ledger", None)
    found, modes = [], []
    for seed, name, multilabel in EVALUATED:
        case = without_validation(make_case(seed, size, multilabel), seed)
        model = build(name)
        model.convs[0].eval()
        share = case.share(group, model.num_layers, seed % 2 == 0)
        visits = Visits(share, ("keep",) * model.num_layers, 0, group)
        found.append({split: accuracy_of(evaluate_together(model, visits, split)) for split in SPLITS})
        modes.append(model.training and not model.convs[0].training)
    return found, {} if ledger is None else ledger.as_record(), modes


EVALUATED = [
    (8, "sage", False),
    (11, "gat", True),
    (3, "gcn, batch", False),
    (4, "gin, batch", True),
    (9, "gat, batch", False),
]


def without_validation(case: Case, seed: int) -> Case:
    return case if seed % 2 else replace(case, split=replace(case.split, val=np.empty(0, np.int64)))


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_together_evaluate_as_one_process_does(size: int) -> None:
    ranks = [evaluated(Solo(), 1)] if size == 1 else run_ranks(evaluated, size, size)
    seen = []
    for at, (seed, name, multilabel) in enumerate(EVALUATED):
        case = without_validation(make_case(seed, size, multilabel), seed)
        data = Dataset(
            "d",
            case.graph,
            ArrayFeatures(case.x),
            case.labels.numpy(),
            case.split,
            C,
            "multilabel" if multilabel else "multiclass",
        )
        want = evaluate(build(name), data, whole_graph(case.graph, F64).degree_rows)
        assert [found[at] for found, _, _ in ranks] == [want] * size
        seen += want.values()
    assert None in seen and len(set(seen)) > 4
    for _, record, modes in ranks:
        assert all(modes), "every module has its mode back"
        assert not record or record["evaluation"]["activations"] > 0 == record["network"]["activations"]


def test_a_batch_that_is_no_more_than_its_train_nodes_sends_nothing() -> None:
    """Rounds in which nothing travels are left out, on both sides."""

    def rank(group: ThreadGroup) -> int:
        case = make_case(2, 4)
        share = case.share(group, 2, True)
        model = build("sage")
        learn(model, model, Visits(share, MODES["keep"][:2], 0, group).fetch(share.graph), group, False)
        return group.ledger.get("network", "activations")

    assert make_case(2, 4).graph.num_edges == 0
    assert run_threads(rank, 4) == [0] * 4
