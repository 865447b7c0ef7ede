"""Simulated clients: what an exchange moves between them, who simulates whom, and what is written down."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.messages import Phase
from millrace.stages.placement import clients
from millrace.stages.placement.boundary import WithBoundary
from millrace.stages.placement.clients import client_traffic, open_clients, packed, read_traffic, write_clients
from millrace.storage.errors import StoreError
from millrace.tests.contracts.full_batch import Case, job, make_case
from millrace.tests.contracts.thread_ranks import run_threads

CASES = st.builds(make_case, st.integers(0, 10**6), st.sampled_from([1, 2, 3, 5, 8]))


def pairs(case: Case, client: np.ndarray) -> set[tuple[int, int]]:
    """(node, client that reads it) where that is not its own."""
    dst = np.repeat(np.arange(case.graph.num_nodes), case.graph.in_degree)
    return {(u, int(client[v])) for u, v in zip(case.graph.indices.tolist(), dst.tolist()) if client[u] != client[v]}


@given(
    case=CASES,
    seed=st.integers(0, 100),
    kind=st.sampled_from(["nodes", "few", "some empty"]),
    at_once=st.sampled_from([1, 3, 7, 1 << 24]),
)
@settings(deadline=None)
def test_traffic_is_that_of_an_enumeration(case: Case, seed: int, kind: str, at_once: int) -> None:
    """In one piece or in many; the pieces never cut a client in two."""
    n = case.graph.num_nodes
    number = {"nodes": n, "few": max(1, n // 3), "some empty": 2 * n}[kind]
    rng = np.random.default_rng(seed)
    client = rng.permutation(n) if kind == "nodes" else rng.integers(0, number, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "EDGES_AT_ONCE", at_once)
        traffic = client_traffic(case.graph, client.astype(np.int32), number)
    moved = pairs(case, client)
    assert traffic.rows_in.tolist() == [sum(reader == c for _, reader in moved) for c in range(number)]
    assert traffic.rows_out.tolist() == [sum(client[u] == c for u, _ in moved) for c in range(number)]
    assert traffic.rows_in.dtype == traffic.rows_out.dtype == np.int64


@given(case=CASES)
@settings(deadline=None, max_examples=25)
def test_clients_that_are_ranks_send_what_ranks_send(case: Case) -> None:
    def counted(group: object) -> int:
        share = WithBoundary().place(case.part(group.rank), Phase(0, 0, 1), job(group, 1))
        return sum(share.boundary.counts), sum(len(w) for w in share.graph.whole.wanted)  # type: ignore[return-value]

    traffic = client_traffic(case.graph, case.part_of, case.parts)
    assert run_threads(counted, case.parts) == list(zip(traffic.rows_in.tolist(), traffic.rows_out.tolist()))


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12), ranks=st.integers(1, 5), seed=st.integers(0, 9))
@settings(deadline=None)
def test_whole_clients_are_dealt_out_evenly(sizes: list[int], ranks: int, seed: int) -> None:
    client = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int32)
    book = packed(client, len(sizes), ranks).check()
    assert (book.num_parts, book.num_nodes) == (ranks, len(client))
    rank = book.part(np.arange(len(client)))
    for c in range(len(sizes)):
        assert len(np.unique(rank[client == c])) <= 1
    # The last client that came to the fullest rank found no emptier one.
    load = np.bincount(rank, minlength=ranks)
    assert load.max() <= load.min() + max(sizes)


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 1), (10, 1), (10, 3), (2, 4), (1000, 7)])
def test_a_client_for_each_node_is_dealt_out_in_order(nodes: int, ranks: int) -> None:
    rank = packed(np.arange(nodes, dtype=np.int32), nodes, ranks).part(np.arange(nodes))
    assert (np.diff(rank) >= 0).all()
    assert np.ptp(np.bincount(rank, minlength=ranks)) <= 1


def test_what_was_written_down_is_read(tmp_path: Path) -> None:
    case = make_case(8, 3)
    traffic = client_traffic(case.graph, case.part_of, 3)
    for again in (case.part_of[::-1], case.part_of):  # the last one stands
        write_clients(tmp_path, again, traffic, {"run": "a"})
    client, read = read_traffic(tmp_path)
    assert client.dtype == np.int32
    assert client.tolist() == case.part_of.tolist()
    assert (read.rows_in.tolist(), read.rows_out.tolist()) == (traffic.rows_in.tolist(), traffic.rows_out.tolist())
    nodes = np.array([3, 0, 3])
    assert open_clients(tmp_path, nodes).tolist() == case.part_of[nodes].tolist()


def test_clients_that_are_lacking_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="clients"):
        open_clients(tmp_path, np.arange(2))
    with pytest.raises(StoreError, match="clients"):
        read_traffic(tmp_path)
