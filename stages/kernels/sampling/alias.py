"""Weighted draws from a row's in-edges by alias tables (Walker 1977; Vose 1991), in exact integers: the same bits
everywhere.

A row of d in-edges has d slots of mass 2**32. Each edge has an integer mass in proportion to its weight, all masses
together fill the slots, and no slot holds more than two edges: the one of its number below the slot's threshold, and
above it the slot's alias. A draw is a number t in [0, d 2**32), from 64 random bits: the slot is t >> 32, and the rest
decides between the two edges, whatever the row's length.

Without replacement, draws that repeat an edge are thrown away (successive sampling). Rows in which a few edges hold
most of the mass would need many: after `tries` draws, the rest is drawn by an exponential race among the edges that
are left (`exponential_race`), by their weights, with random bits of its own. That is successive sampling too, given the
edges drawn so far, so that where a row changes over has no effect on the law. Rounding to masses changes the
probability of a row's sample by 2**-32 for each draw at most.
"""

from dataclasses import dataclass

import numpy as np

from ....storage.array_kinds import Float32Array, Int32Array, WordArray

SLOT_BITS = 32
"""A slot's mass is 2 ** 32."""
RACE = 1 << 32
"""Draws of a row from this one on are those of its race: draw RACE + i is that of edge i."""


@dataclass(frozen=True, eq=False)
class AliasTable:
    """Alias tables of all rows of a graph: 8 bytes an edge, 4 a node."""

    slots: WordArray
    """uint64 [E], a slot for each in-edge: the alias, as a position in the row, above 32 bits of threshold. The
    threshold is 0 where the weight is 0, and only there. An edge that fills its slot is its own alias."""
    weight: Float32Array
    """float32 [E], the graph's own."""
    positive: Int32Array
    """int32 [V], in-edges of positive weight."""

    @property
    def nbytes(self) -> int:
        """Bytes beside the graph's."""
        return self.slots.nbytes + self.positive.nbytes


def tries(fanout: int) -> int:
    """Draws of a row without replacement, repeats included, before it races."""
    return 4 * fanout + 16


NO_TABLE = AliasTable(np.empty(0, np.uint64), np.empty(0, np.float32), np.empty(0, np.int32))
"""For kernels that take every edge, and read no table."""
