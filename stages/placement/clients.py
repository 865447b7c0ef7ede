"""Clients: more parts than ranks, down to one node each, and the rows that each would send and receive."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...storage.array_kinds import IdArray, Int32Array, IntArray
from ...storage.graph import Graph
from ...storage.partition.book import TableBook
from ...storage.store.store import open_store, write_store

KIND = "clients"
FOLDER = "clients"
"""Subfolder of a run's folder."""
EDGES_AT_ONCE = 1 << 24


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rows of an exchange, by client. A row goes once to each client that reads it, however many edges do."""

    rows_in: IdArray
    """int64 [K], rows of other clients that each one reads: B of the paper's formula."""
    rows_out: IdArray
    """int64 [K], rows that each one sends."""


def client_traffic(graph: Graph, client: IntArray, num_clients: int) -> Traffic:
    """Rows that one exchange moves between clients.

    Args:
        graph: V nodes.
        client: int [V], client of each node.
        num_clients: K.
    """
    rows_in, rows_out = np.zeros(num_clients, np.int64), np.zeros(num_clients, np.int64)
    # Destinations in the order of their client, so that pairs of (source, reader) are complete within a piece.
    order = np.argsort(client, kind="stable")
    ends = np.searchsorted(client[order], np.arange(num_clients), side="right")
    edges_before = np.concatenate([[0], np.cumsum(graph.in_degree[order])])
    first = 0
    while first < len(order):
        reach = int(np.searchsorted(edges_before, edges_before[first] + EDGES_AT_ONCE, side="right")) - 1
        stop = int(ends[client[order[max(first, min(reach, len(order)) - 1)]]])
        dst = order[first:stop]
        counts = graph.in_degree[dst]
        at = np.repeat(graph.indptr[dst] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        source, reader = graph.indices[at].astype(np.int64), np.repeat(client[dst].astype(np.int64), counts)
        crossing = client[source] != reader
        pairs = np.unique(source[crossing] * num_clients + reader[crossing])
        rows_in += np.bincount(pairs % num_clients, minlength=num_clients)
        rows_out += np.bincount(client[pairs // num_clients], minlength=num_clients)
        first = stop
    return Traffic(rows_in, rows_out)


def packed(client: IntArray, num_clients: int, ranks: int) -> TableBook:
    """Assign whole clients to ranks, each to the one with the fewest nodes so far, the largest first."""
    sizes = np.bincount(client, minlength=num_clients)
    load, rank_of = np.zeros(ranks, np.int64), np.empty(num_clients, np.int32)
    if num_clients == len(client) and sizes.max(initial=0) <= 1:
        rank_of[:] = np.arange(num_clients) * ranks // max(1, num_clients)
    else:
        for c in np.argsort(-sizes, kind="stable"):
            rank_of[c] = np.argmin(load)
            load[rank_of[c]] += sizes[c]
    return TableBook(rank_of[client], ranks)


def write_clients(folder: Path, client: IntArray, traffic: Traffic, fingerprint: dict[str, str]) -> None:
    """Store the clients of all nodes, and the rows that an exchange moves, in the folder of a run."""
    arrays = {"client": client.astype(np.int32), "rows_in": traffic.rows_in, "rows_out": traffic.rows_out}
    write_store(folder / FOLDER, KIND, fingerprint=fingerprint, meta={}, arrays=arrays, overwrite=True)


def read_traffic(folder: Path) -> tuple[Int32Array, Traffic]:
    """Read the files of `write_clients`: int32 [V], and the traffic of an exchange."""
    store = open_store(folder / FOLDER, KIND)
    return store.read("client"), Traffic(store.read("rows_in"), store.read("rows_out"))


def open_clients(folder: Path, nodes: IdArray) -> Int32Array:
    """int32 [n], the client of each of these nodes.

    Raises:
        StoreError: absent or damaged.
    """
    return open_store(folder / FOLDER, KIND).read("client")[nodes]
