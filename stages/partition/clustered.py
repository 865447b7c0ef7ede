"""Parts made of whole communities, found on GPUs by Louvain or Leiden."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...storage.array_kinds import IdArray
from ...storage.errors import InputError, MillraceError, RunError, first_line
from ...storage.partition.book import PartitionBook, TableBook
from ..random import Purpose, stream
from ..rapids import NEEDED, count_gpus
from .base import check_parts
from .contiguous import Contiguous
from .metis import work_of
from .packing import lay_out, pack
from .rapids import Algorithm, Communities, communities
from .rows import RowSource

FINER = 4.0


@contextmanager
def _named_failures(algorithm: str) -> Iterator[None]:
    """Context in which an error of RAPIDS says what to use instead."""
    try:
        yield
    except MillraceError:
        raise
    except (MemoryError, OverflowError, RuntimeError) as e:
        raise RunError(
            f"{algorithm} by cuGraph failed: {type(e).__name__}: {first_line(e)}; if the GPUs' memory is too small, "
            "cut on more of them, or use 'metis-work'"
        ) from e


@dataclass(frozen=True)
class Clustered:
    """Communities of high modularity, packed whole into parts that are even in the work of full-batch training (see
    `MetisWork`).

    If whole communities make a part heavier than `slack` allows, they are laid end to end instead and divided into
    stretches of equal work. Nodes within a community are then in the order of smaller communities, found at `FINER`
    times the resolution.

    The graph is seen as `Metis` sees it. Communities are found by cuGraph on one GPU, or on all of the machine if there
    are several. Edges of a stored graph are read by the processes that have the GPUs, each a range of them; this one
    has a few numbers for each node. It has been checked against the interfaces of RAPIDS 26.10 only and has not been
    run on a GPU yet. cuGraph's communities may differ from run to run, since it adds in no fixed order.
    """

    resolution: float = 1.0
    """Higher values make smaller communities."""
    slack: float = 1.1
    """The heaviest part over the mean, with whole communities."""

    algorithm: ClassVar[Algorithm]
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.resolution > 0:
            raise InputError(f"resolution is {self.resolution}; expected a number above 0, such as 1")
        if not self.slack > 1:
            raise InputError(
                f"slack is {self.slack}; expected more than 1, such as 1.1: the heaviest part over the mean"
            )

    def check_available(self) -> int:
        """The number of GPUs.

        Raises:
            InputError: RAPIDS is not installed, or there is no GPU.
        """
        return count_gpus(f"partition.method '{self.algorithm}'", "'metis-work'", (*NEEDED, "dask_cuda"))

    def assign(self, graph: RowSource, parts: int, seed: int) -> PartitionBook:
        """See `Partitioner.assign`. A graph without edges, or with no more nodes than parts, is cut into ranges.

        Raises:
            InputError: as `check_available`.
            RunError: cuGraph left out nodes, or failed, for example because the graph does not fit into the GPUs'
                memory.
        """
        parts = check_parts(parts)
        gpus, key = self.check_available(), stream(seed, Purpose.PARTITION) & 0x7FFF_FFFF
        if not graph.num_edges or graph.num_nodes <= parts:
            return Contiguous("nodes").assign(graph, parts, seed)
        if parts == 1:
            return TableBook(np.zeros(graph.num_nodes, np.int32), 1)
        with _named_failures(self.algorithm), communities(graph, gpus) as on_gpus:
            if not on_gpus.joined.any():
                return Contiguous("nodes").assign(graph, parts, seed)
            work = work_of(on_gpus.in_degree)
            coarse = self._of_every_node(on_gpus, self.resolution, key)
            part_of = pack(coarse, work, parts)
            if np.bincount(part_of, work, parts).max() > self.slack * work.sum() / parts:
                fine = self._of_every_node(on_gpus, self.resolution * FINER, key)
                part_of = lay_out(coarse, fine, work, parts)
        return TableBook(part_of, parts)

    def _of_every_node(self, on_gpus: Communities, resolution: float, key: int) -> IdArray:
        """int64 [V]: nodes without a neighbour are communities of their own, numbered from the end down."""
        nodes, found = on_gpus.find(self.algorithm, resolution, key)
        cluster, lacking = -1 - np.arange(len(on_gpus.joined)), on_gpus.joined.copy()
        cluster[nodes] = found
        lacking[nodes] = False
        if lacking.any():
            raise RunError(
                f"cuGraph's {self.algorithm} gave no community to {lacking.sum()} of {len(lacking)} nodes; use "
                "'metis-work'"
            )
        return cluster


@dataclass(frozen=True)
class Louvain(Clustered):
    """By Louvain's method (Blondel, Guillaume, Lambiotte, Lefebvre, J. Stat. Mech. P10008, 2008). It draws nothing from
    the seed."""

    name = "louvain"
    algorithm: ClassVar[Algorithm] = "louvain"


@dataclass(frozen=True)
class Leiden(Clustered):
    """By Leiden's method (Traag, Waltman, van Eck, Scientific Reports 9, 2019), whose communities are connected."""

    name = "leiden"
    algorithm: ClassVar[Algorithm] = "leiden"
