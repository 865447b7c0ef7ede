"""Parts with few cut edges, by METIS."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from ...storage.array_kinds import IdArray, Int32Array, IntArray
from ...storage.errors import RunError
from ...storage.graph import Graph
from ...storage.optional import present
from ...storage.partition.book import PartitionBook, TableBook
from ..random import Purpose, stream
from .base import check_parts
from .contiguous import Contiguous

APART_EDGES = 4_000_000
"""Graphs of so many edges are cut in a process of their own, whose start takes half a second."""
PIPED = 1 << 20
"""Entries that are piped at a time."""


@dataclass(frozen=True)
class Metis:
    """Multilevel graph partitioning (Karypis, Kumar, SIAM J. Sci. Comput. 1998): balanced in nodes, few edges cut.

    METIS sees the undirected simple graph: u and v are adjacent if an edge joins them in either direction, with the
    number of such edges as weight, and self loops left out. So it minimises the number of directed edges cut.

    Everything is in memory, about 40 bytes per adjacency. One thread runs for about a second per million edges, and
    tells of no progress. From `APART_EDGES` edges on it runs in a process of its own, which gives the memory back: it
    would stop a Dask worker's heartbeats, since METIS holds Python's global lock, and a driver would die of its
    memory.
    """

    name = "metis"

    def node_weights(self, graph: Graph) -> IdArray | None:
        """Weight of each node in the balance, [V]; None: all alike."""
        return None

    def assign(self, graph: Graph, parts: int, seed: int) -> PartitionBook:
        """See `Partitioner.assign`. A graph without edges, or with no more nodes than parts, is cut into ranges.

        Raises:
            RunError: the process of METIS failed, or was ended.
        """
        parts = check_parts(parts)
        if not graph.num_edges or graph.num_nodes <= parts:
            return Contiguous("nodes").assign(graph, parts, seed)
        if parts == 1:
            return TableBook(np.zeros(graph.num_nodes, np.int32), 1)
        cut = _apart if graph.num_edges >= APART_EDGES else _here
        owner = cut(graph.indptr, graph.indices, self.node_weights(graph), parts, seed)
        return Contiguous("nodes").assign(graph, parts, seed) if owner is None else TableBook(owner, parts)


@dataclass(frozen=True)
class MetisWork(Metis):
    """`Metis`, balanced in the work of full-batch training: a node counts 1, plus 1 for every mean in-degree of edges.

    Ranks that train full-batch compute the layers together, so the slowest one sets the pace; if degrees differ much,
    parts with equally many nodes can differ several times in edges.
    """

    name = "metis-work"

    def node_weights(self, graph: Graph) -> IdArray:
        return work_of(graph.in_degree)


def work_of(in_degree: IdArray) -> IdArray:
    """Weight of nodes with these in-degrees by `MetisWork`."""
    return max(1, int(in_degree.sum()) // max(1, len(in_degree))) + in_degree


def _here(indptr: IdArray, indices: IntArray, node_weights: IdArray | None, parts: int, seed: int) -> Int32Array | None:
    """Owner of every node, int32 [V]; None if there are only loops. More nodes than parts, and several parts."""
    adjacency = undirected(indptr, indices)
    if not adjacency.nnz:
        return None
    if node_weights is not None:
        # For a node that outweighs a part, METIS prints to the standard output and leaves parts empty.
        node_weights = np.minimum(node_weights, node_weights.sum() // parts)
    return metis(adjacency, parts, stream(seed, Purpose.PARTITION), node_weights)


def _apart(
    indptr: IdArray, indices: IntArray, node_weights: IdArray | None, parts: int, seed: int
) -> Int32Array | None:
    """`_here` in a process of its own, to which the arrays are piped. Raises RunError if it fails."""
    arrays = present((indptr, indices, node_weights))
    sent = json.dumps([parts, seed, [(a.dtype.str, len(a)) for a in arrays], os.getpid()])
    # METIS prints to the standard output: the result goes through a pipe of its own.
    reading, writing = os.pipe()
    with open(reading, "rb") as result:
        try:
            command = [sys.executable, "-P", "-m", __name__, str(writing), sent]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, pass_fds=[writing])
        finally:
            os.close(writing)
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as into:
                for array in arrays:
                    for first in range(0, len(array), PIPED):
                        into.write(np.ascontiguousarray(array[first : first + PIPED]).data)
            answer = result.read()
        except BaseException:
            process.kill()
            raise
        finally:
            code = process.wait()
    if code == 0:
        return np.frombuffer(answer, np.int32) if answer else None
    seen = signal.Signals(-code).name if code < 0 else answer.decode(errors="replace") or f"exit code {code}"
    raise RunError(
        f"METIS, in a process of its own, ended by {seen} while it cut {len(indptr) - 1:,} nodes and "
        f"{len(indices):,} edges into {parts} parts; it may take {80 * len(indices) / 2**30:,.1f} GiB of memory: "
        "free some, or use the method metis-streamed"
    )


def _main(writing: int, sent: str) -> None:
    """Process that `_apart` starts. If memory is short the system ends it, rather than the process that waits for it,
    and it ends with that."""
    parts, seed, shapes, parent = json.loads(sent)
    with suppress(AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(1)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with open(writing, "wb") as result:
        try:
            arrays: list[Any] = [np.empty(length, dtype) for dtype, length in shapes]
            piped: Any = sys.stdin.buffer
            if not all(piped.readinto(a.data) == a.nbytes for a in arrays):
                sys.exit(1)
            owner = _here(arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None, parts, seed)
            result.write(b"" if owner is None else owner.data)
        except Exception as e:  # whatever METIS raises
            result.write(f"{type(e).__name__}: {e}".encode())
            result.flush()
            sys.exit(1)


def undirected(indptr: IdArray, indices: IntArray) -> scipy.sparse.csr_array:
    """[V, V]: the number of edges of these lists between two different nodes, in either direction."""
    ones, nodes = np.ones(len(indices), np.int32), len(indptr) - 1
    edges = scipy.sparse.csr_array((ones, indices, indptr), shape=(nodes, nodes))
    both = scipy.sparse.csr_array(edges + edges.T)
    both.sum_duplicates()
    both.setdiag(0)
    both.eliminate_zeros()
    return both


def metis(adjacency: scipy.sparse.csr_array, parts: int, key: int, node_weights: IdArray | None = None) -> Int32Array:
    """Owner of every node by METIS, int32 [V].

    Args:
        adjacency: [V, V], symmetric, with positive whole numbers and nothing on the diagonal; at least one edge.
        parts: P, from 2 to V: for more, METIS prints to the process's standard output and returns no table.
        key: the seed is made of its last 31 bits.
        node_weights: int64 [V], weight of each node in the balance; by default all count the same.
    """
    import pymetis

    native, weights = pymetis.zero_copy_dtype(), adjacency.data
    _, part_of = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(np.asarray(adjacency.indptr, native), np.asarray(adjacency.indices, native)),
        vweights=None if node_weights is None else node_weights.astype(native),
        eweights=None if weights.min() == weights.max() else weights.astype(native),
        options=pymetis.Options(seed=key & 0x7FFF_FFFF),
    )
    return np.asarray(part_of, np.int32)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
