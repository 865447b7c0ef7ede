"""Operations inside kernels in Triton's interpreter, as short as one call of NumPy for operands seen before.

An operation checks, casts and spreads its operands by a dozen functions, and then makes one call of NumPy. What it does
follows from the types and shapes of its tensors and from its constants: the second time that these are seen, the calls
are recorded, and from then on only they are made. Whatever cannot be recorded takes the long way.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "and", "rand", "or", "ror", "xor", "rxor", "lshift", "rshift", "lt",
    "le", "gt", "ge", "eq", "ne", "mod", "truediv", "floordiv",
)  # fmt: skip
FUNCTIONS = ("load", "store", "where", "arange", "full", "dot", "minimum", "maximum", "exp", "umulhi")
MOST = 8192
"""Recordings that are kept: bounds of loops are constants that differ."""

_Recipe = Callable[..., Any]
_SEEN, _NEVER = object(), object()
_numbers: dict[Any, int] = {}
_SHAPING = {"create_splat": 1, "create_broadcast": 0}
"""The builder's calls that only spread an operand, with its place among the arguments: NumPy spreads it anyway."""


_CASTS = {
    "create_si_to_fp", "create_ui_to_fp", "create_fp_to_si", "create_fp_to_ui", "create_fp_ext", "create_fp_trunc",
    "create_int_cast",
}  # fmt: skip


class _UnknownError(Exception):
    """An argument that no key can be made of."""


def install(interpreter: Any) -> None:
    """Put recordings in the place of the operations of Triton's interpreter."""
    from triton import language
    from triton.language import core

    for name in OPERATORS:
        setattr(core.tensor, f"__{name}__", _recorded(interpreter, getattr(core.tensor, f"__{name}__")))
    core.tensor.to = _recorded(interpreter, core.tensor.to)
    core.tensor.__getitem__ = _indexed(interpreter, core.tensor.__getitem__)
    for name in FUNCTIONS:
        fast = _recorded(interpreter, getattr(language, name))
        for module in (language, core, language.math):
            if hasattr(module, name):
                setattr(module, name, fast)


def _key(x: Any, core: Any) -> Any:
    """Key of all that an operation's course may depend on: for tensors, types and shape; for others, the value."""
    kind = type(x)
    if kind is core.tensor:
        of, handle = x.type, x.handle
        try:
            key = of.key
        except AttributeError:
            # Descriptions of shapes live as long as the process. A number is hashed faster than what it stands for.
            full = ("tensor", of.scalar.name, id(getattr(of, "of_shape", None)))
            key = of.key = _numbers.setdefault(full, len(_numbers))
            of.is_truth = of.scalar.name == "int1"
        if of.is_truth and handle is not None:
            # In the interpreter truth values have the type of what was compared, and once spread its data too.
            return key, handle.dtype.scalar.name, handle.data.dtype.char
        return key
    if kind is int or kind is bool or x is None or kind is str:
        return kind, x
    if kind is float:
        # Zeros differ in their signs.
        return kind, x.hex()
    if kind is core.constexpr:
        return "constant", _key(x.value, core)
    if kind is list or kind is tuple:
        return kind, *[_key(v, core) for v in x]
    if isinstance(x, core.dtype) and not x.is_block():
        return "type", x.name
    raise _UnknownError


def _recorded(interpreter: Any, operation: Any) -> Any:
    from triton.language import core

    known: dict[Any, Any] = {}
    semantic = interpreter.interpreter_semantic

    def run(*args: Any, _semantic: Any = None, **named: Any) -> Any:
        if type(semantic.builder) is _Recorder:
            # An operation inside one that is being recorded, which its recorder would not see.
            semantic.builder.spoiled = True
            return operation(*args, _semantic=semantic, **named)
        values = (*args, *named.values()) if named else args
        try:
            key = tuple([_key(x, core) for x in values])
            if named:
                key += tuple(named)
        except _UnknownError:
            return operation(*args, _semantic=semantic, **named)
        found = known.get(key)
        if found is None:
            if len(known) >= MOST:
                known.clear()
            known[key] = _SEEN
        elif found is _SEEN and _differ(values):
            result, recipe = _record(interpreter, lambda: operation(*args, _semantic=semantic, **named), values)
            known[key] = recipe or _NEVER
            return result
        elif found is not _SEEN and found is not _NEVER:
            return found(values)
        return operation(*args, _semantic=semantic, **named)

    return run


def _indexed(interpreter: Any, operation: Any) -> Any:
    """`tensor.__getitem__`, which inserts dimensions of size one."""
    from triton.language import core

    known: dict[Any, Any] = {}

    def run(self: Any, slices: Any, _semantic: Any = None) -> Any:
        at = slices if type(slices) is tuple else (slices,)
        if not all(s is None or (type(s) is slice and s == slice(None)) for s in at):
            return operation(self, slices, _semantic=interpreter.interpreter_semantic)
        key = (_key(self, core), *[s is None for s in at])
        if (like := known.get(key)) is None:
            known[key] = result = operation(self, slices, _semantic=interpreter.interpreter_semantic)
            return result
        return _tensor(interpreter, like, self.handle.data.reshape(like.handle.data.shape))

    return run


def _tensor(interpreter: Any, like: Any, data: Any) -> Any:
    """A tensor of `data`, otherwise like another one."""
    handle = object.__new__(interpreter.TensorHandle)
    handle.data, handle.dtype, handle.attr = data, like.handle.dtype, {}
    made = object.__new__(type(like))
    made.handle, made.type, made.dtype, made.numel, made.shape = handle, like.type, like.dtype, like.numel, like.shape
    return made


class _Recorder:
    """The interpreter's builder, which remembers what was asked of it."""

    def __init__(self, real: Any, operands: list[Any]) -> None:
        self.real, self.spoiled = real, False
        # Of each handle that is an operand, maybe cast: the operand's place, and the casts.
        self.origin: dict[int, tuple[int, tuple[Any, ...]]] = {
            id(h): (i, ()) for i, h in enumerate(operands) if h is not None
        }
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []
        # Handles that are gone must not lend their ids to others.
        self.kept: list[Any] = list(operands)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.real, name)
        if not callable(real) or name.startswith("get_"):
            return real

        def call(*args: Any) -> Any:
            made = real(*args)
            self.kept += [made, *args]
            source = args[_SHAPING.get(name, 0)]
            if name == "create_expand_dims" and args[1] != 0:
                self.calls.append((name, args, made))
            elif name in _SHAPING or name == "create_expand_dims":
                if id(source) in self.origin:
                    self.origin[id(made)] = self.origin[id(source)]
            elif name in _CASTS:
                if id(source) in self.origin and "bf16" not in (source.dtype.scalar.name, made.dtype.scalar.name):
                    place, casts = self.origin[id(source)]
                    self.origin[id(made)] = place, (*casts, made.data.dtype)
                elif id(source) in self.origin:
                    self.spoiled = True
            else:
                self.calls.append((name, args, made))
            return made

        return call


def _differ(values: tuple[Any, ...]) -> bool:
    """False if two operands are one, which a recorder could not tell apart."""
    handles = [id(v.handle) for v in values if hasattr(v, "handle")]
    return len(set(handles)) == len(handles)


class _Probe:
    """A builder that tells which function of NumPy an operation is."""

    @staticmethod
    def binary_op(a: Any, b: Any, function: Any) -> Any:
        return function


def _record(interpreter: Any, operation: Callable[[], Any], values: tuple[Any, ...]) -> tuple[Any, _Recipe | None]:
    """The operation's result, and its recording, if there can be one."""
    semantic = interpreter.interpreter_semantic
    builder = semantic.builder
    handles = [getattr(v, "handle", None) for v in values]
    recorder = semantic.builder = _Recorder(builder, handles)
    try:
        result = operation()
    finally:
        semantic.builder = builder
    recipe = None if recorder.spoiled else _recipe(interpreter, recorder, result, values)
    if recipe is None or not hasattr(result, "handle"):
        return result, None
    if result.handle is not None:
        again = recipe(values).handle
        a, b = again.data, result.handle.data
        if (a.shape, a.dtype, again.dtype) != (b.shape, b.dtype, result.handle.dtype) or a.tobytes() != b.tobytes():
            return result, None
    return result, recipe


def _recipe(interpreter: Any, recorder: _Recorder, result: Any, values: tuple[Any, ...]) -> _Recipe | None:
    handle = getattr(result, "handle", None)
    if not recorder.calls:
        if id(handle) not in recorder.origin:
            if handle is None or any(hasattr(v, "handle") for v in values):
                return None
            # A block of a constant, which nobody writes into.
            handle.data.flags.writeable = False
            return lambda values: _tensor(interpreter, result, handle.data)
        place, casts = recorder.origin[id(handle)]
        if not casts:
            return lambda values: values[place]
        return lambda values: _tensor(interpreter, result, _cast(values[place].handle.data, casts))
    if len(recorder.calls) != 1 or recorder.calls[0][2] is not handle:
        return None
    name, args, _ = recorder.calls[0]
    sources = [recorder.origin.get(id(a)) for a in args]
    if name == "create_make_range":
        return lambda values: _tensor(interpreter, result, handle.data)
    if {s[0] for s in sources if s} != {i for i, v in enumerate(values) if hasattr(v, "handle")}:
        # What became of an operand depended on its value.
        return None
    if name == "create_addptr" and sources[0] == (0, ()) and sources[1]:
        width = max(1, args[0].get_element_ty().primitive_bitwidth // 8)
        place, casts = sources[1][0], (*sources[1][1], np.dtype(np.uint64))

        def add(values: Any) -> Any:
            return _tensor(interpreter, result, values[0].handle.data + width * _cast(values[place].handle.data, casts))

        return add
    try:
        function = getattr(type(recorder.real), name)(_Probe(), *args)
    except (AttributeError, TypeError):
        function = None
    # That shift casts its operands itself.
    if isinstance(function, np.ufunc) and name != "create_ashr":
        return _of_two(interpreter, function, args, sources, result)
    return _primitive(interpreter, name, args, sources, recorder.real, result)


def _cast(data: Any, casts: tuple[Any, ...]) -> Any:
    for dtype in casts:
        data = data.astype(dtype)
    return data


def _of_two(interpreter: Any, function: Any, args: Any, sources: Any, result: Any) -> _Recipe:
    """A function of two operands; constants need one element only."""
    (a, b), dtype = sources, result.handle.data.dtype
    left, right = (None if s else x.data.reshape(-1)[:1].copy() for s, x in zip(sources, args))

    def run(values: Any) -> Any:
        x = left if a is None else values[a[0]].handle.data
        y = right if b is None else values[b[0]].handle.data
        if a and a[1]:
            x = _cast(x, a[1])
        if b and b[1]:
            y = _cast(y, b[1])
        made = function(x, y)
        return _tensor(interpreter, result, made if made.dtype == dtype else made.astype(dtype))

    return run


def _primitive(interpreter: Any, name: str, args: Any, sources: Any, builder: Any, result: Any) -> _Recipe | None:
    """Any other call of the builder, with its operands cast and spread as they were."""
    Handle = interpreter.TensorHandle
    call = getattr(builder, name)

    def given(values: Any) -> list[Any]:
        made = []
        for arg, source in zip(args, sources):
            if source is None:
                made.append(arg)
                continue
            data = _cast(values[source[0]].handle.data, source[1])
            if data.shape != arg.data.shape:
                data = np.broadcast_to(data, arg.data.shape)
            handle = object.__new__(Handle)
            handle.data, handle.dtype, handle.attr = data, arg.dtype, {}
            made.append(handle)
        return made

    if result.handle is None:

        def store(values: Any) -> Any:
            call(*given(values))
            return result

        return store
    return lambda values: _tensor(interpreter, result, call(*given(values)).data)
