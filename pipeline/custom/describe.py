"""Description of a user's code by its meaning: equal texts for code that does the same, in any process."""

import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ...storage.fingerprint import digest_arrays, digest_record

LIBRARIES = ("torch", "builtins", "numpy", "torch_geometric", "sklearn", "torchmetrics")
"""Packages whose code is known by its name."""


def describe(value: Any) -> str:
    """Digest of a function, class or object with what it holds. Code is compared by its bytecode, so comments and
    places in a file do not matter. What it calls by global names is not followed."""
    return digest_record({"is": _plain(value, set())})


def _plain(value: Any, seen: set[int]) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | complex):
        return repr(value)
    if id(value) in seen:
        return "again"
    seen = seen | {id(value)}
    if isinstance(value, torch.Tensor | np.ndarray):
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        return digest_arrays(value=value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, seen) for k, v in sorted(value.items(), key=lambda kv: str(kv[0]))}
    if isinstance(value, set | frozenset):
        return sorted(str(_plain(v, seen)) for v in value)
    if isinstance(value, Sequence):
        return [_plain(v, seen) for v in value]
    if isinstance(value, functools.partial):
        return ["partial", *(_plain(v, seen) for v in (value.func, value.args, value.keywords))]
    if isinstance(value, types.MethodType):
        return [_plain(value.__func__, seen), _plain(value.__self__, seen)]
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, type):
        return _class(value, seen)
    if isinstance(value, types.BuiltinFunctionType | types.ModuleType):
        return f"{getattr(value, '__module__', '')}.{value.__name__}"
    own = vars(value) if hasattr(value, "__dict__") else {}
    if isinstance(value, nn.Module):
        plain = {k: v for k, v in own.items() if not k.startswith("_") and k != "training"}
        own = {**plain, **value.state_dict(), "text": repr(value)}
    return [_class(type(value), seen), {str(k): _plain(v, seen) for k, v in own.items()}]


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _is_known(value: object) -> bool:
    return str(value.__module__).partition(".")[0] in LIBRARIES


def _function(f: types.FunctionType, seen: set[int]) -> object:
    if _is_known(f):
        return _name(f)
    cells = []
    for cell in f.__closure__ or ():
        try:
            cells.append(_plain(cell.cell_contents, seen))
        except ValueError:
            cells.append("empty")
    defaults = [_plain(v, seen) for v in (f.__defaults__ or (), f.__kwdefaults__ or {})]
    return [f.__name__, _code(f.__code__), defaults, cells]


def _code(code: types.CodeType) -> object:
    consts = [_code(c) if isinstance(c, types.CodeType) else _plain(c, set()) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), list(code.co_varnames), consts]


def _class(cls: type, seen: set[int]) -> object:
    """A class by the code of its methods, and its bases."""
    if _is_known(cls):
        return _name(cls)
    inner = {}
    for name, value in sorted(vars(cls).items()):
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(value, types.FunctionType):
            inner[name] = _function(value, seen)
        elif isinstance(value, property):
            inner[name] = [None if f is None else _plain(f, seen) for f in (value.fget, value.fset)]
    return [cls.__name__, inner, [_class(base, seen) for base in cls.__bases__ if base is not object]]
