"""Products with rows of other ranks, for samplers that are written as matrices (`sample.matrix`).

The minibatches of a bulk are drawn side by side. One that multiplies waits until the rows of A that it needs are here:
once all of this rank's minibatches wait or are done, the rows that any of them needs are fetched along the grid column,
each once for a bulk, in the stages of a 1.5D product (`comm.row_fetch`). P is complete where it is needed, whatever the
grid: it does not travel along the grid row, since the rows of P are not smaller than those of A.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...storage.array_kinds import Int32Array
from ...storage.errors import InputError, RunError
from ...storage.graph import starts_of
from ..comm.solo import Solo
from ..kernels.row_block.layerwise import extract
from ..kernels.row_block.numbering import Numbering
from ..kernels.runtime.threads import get_num_threads
from ..kernels.sampling.samples import EdgeList
from ..kernels.sampling.sparse import Sparse, has_distinct_entries, merged
from .row_owners import IdArray, Ids, Owners
from .staged_rows import StagedRows


class HashedNumbering:
    """See `kernels.sampling.numbering.DenseNumbering`; without an array over all nodes."""

    def __init__(self, seeds: Ids) -> None:
        self._numbering = Numbering(seeds, seeds.dtype)

    @property
    def nodes(self) -> Ids:
        """[n] ids."""
        return self._numbering.nodes

    def add(self, sources: Ids) -> Ids:
        """Append those of `sources` that are new, ascending, and return them."""
        return self._numbering.add(sources)

    def positions(self, sources: Ids) -> Int32Array:
        """int32, position of each of `sources`; all of them must be known."""
        out = np.empty(len(sources), np.int32)
        self._numbering.positions(sources, out)
        return out


class Unavailable:
    """Stand-in for the graph, or its matrix, where no rank has it whole: what every rank knows of it, and an error for
    the rest."""

    def __init__(self, name: str, **known: Any) -> None:
        """
        Args:
            name: of what it stands for, in messages.
            known: attributes.
        """
        self._name = name
        self.__dict__.update(known)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise InputError(
            f"the sampler reads {attribute} of {self._name}, whose rows are on several ranks; use c.multiply and "
            "c.induced, or bulk.topology = 'replicated'"
        )


class RowProducts:
    """The matrix of the whole graph for the minibatches of one bulk of this rank."""

    def __init__(self, owners: Owners, keep_positions: bool) -> None:
        """All ranks call this together, and then `run`.

        Args:
            owners: of this rank.
            keep_positions: see `edges`.
        """
        column = owners.blocks.group
        self._distinct, in_degree = _facts(owners)
        self.graph = Unavailable(
            "the graph",
            num_nodes=owners.rows.num_nodes,
            num_edges=int(in_degree.sum()),
            in_degree=in_degree,
            is_weighted=owners.rows.graph.is_weighted,
        )
        """Its numbers of nodes and edges, and the in-degrees of all nodes."""
        self.A = Unavailable("c.A", num_rows=owners.rows.num_nodes)
        # A grid of one column: every block is this rank's to fetch.
        self._held = StagedRows(owners.rows, column, Solo()).answered_rows(starts=keep_positions)
        self._column, self._keep = column, keep_positions
        self._local = self._matrix()
        self._moved = threading.Condition()
        self._slots = threading.Semaphore(get_num_threads())
        self._wanted: list[IdArray] = []
        self._running = self._round = 0
        self._errors: list[BaseException] = []
        self._lost = False

    def _matrix(self) -> Sparse:
        """Rows here, by their places in `_held`."""
        return merged(self._held.graph, self.graph.num_nodes, distinct=self._distinct)

    def run(self, draws: Sequence[Callable[[], None]]) -> None:
        """Draw minibatches side by side, each by one call that uses `multiply` and `edges`. All ranks call this
        together; some may have nothing to draw.

        Raises:
            Exception: the first error of a call, once all are done.
        """
        self._running = len(draws)
        threads = [threading.Thread(target=self._draw, args=(draw,), daemon=True) for draw in draws]
        for thread in threads:
            thread.start()
        try:
            while True:
                with self._moved:
                    self._moved.wait_for(lambda: len(self._wanted) == self._running)
                    wanted = np.unique(np.concatenate([np.empty(0, np.int64), *self._wanted]))
                if not self._column.any(self._running > 0):
                    break
                self._held.add(wanted)
                self._local = self._matrix()
                self._next_round()
        except BaseException:
            self._lost = True
            self._next_round()
            raise
        finally:
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _next_round(self) -> None:
        with self._moved:
            self._wanted = []
            self._round += 1
            self._moved.notify_all()

    def _draw(self, draw: Callable[[], None]) -> None:
        try:
            with self._slots:
                draw()
        except BaseException as e:
            self._errors.append(e)
        finally:
            with self._moved:
                self._running -= 1
                self._moved.notify_all()

    def _need(self, ids: Ids) -> tuple[Sparse, IdArray]:
        """The matrix, once it has these rows, and the row of each id."""
        if not np.isin(ids, self._held.first).all():
            self._slots.release()
            with self._moved:
                now = self._round
                self._wanted.append(ids.astype(np.int64))
                self._moved.notify_all()
                self._moved.wait_for(lambda: self._round > now)
            self._slots.acquire()
            if self._lost:
                raise RunError("rows of other ranks did not come")
        return self._local, self._held.index(ids)

    def multiply(self, Q: Sparse, kernel: Any) -> Sparse:
        """P = Q A; see `kernels.sampling.matrix.products.multiply`."""
        Q = Q.packed()
        A, rows = self._need(Q.columns)
        return kernel.multiply(Sparse(Q.start, Q.stop, rows, Q.values), A, self.graph.num_nodes)

    def edges(self, nodes: Ids) -> EdgeList:
        """See `kernels.sampling.matrix.products.induced`: positions are those in the whole graph."""
        _, rows = self._need(nodes)
        held = self._held
        counts, places, weight, positions = extract(held.graph, nodes, rows, self._keep)
        if self._keep:
            assert not isinstance(held.first_edge, int)
            positions = positions + np.repeat(held.first_edge[rows], counts)
        return EdgeList(
            starts_of(counts).astype(np.int32),
            places.copy(),
            positions if self._keep else None,
            weight.copy() if self.graph.is_weighted else None,
        )


def _facts(owners: Owners) -> tuple[bool, IdArray]:
    """True if no row of the whole graph names a source twice and all ascend; and int64 [V], in-degrees. Found once, by
    all ranks together."""
    if "products" not in owners.kept:
        graph, column = owners.rows.graph, owners.blocks.group
        degrees = torch.from_numpy(graph.in_degree.astype(np.int32))
        parts = column.all_to_all([degrees] * column.size, "graph")
        distinct = not column.any(not has_distinct_entries(graph))
        owners.kept["products"] = distinct, torch.cat(parts).numpy().astype(np.int64)
    return owners.kept["products"]
