"""Divides the rows of a result into parts of similar work for `threads.parallel`."""

from bisect import bisect_left

from .....storage.array_kinds import IdArray
from ...runtime.threads import get_num_threads

SERIAL = 1 << 15
"""Additions below which threads cost more than they save."""
PARTS_PER_THREAD = 16
"""Hidden imbalance (caches, other processes) evens out when a thread takes many smaller parts."""
PIECE = 1 << 18
"""Minimum additions of a part if there are more parts than threads: calling a kernel costs as much as about ten
thousand."""


def part_count(additions: int) -> int:
    """Number of parts for so many additions."""
    threads = get_num_threads()
    most = 1 if threads == 1 or additions < SERIAL else threads * PARTS_PER_THREAD
    return min(most, max(threads, additions // PIECE))


def row_parts(indptr: IdArray, width: int) -> list[tuple[int, int]]:
    """Ranges of rows, [begin, end), with similar numbers of edges plus rows; `width` additions for each."""
    n = len(indptr) - 1
    total = int(indptr[-1]) + n
    count = part_count(total * width)
    cuts = [bisect_left(range(n), total * p // count, key=lambda m: int(indptr[m]) + m) for p in range(count)] + [n]
    return [(a, b) for a, b in zip(cuts, cuts[1:]) if a < b]


def even_parts(n: int, width: int) -> list[tuple[int, int]]:
    """Ranges of n rows of similar length; `width` additions for each row."""
    count = part_count(n * width)
    cuts = [n * p // count for p in range(count + 1)]
    return [(a, b) for a, b in zip(cuts, cuts[1:]) if a < b]
