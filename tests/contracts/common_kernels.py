"""The kernels that most runs in tests need: the process that others are forked from loads them for all.

Each run would load them from the cache, a quarter of its processor time.
"""

import importlib
from collections.abc import Iterator
from typing import Any

from numba.core import sigutils

from millrace.stages.kernels.runtime import precompile
from millrace.stages.kernels.runtime.precompile import F32, F32S, I32, I64, KERNELS

NUMBERING, SHARDS, JOIN = "row_block.numbering", "aggregation.cpu.shards", "partition.join"
OF_RANKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (SHARDS, "_take_rows", (F32S, "none", I32, F32, F32S, "int64", "int64")),
    (SHARDS, "_add_sums", (I64, I32, "none", F32, F32S, I32, F32, F32S, "int64", "int64")),
    (SHARDS, "_add_sums", (I64, I64, "none", F32, F32S, I32, F32, F32S, "int64", "int64")),
    (NUMBERING, "_fill", (I64, "uint64", I32)),
    (NUMBERING, "_number_new", (I64, "uint64", I32, "int64")),
    (NUMBERING, "_find_new", (I64, "uint64", I32, "int64", I32, "int64", "int64")),
    (NUMBERING, "_look_up", (I64, "uint64", I32, I32)),
    (NUMBERING, "_gather", (I64, I64, I32, I64, I32)),
    (NUMBERING, "_gather", (I64, I64, I64, I64, I64)),
    (JOIN, "count_edges", (I32, I32, I32, I64, "int64", I64)),
)
"""Kernels of several ranks beside `KERNELS`, in the same form."""


def kernels() -> Iterator[tuple[Any, Any]]:
    """Each kernel with the types of its arguments; those with features of float32 also for float64."""
    for module, name, types in (*KERNELS, *OF_RANKS):
        kernel = getattr(importlib.import_module(f"{precompile.PACKAGE}.{module}"), name)
        for dtype in ("float32", "float64") if any("float32" in word for word in types) else ("float32",):
            given = ", ".join(word.replace("float32", dtype) for word in types)
            yield kernel, sigutils.normalize_signature(f"({given},)")[0]


def load() -> None:
    """Load those that are in the cache."""
    for kernel, types in kernels():
        cache = kernel._cache
        if cache._index_key(types, kernel.targetctx.codegen()) in cache._cache_file._load_index():
            kernel.compile(types)


def compile_all() -> None:
    """Compile those that are not in the cache."""
    for kernel, types in kernels():
        kernel.compile(types)
