"""Triton's interpreter as tests use it: from several threads, and without work that only a first launch needs."""

import inspect
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from millrace.tests.contracts import interpreted_operations


def prepare() -> None:
    """Run one kernel at a time, patch the language once, remember shapes and operands' types, and let integers overflow
    unchecked as on a GPU.

    The interpreter keeps the grid of the running kernel in one place for all threads. It patches the language for
    every call of a function inside a kernel, and computes the check of each sum that it then does not make: a third
    of the time of a launch. A third of the rest describes shapes, of which there are few, and a third of what remains
    finds the common type of two operands, which are of few types, and makes blocks of constants. For each launch it
    reads the kernel's signature twice, and copies each argument from the device, which is the host, and back: a fifth
    of the time. The rest of it is in `interpreted_operations`.
    """
    from triton.runtime import interpreter

    one_kernel, launch = threading.RLock(), _launched(interpreter)

    def one_at_a_time(self: Any, *args: object, **kwargs: object) -> None:
        # A GPU warns of no infinity.
        with one_kernel, np.errstate(all="ignore"):
            launch(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = one_at_a_time
    interpreter._patch_lang = _once(interpreter._patch_lang, interpreter._LangPatchScope)
    builder: Any = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    _remember_shapes(interpreter)
    _remember_operands()
    interpreted_operations.install(interpreter)


def _once(patch: Callable[[Any], object], nothing: Callable[[], object]) -> Callable[[Any], object]:
    """`patch` for functions whose modules name other parts of the language than those before; it stays patched."""
    from triton import language

    seen: set[int] = set()
    patched: set[int] = set()

    def patch_new(function: Any) -> object:
        names = function.__globals__
        if id(names) not in seen:
            parts = {id(v) for v in names.values() if inspect.ismodule(v) and v in (language, language.core)}
            if not parts or not parts <= patched:
                patch(function)
            patched.update(parts)
            seen.add(id(names))
        # What the caller restores.
        return nothing()

    return patch_new


def _launched(interpreter: Any) -> Callable[..., None]:
    """`GridExecutor.__call__` that reads a signature and the name of a type once, and copies no tensors."""
    from triton.language import core

    launch, start = interpreter.GridExecutor.__call__, interpreter.GridExecutor.__init__
    builder, convert = interpreter.interpreter_builder, interpreter._implicit_cvt
    # Of a kernel: its arguments' names and default values, and which are constants.
    signatures: dict[Any, tuple[list[str], dict[str, Any], list[str]]] = {}
    types: dict[Any, Any] = {}
    copied = (tuple, interpreter.TensorDescriptor, interpreter.triton.runtime.jit.TensorWrapper)

    def started(self: Any, fn: Any, arg_names: list[str], grid: Any, pre_run_hooks: Any = ()) -> None:
        if (known := signatures.get(fn)) is None:
            start(self, fn, arg_names, grid, pre_run_hooks)
            parameters = inspect.signature(fn).parameters
            default = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
            known = signatures[fn] = list(parameters), default, self.constexprs
        self.fn, self.arg_names, self.grid, self.pre_run_hooks = fn, arg_names, grid, pre_run_hooks
        self.constexprs = known[2]

    def argument(given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            of, value = given.dtype, np.array([given.data_ptr()], np.uint64)
        elif type(given) is int and -(2**31) <= given < 2**31:
            of, value = int, np.array([given], np.int32)
        else:
            return convert(given)
        if (known := types.get(of)) is None:
            known = types[of] = convert(given).type
        return core.tensor(interpreter.TensorHandle(value, known), known)

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        names, default, constants = signatures[self.fn]
        given = {**default, **dict(zip(names, args)), **{name: kwargs[name] for name in names if name in kwargs}}
        if len(given) < len(names) or self.pre_run_hooks or any(isinstance(a, copied) for a in given.values()):
            launch(self, *args, **kwargs)
            return
        interpreter._patch_lang(self.fn)
        given = {name: a if name in constants else argument(a) for name, a in given.items()}
        grid = self.grid(given) if callable(self.grid) else self.grid
        sizes = (*grid, 1, 1)[:3]
        builder.set_grid_dim(*sizes)
        try:
            for at in itertools.product(*map(range, sizes)):
                builder.set_grid_idx(*at)
                self.fn(**given)
        except Exception as e:
            raise interpreter.InterpreterError(repr(e)) from e

    interpreter.GridExecutor.__init__ = started
    return run


def _remember_shapes(interpreter: Any) -> None:
    """Describe each shape of a block once, and leave two values of one shape as they are."""
    from triton.language import core, semantic

    Shape = tuple[Any, int, Any, Any]
    # Of a block, and of a tensor with it: its shape, and its number of elements.
    of_scalar: Shape = (None, 1, core.constexpr(1), core.tuple([]))
    known: dict[tuple[int, ...], Shape] = {}
    numpy_types: dict[str, Any] = {}
    begin_block, numpy_type = core.block_type.__init__, interpreter._get_np_dtype
    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        if (found := known.get(key)) is None:
            begin_block(self, element_ty, shape)
            sizes = core.tuple([core.constexpr(size) for size in self.shape])
            known[key] = self.shape, self.numel, core.constexpr(self.numel), sizes
            self.of_shape = known[key]
            return
        self.element_ty, self.of_shape, self.shape, self.numel = element_ty, found, found[0], found[1]
        self.name = f"<{key}, {element_ty}>"

    def tensor(self: Any, handle: Any, type: Any) -> None:
        _, _, self.numel, self.shape = type.of_shape if type.is_block() else of_scalar
        self.handle, self.type, self.dtype = handle, type, type.scalar

    def type_of(of: Any) -> Any:
        element = of.element_ty if isinstance(of, core.block_type) else of
        if (found := numpy_types.get(element.name)) is None:
            found = numpy_types[element.name] = numpy_type(element)
        return found

    def broadcast_unless_equal(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        a, b = lhs.type, rhs.type
        if a.is_block() and b.is_block() and a.of_shape is b.of_shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    core.block_type.__init__ = block_type
    core.tensor.__init__ = tensor
    interpreter._get_np_dtype = type_of
    semantic.TritonSemantic.broadcast_impl_value = broadcast_unless_equal


MOST_OPERANDS = 4096
"""Pairs of operands that are remembered: bounds of loops are constants that differ."""


def _remember_operands() -> None:
    """Check two operands of known types and shapes once, if the check leaves tensors as they are, and make the block of
    a constant once."""
    from triton.language import core, semantic

    check = semantic.TritonSemantic.binary_op_type_checking_impl
    # What the check makes of both operands: None for one that stays; False where it makes another tensor of a tensor.
    known: dict[Any, Any] = {}

    def kind(operand: Any) -> tuple[Any, Any]:
        if isinstance(operand, core.tensor):
            # Descriptions of shapes live as long as the process.
            return operand.dtype.name, id(getattr(operand.type, "of_shape", None))
        return type(operand), operand

    def constant(given: Any, made: Any) -> Any:
        if isinstance(given, core.tensor):
            return None if made is given else False
        made.handle.data.flags.writeable = False
        return made

    def remembered(self: Any, lhs: Any, rhs: Any, *flags: Any, **named: Any) -> tuple[Any, Any]:
        key = kind(lhs), kind(rhs), flags, tuple(named.items())
        found = known.get(key)
        if found is None:
            both = check(self, lhs, rhs, *flags, **named)
            if len(known) >= MOST_OPERANDS:
                known.clear()
            left, right = constant(lhs, both[0]), constant(rhs, both[1])
            known[key] = False if left is False or right is False else (left, right)
            return both
        if found is False:
            return check(self, lhs, rhs, *flags, **named)
        left, right = found
        return lhs if left is None else left, rhs if right is None else right

    semantic.TritonSemantic.binary_op_type_checking_impl = remembered
