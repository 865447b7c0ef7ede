"""Triton's compiler takes every kernel down to a GPU's machine code: the interpreter is laxer than it is about
types."""

import os
import subprocess
import sys

SAMPLING = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from millrace.stages.kernels.sampling.cuda import alias as alias_cuda
from millrace.stages.kernels.sampling.cuda import draw as draw_cuda
from millrace.stages.kernels.sampling.cuda import extract as extract_cuda
from millrace.stages.kernels.sampling.cuda import hits as hits_cuda
from millrace.stages.kernels.sampling.cuda import labor as labor_cuda
from millrace.stages.kernels.sampling.cuda import relations as relations_cuda
from millrace.stages.kernels.sampling.cuda import renumber as number_cuda
from millrace.stages.kernels.sampling.cuda import temporal as temporal_cuda
from millrace.stages.kernels.sampling.cuda import terms as terms_cuda

INT = {"num_rows", "num_edges", "fanout", "stride", "steps", "per_minibatch", "n"}
INT |= {"limit", "row_steps", "edge_steps", "bound", "most", "least", "num_hits", "size", "want", "room", "k"}
INT |= {"num_nodes"}
NARROW = {"sources", "nodes", "owner", "edges", "local", "indices", "places", "positive", "drawn"}
NARROW |= {"kept_row", "kept_rank"}
TILE = {"KEEP": True, "KEYED": False, "ROWS": 64, "WIDTH": 16}
TAKE = {"KEYED": False, "BLOCK": 1024}
KEYED = {"KEYED": True, "WIDE": ("nodes", "edges")}
WALK = {"CHUNK": 128}
KERNELS = [
    (draw_cuda._uniform, TILE | {"REPLACE": False}),
    (draw_cuda._uniform, TILE | {"REPLACE": True}),
    (draw_cuda._uniform, TILE | {"REPLACE": False, "ROWS": 1024, "WIDTH": 1}),
    (draw_cuda._uniform, TILE | {"REPLACE": False, "found": None}),
    (draw_cuda._uniform, TILE | {"REPLACE": False, "found": None} | KEYED),
    (draw_cuda._uniform, TILE | {"REPLACE": True, "found": None} | KEYED | {"KEEP": False}),
    (draw_cuda._take, TAKE | {"PLACED": True, "KEEP": True}),
    (draw_cuda._take, TAKE | {"PLACED": True, "KEEP": True, "found": None}),
    (draw_cuda._take, TAKE | {"PLACED": False, "KEEP": False}),
    (draw_cuda._take, TAKE | {"PLACED": False, "KEEP": True, "found": None} | KEYED),
    (relations_cuda._segment_positions, {"REPLACE": False, "ROWS": 64, "WIDTH": 16}),
    (relations_cuda._segment_positions, {"REPLACE": True, "ROWS": 64, "WIDTH": 16}),
    (temporal_cuda._ends_until, {"BLOCK": 1024}),
    (temporal_cuda._ends_until, {"BLOCK": 1024, "REAL": ("time", "moments")}),
    (temporal_cuda._look_up, {"BLOCK": 1024}),
    (temporal_cuda._look_up, {"BLOCK": 1024, "REAL": ("numbers", "out")}),
    (alias_cuda._independent, {"ROWS": 64, "WIDTH": 16}),
    (alias_cuda._successive, {"ROWS": 64, "WIDTH": 16}),
    (alias_cuda._finish_times, {"SHARED": False, "BLOCK": 1024}),
    (alias_cuda._finish_times, {"SHARED": True, "BLOCK": 1024}),
    (alias_cuda._finish_times, {"SHARED": True, "BLOCK": 1024, "WIDE": ("weight", "owner")}),
    (number_cuda._count, {"BLOCK": 4096}),
    (number_cuda._name, {"BLOCK": 4096}),
    (number_cuda._scatter, {"BLOCK": 1024}),
    (number_cuda._translate, {"KEEP": True, "BLOCK": 1024}),
    (number_cuda._translate, {"KEEP": True, "BLOCK": 1024, "local": None}),
    (number_cuda._translate, {"KEEP": False, "BLOCK": 1024, "local": None}),
    (labor_cuda._keep_smallest, WALK | {"WIDTH": 64}),
    (labor_cuda._keep_below, WALK | {"WRITE": False}),
    (labor_cuda._keep_below, WALK | {"WRITE": True}),
    (terms_cuda._throw, {"EVERY_ROW": False, "WEIGHTED": False, "BLOCK": 1024}),
    (terms_cuda._throw, {"EVERY_ROW": False, "WEIGHTED": True, "BLOCK": 1024}),
    (terms_cuda._throw, {"EVERY_ROW": True, "WEIGHTED": True, "BLOCK": 1}),
    (hits_cuda._mark_first, {"BLOCK": 1024}),
    (hits_cuda._choose, {"BLOCK": 1024}),
    (hits_cuda._enter, {"BLOCK": 1024}),
    (extract_cuda._find_known, WALK),
    (extract_cuda._write_known, {"EVERY_ROW": False, "WEIGHTED": True, "BLOCK": 1024}),
    (extract_cuda._write_known, {"EVERY_ROW": True, "WEIGHTED": False, "BLOCK": 1024}),
    (extract_cuda._invert, {"BLOCK": 1024}),
    (extract_cuda._add_in_order, {"ROWS": 128}),
    (extract_cuda._scale_rows, {"ROWS": 128}),
    (number_cuda._start, {"BLOCK": 1024}),
    (number_cuda._clear, {"BLOCK": 1024}),
]
ONE_WARP = labor_cuda._keep_smallest, labor_cuda._keep_below, extract_cuda._find_known
IN_ORDER = extract_cuda._add_in_order, extract_cuda._invert, extract_cuda._scale_rows
DIVIDES = alias_cuda._finish_times, extract_cuda._invert, extract_cuda._scale_rows
# By kernels, and not launched.
CALLED = {"_find_new", "elements", "exponential", "draw_word", "node_word", "row_of", "tile_of_rows", "pick", "picked"}
CALLED |= {"_put", "_before", "row_at", "_put_edges", "_put_smallest", "_put_smallest_of_row"}
MODULES = alias_cuda, draw_cuda, number_cuda, labor_cuda, hits_cuda, terms_cuda, extract_cuda
MODULES += (relations_cuda, temporal_cuda)
for module in MODULES:
    for name, kernel in vars(module).items():
        if isinstance(kernel, triton.JITFunction) and name not in CALLED:
            assert any(kernel is k for k, _ in KERNELS), name
for kernel, given in KERNELS:

    def kind(name):
        if name in given:
            return "constexpr"
        if name in given.get("WIDE", ()):
            return "*i64"
        if name in given.get("REAL", ()):
            return "*fp64"
        if kernel.fn.__module__ == temporal_cuda.__name__ and name == "nodes":
            return "*i64"
        if kernel in IN_ORDER and name in ("values", "sums", "whole", "out"):
            return "*fp32" if kernel is extract_cuda._scale_rows and name == "out" else "*fp64"
        if kernel is alias_cuda._finish_times and name == "weight":
            return "*fp32"
        return "i32" if name in INT else "*u8" if name in ("found", "flags") else "*i32" if name in NARROW else "*i64"

    places = {(kernel.arg_names.index(name),): value for name, value in given.items() if name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature={name: kind(name) for name in kernel.arg_names}, constexprs=places)
    warps = {"num_warps": 1} if kernel in ONE_WARP else {}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=warps).asm
    assert made["cubin"]
    if kernel is labor_cuda._keep_smallest:
        # One thread reads the candidates that another has written: the interpreter has one thread only.
        steps = "".join(re.findall(r"barrier|store|load", made["ttgir"]))
        assert "barrierloadstorestorebarrier" in steps, steps
        assert made["ptx"].count("bar.sync") >= 2
        assert "ld.global.nc" not in made["ptx"]
    # Divisions must be IEEE's.
    assert ("div.rn.f64" in made["ptx"]) == (kernel in DIVIDES), kernel
    # Fused operations would round sums of weights otherwise than other kernels do.
    assert kernel is not extract_cuda._add_in_order or ("add.f64" in made["ptx"] and "fma" not in made["ptx"])
print(len(KERNELS))
"""


LAYERS = """
import os, re, subprocess, tempfile
import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from millrace.stages.kernels.aggregation.cuda import backend as aggregate_cuda
from millrace.stages.kernels.aggregation.cuda import attention as attention_cuda
from millrace.stages.kernels.aggregation.cuda import attention_backward as backward_cuda
from millrace.stages.kernels.aggregation.cuda import attention_shared as attention_shared_cuda
from millrace.stages.kernels.aggregation.cuda import dropout as dropout_cuda
from millrace.stages.kernels.aggregation.cuda import softmax as softmax_cuda
from millrace.stages.kernels.aggregation.cuda import sums as sums_cuda
from millrace.stages.kernels import products_cuda
from millrace.stages.kernels.minibatch_cuda import rows as rows_cuda

REAL = {"x", "y", "z", "out", "own", "scale", "source_scale", "before", "grad", "delta", "dz", "d_dst", "d_src"}
REAL |= {"y", "weight", "bias", "g", "a", "weights", "biases"}
REAL |= {"a_src", "logit_src", "logit_dst", "log_sum", "base", "cache", "weighted", "d_edge", "d_own"}
NARROW = {"ids", "indices", "dst", "edge", "arg", "position", "slot"}
LISTS = {"begin", "end", "rows", "first", "own_names", "names", "key_at"}
EDGES = {"LIMIT": 256, "SLOPE": 0.2, "THRESHOLD": 2**31, "KEEP": 2.0, "UNROLL": 2, "ROWS": 8, "num_warps": 1}
EDGES |= {"H": 4, "D": 64, "Z_ROW": 256, "Z_HEAD": 64, "SHARED": False, "BR": 1, "BH": 4, "BD": 64}
WHOLE = EDGES | {"first": None, "own_names": None, "edge": None, "rows": None, "TO_ROWS": True, "OWN": True}
SHARD = EDGES | {"TO_ROWS": True, "OWN": False, "d_own": None}
SHARED = {"D": 100, "Z_ROW": 100, "X_ROW": 100, "Z_HEAD": 0, "SHARED": True, "BD": 128}
SUMS = {"rows": None, "UNIT": 4, "LIMIT": 256, "TO_ROWS": True, "ADD": False, "UNROLL": 4, "BR": 4, "BF": 128}
LOGITS = {"LIMIT": 256, "SLOPE": 0.2, "TO_ROWS": True, "UNROLL": 4, "BR": 8, "BH": 4, "num_warps": 1}
DROPPED = {"THRESHOLD": 2**31, "SCALE": 1 / 0.7, "BR": 4, "BF": 128}
BY_WEIGHT = {"UNIT": 4, "LOW": False, "ACTIVATION": 2, "GRADIENT": 2, "BM": 128, "BD": 64, "BK": 32, "num_warps": 8}
BY_WEIGHT |= {"maxnreg": 128}
OVER_ROWS = {"UNIT": 4, "LOW": False, "GRADIENT": 2, "BM": 32, "num_warps": 4}
KERNELS = [
    *((sums_cuda._sum_rows, SUMS | {"KIND": kind}) for kind in range(4)),
    (sums_cuda._sum_rows, SUMS | {"KIND": 2, "ids": None, "coef": None, "source_scale": None}),
    (rows_cuda._gather_rows, {"F": 100, "STRIDE": 100, "BR": 16, "BF": 128}),
    (rows_cuda._gather_rows, {"cache": None, "slot": None, "F": 100, "STRIDE": 100, "BR": 16, "BF": 128}),
    (
        aggregate_cuda._max_rows,
        {"position": None, "LIMIT": 256, "TO_ROWS": True, "INTO": True, "POSITION": 0, "BR": 4, "BF": 128},
    ),
    (aggregate_cuda._max_rows, {"LIMIT": 256, "TO_ROWS": True, "INTO": True, "POSITION": 2, "BR": 4, "BF": 128}),
    (aggregate_cuda._max_backward_rows, {"position": None, "LIMIT": 256, "UNROLL": 4, "BR": 4, "BF": 128}),
    (
        softmax_cuda._dot_rows,
        {"H": 4, "D": 100, "X_ROW": 400, "X_HEAD": 100, "Y_ROW": 0, "Y_HEAD": 100, "BR": 2, "BH": 4, "BD": 128},
    ),
    (softmax_cuda._log_sums, LOGITS | {"rows": None, "INTO": False, "OWN": True}),
    (softmax_cuda._log_sums, LOGITS | {"logit_dst": None, "INTO": True, "OWN": False}),
    (attention_cuda._attend_rows, WHOLE | {"ids": None, "before": None}),
    (attention_cuda._attend_rows, SHARD | {"ids": None}),
    (attention_cuda._attend_rows, WHOLE | SHARED | {"before": None}),
    (attention_cuda._attend_rows, EDGES | SHARED | {"ids": None, "before": None, "TO_ROWS": False, "OWN": False}),
    (backward_cuda._backward_src, WHOLE),
    (backward_cuda._backward_src, WHOLE | SHARED | {"UNROLL": 1, "D": 256, "BD": 256}),
    (backward_cuda._backward_src, SHARD),
    # Two groups of heads of shared rows, as many numbers as a warp has, read once and written.
    (backward_cuda._backward_src, WHOLE | SHARED | {"UNROLL": 1, "H": 8, "D": 256, "BD": 256}),
    (attention_cuda._attend_rows, SHARD | {"D": 256, "BD": 256, "Z_ROW": 1024, "Z_HEAD": 256}),
    (attention_shared_cuda._backward_shared_dst, WHOLE | SHARED | {"ids": None, "D": 256, "BD": 256, "X_ROW": 256}),
    (backward_cuda._edges_to_dst, WHOLE | {"BR": 4, "BE": 8}),
    (attention_shared_cuda._backward_shared_dst, WHOLE | SHARED),
    (attention_shared_cuda._backward_shared_dst, EDGES | SHARED | {"ids": None}),
    (products_cuda._rows_by_weight, BY_WEIGHT | {"ids": None, "y": None, "TRANSPOSED": False}),
    (products_cuda._rows_by_weight, BY_WEIGHT | {"ids": None, "bias": None, "TRANSPOSED": True}),
    (products_cuda._rows_by_weight, BY_WEIGHT | {"ids": None, "y": None, "TRANSPOSED": False, "LOW": True}),
    (products_cuda._sums_over_rows, OVER_ROWS | {"ids": None, "BD": 64, "BK": 128, "LOW": True}),
    (products_cuda._rows_by_weight, BY_WEIGHT | products_cuda.NARROW | {"y": None, "bias": None, "TRANSPOSED": False}),
    (products_cuda._sums_over_rows, OVER_ROWS | {"ids": None, "BD": 64, "BK": 64}),
    (products_cuda._sums_over_rows, OVER_ROWS | {"ids": None, "BD": 64, "BK": 128}),
    (products_cuda._sums_over_rows, OVER_ROWS | {"BD": 128, "BK": 16, "y": None, "biases": None}),
    (dropout_cuda._scale_kept_rows, DROPPED),
    (dropout_cuda._scale_kept_rows, DROPPED | {"ids": None, "names": None, "key_at": None}),
]
TOOL = os.path.join(os.path.dirname(triton.backends.nvidia.__file__), "bin", "cuobjdump")
launched = {kernel for kernel, _ in KERNELS}
for module in (
    aggregate_cuda,
    attention_cuda,
    attention_shared_cuda,
    backward_cuda,
    dropout_cuda,
    rows_cuda,
    softmax_cuda,
    sums_cuda,
    products_cuda,
):
    for name, kernel in vars(module).items():
        # Those with another ending are called by kernels, not launched.
        own = isinstance(kernel, triton.JITFunction) and kernel.fn.__module__ == module.__name__
        assert not own or not name.endswith(("_rows", "_sums", "_dst", "_src", "_weight")) or kernel in launched, name
for kernel, options in KERNELS:
    given = {name: value for name, value in options.items() if name in kernel.arg_names}

    def kind(name):
        if name in given:
            return "constexpr"
        if name in REAL:
            return "*fp32"
        if name in NARROW:
            return "*i32"
        if name in LISTS:
            return "*i64"
        return {"key": "u64", "coef": "*fp32"}.get(name, "i32")

    places = {(kernel.arg_names.index(name),): value for name, value in given.items()}
    wide = {"attrs": {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name in REAL}}
    wide = wide if "num_warps" in options else {}
    source = ASTSource(fn=kernel, signature={name: kind(name) for name in kernel.arg_names}, constexprs=places, **wide)
    warps = {"num_warps": options.get("num_warps", 4), "maxnreg": options.get("maxnreg")}
    cubin = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=warps).asm["cubin"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        used = subprocess.run(
            [TOOL, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    # Bytes of each thread's that did not fit into registers: a few of those used once do no harm.
    spilled = sum(int(x) for x in re.findall(r"(?:STACK|LOCAL):(\\d+)", used))
    assert "STACK:" in used and spilled <= 32, (kernel, used)
print(len(KERNELS))
"""


def test_every_kernel_compiles(tmp_path):
    """In one process, since importing torch and Triton takes seconds."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SAMPLING + LAYERS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stdout == "44\n36\n", done.stderr
