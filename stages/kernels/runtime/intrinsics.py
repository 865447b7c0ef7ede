"""Machine instructions that numba does not expose: prefetches, trailing zero bits, bfloat16 as float32."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _prefetch(typing_context, array, index):
    """Prefetch the cache line of ``array[index]`` for reading, into the second-level cache. `array` is one-dimensional
    and contiguous.

    Not into the first level: a row of features is 7 lines and more, and a core waits once some twenty of that level's
        are under way.
    """

    def generate(context, builder, signature, args):
        pointer = builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        byte_pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.bitcast(pointer, byte_pointer), word(0), word(2), word(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


def _trailing_zeros(typing_context, word):
    """Number of trailing zero bits of a uint64 that is not zero."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _ones(typing_context, word):
    """Number of bits of a uint64 that are set."""

    def generate(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


LANES = 64
"""Numbers that `below` compares."""


def _below(typing_context, array, index, bound):
    """uint64 whose bit i is set if ``array[index + i] < bound``, for the `LANES` numbers from `index` on. `array` is
    uint64, one-dimensional and contiguous; all of these numbers must be there."""

    def generate(context, builder, signature, args):
        word, wide = ir.IntType(64), ir.VectorType(ir.IntType(64), LANES)
        start = builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        numbers = builder.load(builder.bitcast(start, wide.as_pointer()))
        numbers.align = 8
        one = builder.insert_element(ir.Constant(wide, ir.Undefined), args[2], ir.Constant(ir.IntType(32), 0))
        bounds = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))
        return builder.bitcast(builder.icmp_unsigned("<", numbers, bounds), word)

    return types.uint64(array, types.intp, types.uint64), generate


# Typed as Any, since the call does not show the typing context that numba passes.
prefetch: Any = intrinsic(_prefetch)
trailing_zeros: Any = intrinsic(_trailing_zeros)


def _widened(typing_context, value):
    """A floating-point number as it is; the 16 bits of a bfloat16 (uint16) as a float32."""

    def generate(context, builder, signature, args):
        if signature.args[0] != types.uint16:
            return args[0]
        high = builder.shl(builder.zext(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(high, ir.FloatType())

    return (types.float32 if value == types.uint16 else value)(value), generate


widened: Any = intrinsic(_widened)
ones: Any = intrinsic(_ones)
below: Any = intrinsic(_below)
