"""The arena: a buffer is handed out again when nobody views it any more, and never before."""

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.memory.arena import ALIGN, IDLE_STEPS, SMALL, Arena, empty, reusing

ROWS = 4 * SMALL // 4
"""float32 rows of one column that are worth a buffer."""


def place(x: torch.Tensor) -> int:
    return x.data_ptr()


def test_a_dropped_tensors_memory_is_used_again_and_a_live_ones_is_not() -> None:
    arena = Arena()
    with reusing(arena):
        a = empty((ROWS,), torch.float32)
        b = empty((ROWS,), torch.float32)
        first = place(a)
        assert place(b) != first
        del a
        assert place(empty((ROWS // 5 * 4,), torch.float32)) == first
        assert place(b) != first
    assert arena.nbytes == arena.peak_bytes


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[10:20],
        lambda x: x.numpy(),
        lambda x: x.numpy()[::2],
        lambda x: x.detach(),
        lambda x: x.view(2, -1).t(),
        lambda x: (x.requires_grad_() * 2).sum(),  # autograd keeps nothing of x here, but the graph's leaf is x itself
    ],
)
def test_any_view_keeps_the_memory(view) -> None:
    arena = Arena()
    with reusing(arena):
        x = empty((ROWS,), torch.float32).fill_(1)
        first, kept = place(x), view(x)
        del x
        other = empty((ROWS,), torch.float32).fill_(7)
        assert place(other) != first
        del kept, other
        assert first in [place(t) for t in (empty((ROWS,), torch.float32), empty((ROWS,), torch.float32))]


def test_what_backward_needs_is_kept_until_backward() -> None:
    arena = Arena()
    with reusing(arena):
        x = empty((ROWS,), torch.float32).copy_(torch.arange(ROWS)).requires_grad_()
        y = (x * x).sum()
        want = x.detach().clone() * 2
        (x_grad,) = torch.autograd.grad(y, x, retain_graph=True)
        assert torch.equal(x_grad, want)
        del x_grad
        for _ in range(4):
            empty((ROWS,), torch.float32).fill_(-1)
        assert torch.equal(torch.autograd.grad(y, x)[0], want)


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=40))
@settings(deadline=None, max_examples=25)
def test_live_tensors_never_overlap(requests: list[tuple[int, bool]]) -> None:
    """Whatever is asked for and dropped in between: every live tensor holds what was written into it."""
    arena, live = Arena(), []
    with reusing(arena):
        for number, (size, keep) in enumerate(requests):
            x = empty((size, SMALL // 16), torch.float32).fill_(number)
            assert x.is_contiguous() and place(x) % ALIGN == 0
            if keep:
                live.append((number, x))
            elif live:
                live.pop(0)
            assert all((t == n).all() for n, t in live)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_shape_and_type(dtype: torch.dtype) -> None:
    with reusing(Arena()):
        for shape in ((), (0, 5), (3,), (400, 3, 70)):
            x = empty(shape, dtype)
            assert x.shape == shape and x.dtype == dtype and x.is_contiguous()


def test_small_tensors_and_other_types_are_left_to_the_allocator() -> None:
    arena = Arena()
    with reusing(arena):
        empty((4,), torch.float32)
        assert empty((ROWS,), torch.bfloat16).dtype == torch.bfloat16
    assert arena.nbytes == 0


def test_outside_and_in_other_threads_nothing_is_taken_from_it() -> None:
    arena = Arena()
    empty((ROWS,), torch.float32)
    with reusing(arena):
        thread = threading.Thread(target=lambda: empty((ROWS,), torch.float32))
        thread.start()
        thread.join()
        assert arena.nbytes == 0
        with reusing(inner := Arena()):
            empty((ROWS,), torch.float32)
        assert arena.nbytes == 0 < inner.nbytes
        empty((ROWS,), torch.float32)
    assert arena.nbytes > 0


def test_buffers_that_no_step_wants_any_more_are_given_back() -> None:
    arena = Arena()
    with reusing(arena):
        held, unused = empty((ROWS,), torch.float32), empty((3 * ROWS,), torch.float32)
        del unused
        peak = arena.nbytes
        for _ in range(IDLE_STEPS):
            arena.step()
        assert arena.nbytes == peak
        arena.step()
        assert ROWS * 4 <= arena.nbytes < peak == arena.peak_bytes
        assert np.isfinite(held.fill_(1).sum().item())


def test_a_small_tensor_does_not_take_a_large_buffer() -> None:
    arena = Arena()
    with reusing(arena):
        large = empty((20 * ROWS,), torch.float32)
        where = place(large)
        del large
        small = empty((ROWS,), torch.float32)
        assert place(small) != where
        assert place(empty((20 * ROWS,), torch.float32)) == where


def test_it_counts_what_was_touched_and_knows_its_memory() -> None:
    arena = Arena()
    with reusing(arena):
        held = empty((ROWS,), torch.float32)
    assert arena.nbytes == arena.peak_bytes == held.nbytes
    assert arena.holds(held.data_ptr())
    assert arena.holds(held[ROWS // 2 :].data_ptr())
    assert not arena.holds(torch.empty(ROWS).data_ptr())


def test_what_is_small_is_the_callers_choice() -> None:
    arena = Arena(small=16)
    with reusing(arena):
        kept, left = empty((4,), torch.float32), empty((3,), torch.float32)
    assert arena.holds(kept.data_ptr())
    assert not arena.holds(left.data_ptr())


HOLDS_PIECES = """
import psutil, torch
from millrace.stages.memory.arena import give_back

def mib():
    return psutil.Process().memory_info().rss >> 20

before = mib()
kept, held = [], []
for _ in range(16):
    held.append(torch.ones(2 << 20))  # 8 MiB
    kept.append(torch.ones(1 << 10))  # so that no two pieces are neighbours
del held
freed = mib()
give_back()
print(before, freed, mib())
"""


def test_freed_memory_goes_back_to_the_system() -> None:
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1073741824"}
    said = subprocess.run(
        [sys.executable, "-c", HOLDS_PIECES], env=environment, capture_output=True, text=True, check=True, timeout=240
    )
    before, freed, after = map(int, said.stdout.split())
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("not glibc's allocator")
    assert freed - before > 100
    assert after - before < 20


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3), st.booleans()), max_size=20))
def test_arrays_of_units_are_used_again_and_those_in_use_are_not(asked: list[tuple[int, int, bool]]) -> None:
    arena, kept = Arena(small=0, idle_steps=0), list[tuple[int, np.ndarray]]()
    for number, (rows, width, stays) in enumerate(asked):
        array = arena.array((rows, width), np.float32)
        assert array.shape == (rows, width) and array.dtype == np.float32 and array.flags.writeable
        array[:] = number
        if stays:
            kept.append((number, array[1:]))
        del array
        arena.step()
        assert all((view == told).all() for told, view in kept)
    del kept
    arena.step()
    assert arena.nbytes == 0
    arena.array((1000, 8), np.float16)
    held = arena.nbytes
    arena.array((990, 8), np.float16)
    assert arena.nbytes == held > 0


def test_buffers_of_small_pages_are_reused_once_nothing_views_them():
    arena = Arena(small=0, huge_pages=False)
    rows = arena.array((1000, 4), np.float32)
    address, view = rows.ctypes.data, rows[3:, 1]
    del rows
    other = arena.array((1000, 4), np.float32)
    assert other.ctypes.data != address
    del view
    assert arena.array((1000, 4), np.float32).ctypes.data == address
