"""Triton's compiler takes every sampling kernel down to a GPU's machine code: the interpreter is laxer than it is about types."""

import os
import subprocess
import sys

CODE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from millrace.stages.kernels import draw_cuda, labor_cuda, number_cuda

INT = {"num_rows", "num_edges", "fanout", "stride", "steps", "per_minibatch", "n"}
NARROW = {"sources", "nodes", "owner", "edges", "row", "local", "indices"}
TILE = {"KEEP": True, "ROWS": 64, "WIDTH": 16}
KERNELS = [
    (draw_cuda._uniform, TILE | {"REPLACE": False}),
    (draw_cuda._uniform, TILE | {"REPLACE": True}),
    (draw_cuda._uniform, TILE | {"REPLACE": False, "ROWS": 1024, "WIDTH": 1}),
    (draw_cuda._in_proportion, TILE),
    (draw_cuda._take, {"ORDERED": True, "KEEP": True, "BLOCK": 1024}),
    (draw_cuda._take, {"ORDERED": False, "KEEP": False, "BLOCK": 1024}),
    (draw_cuda._race, {"BLOCK": 1024}),
    (number_cuda._count, {"BLOCK": 4096}),
    (number_cuda._name, {"BLOCK": 4096}),
    (number_cuda._place, {"BLOCK": 1024}),
    (number_cuda._translate, {"KEEP": True, "BLOCK": 1024}),
    (labor_cuda._look, {"POISSON": True, "BLOCK": 1024}),
    (labor_cuda._look, {"POISSON": False, "BLOCK": 1024}),
    (labor_cuda._compact, {"BLOCK": 1024}),
]
for module in (draw_cuda, number_cuda, labor_cuda):
    for name, kernel in vars(module).items():
        # Those with another's name are called by kernels, not launched.
        if isinstance(kernel, triton.JITFunction) and name not in ("_is_new", "exponential", "draw_word", "node_word", "row_of"):
            assert any(kernel is k for k, _ in KERNELS), name
for kernel, given in KERNELS:

    def kind(name):
        if name in given:
            return "constexpr"
        return "i32" if name in INT else "*u8" if name in ("found", "flags") else "*i32" if name in NARROW else "*i64"

    places = {(kernel.arg_names.index(name),): value for name, value in given.items()}
    source = ASTSource(fn=kernel, signature={name: kind(name) for name in kernel.arg_names}, constexprs=places)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm
    assert made["cubin"]
    # The race's division must be IEEE's.
    assert ("div.rn.f64" in made["ptx"]) == (kernel is draw_cuda._race), kernel
print(len(KERNELS))
"""


def test_every_kernel_compiles(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout == "14\n", done.stderr
