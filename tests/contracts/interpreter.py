"""Triton's interpreter as tests use it: from several threads, and without work that only a first launch needs."""

import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def prepare() -> None:
    """Run one kernel at a time, patch the language once, remember shapes, and let integers overflow unchecked as on a
    GPU.

    The interpreter keeps the grid of the running kernel in one place for all threads. It patches the language for
    every call of a function inside a kernel, and computes the check of each sum that it then does not make: a third
    of the time of a launch. A third of the rest describes shapes, of which there are few.
    """
    from triton.runtime import interpreter

    one_kernel, launch = threading.RLock(), interpreter.GridExecutor.__call__

    def one_at_a_time(self: Any, *args: object, **kwargs: object) -> None:
        with one_kernel:
            launch(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = one_at_a_time
    interpreter._patch_lang = _once(interpreter._patch_lang, interpreter._LangPatchScope)
    builder: Any = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    _remember_shapes(interpreter)


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
