"""Tables of learnt features: torch's embeddings and optimisers, on any number of ranks, moving touched rows alone."""

import numpy as np
import pytest
import torch
from torch import nn

from millrace.stages.learned import table as module
from millrace.stages.learned.table import LearnedTable, initial_rows, summed
from millrace.tests.contracts.thread_ranks import run_threads

OPTIMIZERS = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam, "sgd": torch.optim.SGD}
V, D, STEPS, MINIBATCHES, SEED = 23, 3, 4, 4, 7
UNTOUCHED = 5
"""The last nodes, which no minibatch reads."""
TARGET = torch.from_numpy(np.random.default_rng(0).random((V, D)))


def nodes_of(step, minibatch):
    """Distinct nodes; none of them for some minibatches."""
    rng = np.random.default_rng([step, minibatch])
    return rng.permutation(V - UNTOUCHED)[: rng.choice([0, 1, 5, 9])].astype([np.int32, np.int64][minibatch % 2])


def loss_of(rows, nodes):
    return ((rows - TARGET[torch.from_numpy(nodes.astype(np.int64))]) ** 2).sum()


def train(group, optimizer, steps=range(STEPS), state=None, dtype=torch.float64, decay=0.0):
    table = LearnedTable(V, D, dtype, SEED, group, optimizer, lr=0.1, weight_decay=decay)
    if state is not None:
        table.load(state)
    for step in steps:
        for first in range(0, MINIBATCHES, group.size):
            nodes = nodes_of(step, first + group.rank)
            rows = table.take(nodes)
            if len(nodes):
                loss_of(rows, nodes).backward()
        table.sum_gradients(2.0)
        table.step(1 / (1 + step))
    return table


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_steps_are_those_of_an_embedding_of_torch(optimizer):
    tables = run_threads(lambda group: train(group, optimizer), 1)
    oracle = nn.Embedding.from_pretrained(initial_rows(np.arange(V), D, torch.float64, SEED), freeze=False, sparse=True)
    steps = OPTIMIZERS[optimizer](oracle.parameters(), lr=0.1)
    for step in range(STEPS):
        steps.zero_grad()
        steps.param_groups[0]["lr"] = 0.1 / (1 + step)
        batches = [nodes_of(step, m) for m in range(MINIBATCHES)]
        loss = sum(loss_of(oracle(torch.from_numpy(n.astype(np.int64))), n) for n in batches) / 2
        loss.backward()
        steps.step()
    torch.testing.assert_close(tables[0].rows.detach(), oracle.weight.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_rows_that_a_step_reads_decay_as_by_a_penalty(optimizer, size):
    """Half the decay times the squared norm of each row that the step reads, once, beside the loss."""
    rows = torch.cat([t.rows.detach() for t in run_threads(lambda g: train(g, optimizer, decay=0.3), size)])
    oracle = nn.Embedding.from_pretrained(initial_rows(np.arange(V), D, torch.float64, SEED), freeze=False, sparse=True)
    steps = OPTIMIZERS[optimizer](oracle.parameters(), lr=0.1)
    for step in range(STEPS):
        steps.zero_grad()
        steps.param_groups[0]["lr"] = 0.1 / (1 + step)
        batches = [nodes_of(step, m) for m in range(MINIBATCHES)]
        loss = sum(loss_of(oracle(torch.from_numpy(n.astype(np.int64))), n) for n in batches) / 2
        read = torch.from_numpy(np.unique(np.concatenate(batches)))
        (loss + 0.15 * oracle(read).square().sum()).backward()
        steps.step()
    torch.testing.assert_close(rows, oracle.weight.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_any_number_of_ranks_gives_the_same_rows(optimizer, size):
    alone = run_threads(lambda group: train(group, optimizer), 1)[0]
    shared = torch.cat([t.rows.detach() for t in run_threads(lambda group: train(group, optimizer), size)])
    torch.testing.assert_close(shared, alone.rows.detach(), rtol=0, atol=1e-13)
    before = initial_rows(np.arange(V), D, torch.float64, SEED)
    assert torch.equal(shared[-UNTOUCHED:], before[-UNTOUCHED:])
    assert not torch.equal(shared[:-UNTOUCHED], before[:-UNTOUCHED])


def test_rows_that_are_read_travel_and_no_others():
    size = 2

    def work(group):
        table = LearnedTable(V, D, torch.float32, SEED, group)
        nodes = nodes_of(0, group.rank)
        table.take(nodes).sum().backward()
        table.sum_gradients(1.0)
        table.step()
        return dict(group.ledger.as_record()["network"]), nodes, table.bounds

    found = run_threads(work, size)
    for rank, (sent, nodes, bounds) in enumerate(found):
        theirs = found[1 - rank][1]
        mine_of_them = int(((theirs >= bounds[rank]) & (theirs < bounds[rank + 1])).sum())
        foreign = int(((nodes < bounds[rank]) | (nodes >= bounds[rank + 1])).sum())
        assert sent["features"] == mine_of_them * D * 4
        assert sent["gradients"] == foreign * D * 4
        assert sent["control"] == 2 * foreign * 8
    assert sum(sent["features"] for sent, _, _ in found)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (1, 4), (4, 2)])
def test_a_state_goes_on_on_any_number_of_ranks(optimizer, sizes, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 2 * D * 8)
    before, after = sizes

    def half(group):
        table = train(group, optimizer, range(2))
        table.keep_best()
        return table.state()

    state = run_threads(half, before)[0]
    assert state["rows"].shape == (V, D)
    assert torch.equal(state["best"], state["rows"])
    whole = torch.cat([t.rows.detach() for t in run_threads(lambda group: train(group, optimizer), before)])
    tables = run_threads(lambda group: train(group, optimizer, range(2, STEPS), state), after)
    rows = torch.cat([t.rows.detach() for t in tables])
    if before == after:
        assert torch.equal(rows, whole)
    torch.testing.assert_close(rows, whole, rtol=0, atol=1e-13)
    for table in tables:
        table.use_best()
    assert torch.equal(torch.cat([t.rows.detach() for t in tables]), state["best"])


@pytest.mark.parametrize("size", [1, 3])
def test_the_file_has_all_rows_when_any_rank_reads_it(size, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 2 * D * 4)
    path = tmp_path / "learned.npy"

    def work(group):
        table = train(group, "sgd", dtype=torch.float32)
        table.write(path)
        return np.load(path), table.rows.detach().numpy()

    found = run_threads(work, size)
    rows = np.concatenate([own for _, own in found])
    assert all(np.array_equal(read, rows) for read, _ in found)
    assert [p.name for p in tmp_path.iterdir()] == ["learned.npy"]


def test_more_ranks_than_nodes():
    def work(group):
        table = LearnedTable(2, D, torch.float64, SEED, group, "adam", lr=0.5)
        table.take(np.arange(2) if group.rank == 0 else np.empty(0, np.int64)).sum().backward()
        table.sum_gradients(1.0)
        table.step()
        return table.rows.detach()

    rows = torch.cat(run_threads(work, 4))
    # The first step of Adam is as long as its rate.
    torch.testing.assert_close(rows, initial_rows(np.arange(2), D, torch.float64, SEED) - 0.5, rtol=0, atol=1e-6)


def test_no_seeds_take_no_step_and_leave_nothing_behind():
    def work(group):
        table = LearnedTable(V, D, torch.float64, SEED, group, "sgd")
        table.take(np.arange(4)).sum().backward()
        table.sum_gradients(0.0)
        table.step()
        table.sum_gradients(1.0)
        table.step()
        return table.rows.detach()

    assert torch.equal(run_threads(work, 1)[0], initial_rows(np.arange(V), D, torch.float64, SEED))


def test_initial_rows_are_of_node_and_seed_and_spread_as_they_say():
    whole = initial_rows(np.arange(4000), 5, torch.float64, SEED)
    assert torch.equal(whole[100:200], initial_rows(np.arange(100, 200), 5, torch.float64, SEED))
    assert not torch.equal(whole[:9], initial_rows(np.arange(9), 5, torch.float64, SEED + 1))
    assert whole.abs().max() <= (3 / 5) ** 0.5
    assert abs(float((whole**2).sum(1).mean()) - 1) < 0.05
    assert float(whole.mean(0).abs().max()) < 0.05


def test_rows_of_an_id_are_summed():
    ids, rows = summed(torch.tensor([4, 1, 4]), torch.tensor([[1.0], [2.0], [3.0]]))
    assert ids.tolist() == [1, 4] and rows.tolist() == [[2.0], [4.0]]


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_states_of_earlier_versions_which_are_torchs_go_on(optimizer):
    """Checkpoints had torch's own state of the rows, by its names."""
    oracle = nn.Embedding.from_pretrained(initial_rows(np.arange(V), D, torch.float64, SEED), freeze=False, sparse=True)
    steps = OPTIMIZERS[optimizer](oracle.parameters(), lr=0.1)

    def step(number):
        steps.zero_grad()
        steps.param_groups[0]["lr"] = 0.1 / (1 + number)
        batches = [nodes_of(number, m) for m in range(MINIBATCHES)]
        (sum(loss_of(oracle(torch.from_numpy(n.astype(np.int64))), n) for n in batches) / 2).backward()
        steps.step()

    for number in range(2):
        step(number)
    saved = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in steps.state[oracle.weight].items()}
    state = {"rows": oracle.weight.detach().clone(), "best": None, "optimizer": saved}
    tables = run_threads(lambda group: train(group, optimizer, range(2, STEPS), state), 2)
    for number in range(2, STEPS):
        step(number)
    rows = torch.cat([t.rows for t in tables])
    torch.testing.assert_close(rows, oracle.weight.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3])
def test_the_norm_of_all_rows_and_their_scaling(size):
    """As of a dense gradient, whoever owns the rows; a row that two minibatches read has one gradient."""

    def work(group):
        table = LearnedTable(V, D, torch.float64, SEED, group, "sgd", lr=1.0)
        for first in range(0, MINIBATCHES, size):
            nodes = nodes_of(1, first + group.rank) if first + group.rank < MINIBATCHES else np.empty(0, np.int64)
            loss_of(table.take(nodes), nodes).backward()
        table.sum_gradients(3.0)
        norm = table.gradient_norm()
        table.scale_gradients(0.25)
        table.step()
        return norm, table.rows.detach(), table.gradient_norm()

    found = run_threads(work, size)
    rows = initial_rows(np.arange(V), D, torch.float64, SEED).requires_grad_()
    sum(loss_of(rows[torch.from_numpy(n.astype(np.int64))], n) for n in (nodes_of(1, m) for m in range(4))).backward()
    gradient = rows.grad / 3
    assert [norm for norm, _, _ in found] == pytest.approx([float(gradient.norm())] * size)
    assert [after for _, _, after in found] == [0.0] * size
    torch.testing.assert_close(torch.cat([r for _, r, _ in found]), rows.detach() - gradient / 4, rtol=0, atol=1e-12)
