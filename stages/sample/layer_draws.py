"""Darts of layer-wise sampling over ranks: the throws of one minibatch in one hop."""

import numpy as np
import numpy.typing as npt

from ...storage.array_kinds import Float32Array, IdArray, Int32Array, IntArray
from ..kernels.row_block.layerwise import throw
from ..kernels.row_block.numbering import Numbering
from ..kernels.sampling.layerwise import Drawn, LayerSample, budget, clock, complete, dart_word, with_replacement
from ..placement.row_owners import Book, Ids


class LayerMinibatch:
    """State of one minibatch between hops."""

    def __init__(self, seeds: IntArray, dtype: npt.DTypeLike) -> None:
        self.numbered = Numbering(seeds, dtype)
        self.ends = [len(seeds)]
        self.blocks: list[tuple[Int32Array, Int32Array, Float32Array, IdArray]] = []
        self.in_degree, self.degree, self.mass = (np.empty(0, np.int64) for _ in range(3))
        self.sums = np.empty(0)
        self.importance = np.empty(0, np.int64)
        self.total = 0

    @property
    def nodes(self) -> Ids:
        return self.numbered.nodes

    @property
    def rows(self) -> Ids:
        """Nodes before the current hop."""
        return self.nodes[: self.ends[-2]]

    def unite(self, drawn: Drawn) -> Ids:
        """Places of the drawn nodes, of which those that are new are added; a layer ends here."""
        new = self.numbered.add(drawn.nodes.astype(self.nodes.dtype))
        self.ends.append(len(self.nodes))
        return new

    def sample(self, weighted: bool, keep_positions: bool) -> LayerSample:
        return LayerSample.from_blocks(self.nodes, self.ends, self.blocks, weighted, keep_positions)


class LayerDraw:
    """The darts of one minibatch in one hop, thrown in order until enough distinct columns are hit."""

    def __init__(self, m: LayerMinibatch, key: int, s: int, debias: str, book: Book, blocks: IdArray | None) -> None:
        """
        Args:
            m: the minibatch.
            key: of its random numbers in this hop.
            s: columns to sample.
            debias: see `LayerWiseSampler`.
            book: ranks that answer for the rows.
            blocks: prefix sums of P over the blocks of all owners, where every row counts; None where only the
                minibatch's own rows do.
        """
        self.m, self.key, self.s = m, key, s
        self._book, self._every_row = book, blocks is not None
        self.repeats = debias == "with_replacement"
        self.want, self.limit = (s, s) if self.repeats else (s + (debias == "bottom_k"), budget(s))
        self.prefix = blocks if blocks is not None else np.concatenate([[0], np.cumsum(m.mass[: len(m.nodes)])])
        m.total = int(self.prefix[-1])
        self.thrown = 0
        """Darts that travelled."""
        self.darts = 0
        """Darts that counted."""
        self.found: list[int] | IdArray = []
        self._seen: set[int] = set()
        self._raced: Drawn | None = None

    @property
    def wants_more(self) -> bool:
        """True if another throw may find nodes that are still wanted."""
        return bool(self.m.total) and len(self.found) < self.want and self.thrown < self.limit

    @property
    def ran_out(self) -> bool:
        """True if fewer nodes than wanted were found, of those that can be drawn once."""
        return bool(self.m.total) and not self.repeats and len(self.found) < self.want

    @property
    def need(self) -> int:
        """Columns that the race must still find."""
        return self.s - min(len(self.found), self.s)

    def aim(self) -> tuple[IdArray, IdArray, IdArray]:
        """The next darts: owner of the row that each hits, the row there, and the offset into the row's terms."""
        none = np.empty(0, np.int64)
        if not self.wants_more:
            return none, none, none
        missing = self.want - len(self.found)
        # Some hit earlier columns again; a round costs a journey, a dart a few bytes. Darts are at least doubled, so
        # that three rounds reach the limit.
        more = min(
            self.limit - self.thrown,
            missing if self.repeats else max(2 * missing, self.thrown) if self.thrown else missing + missing // 4 + 4,
        )
        x = throw(dart_word(self.key), self.thrown, more, self.m.total)
        self.thrown += more
        at = np.searchsorted(self.prefix, x, side="right") - 1
        rest = x - self.prefix[at]
        if self._every_row:
            return at, np.zeros_like(at), rest
        nodes = self.m.nodes[at]
        owner = self._book.part(nodes).astype(np.int64)
        return owner, nodes - self._book.offsets[owner], rest

    def hit(self, columns: Ids) -> None:
        """Record the columns hit."""
        assert isinstance(self.found, list)
        for u in columns.tolist():
            if len(self.found) == self.want:
                return
            self.darts += 1
            if self.repeats or u not in self._seen:
                self._seen.add(u)
                self.found.append(u)

    def finish(self, candidates: IdArray, mass: IdArray) -> None:
        """Choose the remaining columns by the exponential race."""
        hit = np.array(self.found[: self.s], np.int64)
        self._raced = complete(self.key, self.s, hit, self.darts, self.m.total, candidates, mass=mass)

    def drawn(self) -> Drawn:
        """Result of SAMPLE."""
        found = np.array(self.found, np.int64)
        if not self.m.total:
            return Drawn(found, None, np.inf)
        if self._raced is not None:
            return self._raced
        if self.repeats:
            return with_replacement(found)
        return Drawn(found[: self.s], None, clock(self.key, self.darts) if self.want > self.s else np.nan)
