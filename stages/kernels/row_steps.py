"""Optimiser steps of the rows of a table that have a gradient, in place: each row and its state are read and written
once. torch's own make sparse tensors of all of them several times over."""

import numpy as np

from .aggregation.cpu.prefetch import AHEAD
from .runtime.intrinsics import prefetch
from .runtime.jit import JIT, njit

_U = np.uint64


@njit(inline="always", **JIT)
def _prefetch_row(flat, row, width, line):
    for c in range(0, width, line):
        prefetch(flat, row * width + c)


@njit(**JIT)
def sgd(rows, ids, grads, factor, lr, lo, hi):
    """Rows ``ids[lo:hi]``, distinct, less `lr` times their gradients, which are ``grads[lo:hi] * factor``."""
    width, line, flat = rows.shape[1], max(64 // rows.itemsize, 1), rows.reshape(-1)
    for r in range(lo, hi):
        if r + AHEAD < hi:
            _prefetch_row(flat, ids[r + AHEAD], width, line)
        row, grad = rows[_U(ids[r])], grads[_U(r)]
        for c in range(width):
            row[c] -= lr * (grad[c] * factor)


@njit(**JIT)
def adagrad(rows, total, ids, grads, factor, lr, eps, lo, hi):
    """`sgd` with each step divided by the root of `total`, the sum of squares so far."""
    width, line, flat, state = rows.shape[1], max(64 // rows.itemsize, 1), rows.reshape(-1), total.reshape(-1)
    for r in range(lo, hi):
        if r + AHEAD < hi:
            _prefetch_row(flat, ids[r + AHEAD], width, line)
            _prefetch_row(state, ids[r + AHEAD], width, line)
        row, squares, grad = rows[_U(ids[r])], total[_U(ids[r])], grads[_U(r)]
        for c in range(width):
            g = grad[c] * factor
            squares[c] += g * g
            row[c] -= lr * (g / (np.sqrt(squares[c]) + eps))


@njit(**JIT)
def adam(rows, mean, square, ids, grads, factor, lr, beta1, beta2, eps, lo, hi):
    """`sgd` along a running mean of gradients, each step divided by the root of the running mean of their squares. `lr`
    corrects both for their start at zero."""
    width, line, flat = rows.shape[1], max(64 // rows.itemsize, 1), rows.reshape(-1)
    means, squares = mean.reshape(-1), square.reshape(-1)
    for r in range(lo, hi):
        if r + AHEAD < hi:
            _prefetch_row(flat, ids[r + AHEAD], width, line)
            _prefetch_row(means, ids[r + AHEAD], width, line)
            _prefetch_row(squares, ids[r + AHEAD], width, line)
        row, m, v, grad = rows[_U(ids[r])], mean[_U(ids[r])], square[_U(ids[r])], grads[_U(r)]
        for c in range(width):
            g = grad[c] * factor
            m[c] += (g - m[c]) * beta1
            v[c] += (g * g - v[c]) * beta2
            row[c] -= lr * (m[c] / (np.sqrt(v[c]) + eps))


@njit(**JIT)
def number_rows(ids, place, distinct, where):
    """Number the distinct ids in the order in which they are found.

    Args:
        ids: int64 [n].
        place: int32, -1 for each possible id; so again afterwards.
        distinct: int64 [n], written: the ids by number.
        where: int32 [n], written: each id's number.

    Returns:
        How many there are.
    """
    count = 0
    for r in range(len(ids)):
        at = place[_U(ids[r])]
        if at < 0:
            at = np.int32(count)
            place[_U(ids[r])], distinct[_U(count)] = at, ids[r]
            count += 1
        where[_U(r)] = at
    for r in range(count):
        place[_U(distinct[r])] = -1
    return count


@njit(**JIT)
def add_rows(where, rows, sums):
    """Add each row to the one of `sums` at its place, in order."""
    for r in range(len(where)):
        row, into = rows[_U(r)], sums[_U(where[r])]
        for c in range(rows.shape[1]):
            into[c] += row[c]
