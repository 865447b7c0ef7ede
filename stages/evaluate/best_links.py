"""The k best destinations of sources, by a decoder from the rows of nodes: of all candidates but the source itself and
its known destinations.

Of destinations with the same score that of the smaller id is better, so that neither blocks nor threads nor the device
decide.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import FloatArray
from ...storage.dataset import IdArray
from ..kernels.best_of_rows import keep_best
from ..kernels.runtime.threads import get_num_threads, side_by_side
from ..links.decoders import FEW
from . import links
from .edges import NodeRows
from .limits import Progress, silent
from .links import KnownPairs, blocks_of_candidates, scores_against

BETWEEN_REPORTS = 1 << 32
"""Scores between two reports of progress: seconds of work."""
CHUNKS_OF_THREAD = 4
"""Chunks of sources that a thread at least has between two reports, so that none waits long for the others."""
KERNEL_ON = ("cpu",)
"""Devices of rows whose best are kept by `best_of_rows`; others keep them by operations of torch."""
Best = tuple[IdArray, FloatArray]
"""int64 [n, k], the best destinations of each source, the best first, and their scores; -1 and -inf where fewer than k
candidates have a score."""


def best_destinations(
    decoder: Any,
    rows: NodeRows,
    sources: IdArray,
    k: int,
    known: KnownPairs,
    step: int,
    on_progress: Progress = silent,
) -> Iterator[Best]:
    """The k best of each of `sources`, `step` of them after the other.

    Sources are taken a few hundred at a time against blocks of candidates, as `links.filtered_ranks` does: all products
    have the same shape, and equal rows the same score wherever they stand.

    Args:
        decoder: see `links.decoders.Decoder`; scores that are NaN or -inf are left out.
        rows: those of the sources and of all candidates.
        sources: int64 [n], ids.
        k: 1 or more.
        known: pairs that are left out; has the candidates.
        step: 1 or more.
        on_progress: called with (sources done, n).
    """
    on_host = rows.rows.device.type == "cpu"
    total = len(sources)
    size = max(1, min(links.PAIRS if on_host else links.PAIRS_THERE, total))
    padded = max(FEW, size)
    start = int(np.searchsorted(rows.nodes, known.candidates.start))
    candidates = rows.rows[start : start + len(known.candidates)]
    together = max(CHUNKS_OF_THREAD * get_num_threads(), BETWEEN_REPORTS // max(1, size * len(candidates)))
    for begin in range(0, total, step):
        end = min(begin + step, total)
        ids = np.empty((end - begin, k), np.int64)
        scores = torch.empty(end - begin, k, dtype=_dtype(rows.rows)).numpy()

        def find(first: int, begin: int = begin, end: int = end, ids: IdArray = ids, scores: Any = scores) -> None:
            chunk = sources[np.arange(first, first + padded) % total]
            with torch.no_grad():
                own = rows.rows[torch.from_numpy(rows.positions(chunk)).to(rows.rows.device)]
                found = _best_of(decoder, own, candidates, chunk, k, known)
            kept = slice(max(first, begin), min(first + size, end))
            for array, of_chunk in zip((ids, scores), found):
                array[kept.start - begin : kept.stop - begin] = of_chunk[kept.start - first : kept.stop - first]

        # A source stands at the same place of a product whatever `step` is: on some processors a row's last bits
        # depend on it.
        for span in range(begin - begin % size, end, size * together):
            stop = min(span + size * together, end)
            if on_host:
                side_by_side(find, [(first,) for first in range(span, stop, size)])
            else:
                for first in range(span, stop, size):
                    find(first)
            on_progress(stop, total)
        yield ids, scores


def _dtype(rows: Tensor) -> torch.dtype:
    """Precision of the scores that are kept."""
    return torch.float64 if rows.dtype == torch.float64 else torch.float32


def _best_of(decoder: Any, sources: Tensor, candidates: Tensor, ids: IdArray, k: int, known: KnownPairs) -> Best:
    """The best of a few sources, on the device of their rows."""
    width, among = links.NODES if sources.device.type == "cpu" else links.NODES_THERE, known.candidates
    width = min(len(candidates), width)
    best = torch.full((len(ids), k), -torch.inf, dtype=_dtype(sources), device=sources.device)
    found = torch.full((len(ids), k), -1, device=sources.device)
    for block in blocks_of_candidates(ids, known, width):
        at = block.start - among.start
        scores = scores_against(decoder, sources, candidates[at : at + width]).to(best.dtype).contiguous()
        block.leave_out(scores, -torch.inf)
        if sources.device.type in KERNEL_ON:
            keep_best(scores.numpy(), block.first - block.start, block.first, best.numpy(), found.numpy())
        else:
            best, found = merged(best, found, scores[:, block.first - block.start :], block.first)
    own, scored = found.cpu().numpy(), best.cpu().numpy()
    order = np.lexsort((own, -scored))
    return np.take_along_axis(own, order, 1), np.take_along_axis(scored, order, 1)


def merged(best: Tensor, ids: Tensor, scores: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Scores [n, k], falling, and ids of the best so far with those of a block [n, w], whose ids are from `first`,
    larger than all so far. After the first few blocks hardly any score is let in."""
    k = best.shape[1]
    better = scores > best[:, -1:]  # not if it is NaN
    counts = better.sum(1)
    most = int(counts.max()) if len(counts) else 0
    if not most:
        return best, ids
    if most > k:
        better = _first_of_best(scores.masked_fill(~better, -torch.inf), k) & better
        counts, most = better.sum(1), k
    row, column = better.nonzero(as_tuple=True)
    slot = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    new = best.new_full((len(best), most), -torch.inf)
    new_ids = ids.new_full((len(best), most), -1)
    new[row, slot], new_ids[row, slot] = scores[row, column], first + column
    both, order = torch.cat([best, new], 1).sort(dim=1, descending=True, stable=True)
    return both[:, :k], torch.cat([ids, new_ids], 1).gather(1, order)[:, :k]


def _first_of_best(scores: Tensor, k: int) -> Tensor:
    """True for k scores of each row, the largest and of equal ones the first."""
    least = scores.topk(k).values[:, -1:]
    above, equal = scores > least, scores == least
    left = k - above.sum(1, keepdim=True, dtype=torch.int32)
    return above | (equal & (equal.cumsum(1, dtype=torch.int32) <= left))
