"""A GPU that is not there: tensors that say they lie on ``cuda:0``, while their values lie on the host.

An operation on a tensor of the device and one of the host raises, as it does on a GPU; so does a Triton kernel, which
runs in the interpreter, that is given a tensor of the host that is not page-locked. Stricter than a GPU in one thing:
indices of rows must lie on the device too, since a GPU copies them, and waits.

Its memory is that of the values of living tensors, each storage once, without what an allocator loses between them.

Streams and events do nothing, since everything is done when it is asked for: a missing wait goes unnoticed here. A
recorded CUDA graph is the list of its operations, which a replay runs again; a recording may not read a value.
"""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda", 0)
MEMORY = 8 << 30
"""Bytes of the device's memory."""
PROPERTIES = SimpleNamespace(name="pretended", total_memory=MEMORY, multi_processor_count=1, major=9, minor=0)
aten: Any = torch.ops.aten
BETWEEN = {aten.copy_.default}
"""Operations that take tensors of both."""
NUMBERS = {
    aten.fill_.Tensor, aten.floor_divide.default, aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten.masked_fill.Tensor, aten.masked_fill_.Tensor,
}  # fmt: skip
"""Operations that take a number of the host, a tensor without dimensions, besides those on each element."""
FLOATS = {aten.mm, aten.bmm, aten.mv, aten.dot, aten.vdot, aten.addmm, aten.addmv, aten.baddbmm}
"""Operations that a GPU has for no integers."""
READS = {aten._local_scalar_dense.default, aten.nonzero.default, aten._unique2.default, aten.unique_dim.default}
"""Operations that wait for the device."""
PRODUCTS = {aten.mm.dtype: torch.mm, aten.bmm.dtype: torch.bmm}
PRODUCTS_INTO = {aten.mm.dtype_out: torch.mm, aten.bmm.dtype_out: torch.bmm}
"""Products in another dtype than their operands', which the host does not have."""

_locked: dict[int, Any] = {}
"""Page-locked memory of the host, by address."""
_recording = threading.local()


class Memory:
    """Bytes of the storages of living tensors of the device."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._tensors: dict[int, int] = {}
        self._lock = threading.RLock()

    def hold(self, tensor: "OnDevice") -> None:
        """Count the storage of a tensor until that, and all others that share it, are gone."""
        storage = tensor.held.untyped_storage()
        at, size = storage.data_ptr(), storage.nbytes()
        if size:
            weakref.finalize(tensor, self._leave, at, size).atexit = False
            self._count(at, size, 1)

    def _leave(self, at: int, size: int) -> None:
        self._count(at, size, -1)

    def _count(self, at: int, size: int, change: int) -> None:
        with self._lock:
            before = self._tensors.pop(at, 0)
            if before + change:
                self._tensors[at] = before + change
            self.now += size * (bool(before + change) - bool(before))
            self.peak = max(self.peak, self.now)

    def reset(self) -> None:
        """Forget the peak."""
        self.peak = self.now


_memory = Memory()


class Operations(TorchDispatchMode):
    """Notes the operations of torch that a thread asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []

    @property
    def waits(self) -> set[Any]:
        """Those that wait for the device."""
        return READS & set(self.asked)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        self.asked.append(func)
        return func(*args, **(kwargs or {}))


class OnDevice(Tensor):
    """A tensor on the pretended device.

    Args:
        held: its values.
    """

    held: Tensor
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type, held: Tensor, requires_grad: bool = False) -> "OnDevice":
        # Without memory: autograd of a torch without CUDA knows no device of type cuda.
        return Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("meta"),
            requires_grad=requires_grad,
        )

    def __init__(self, held: Tensor, requires_grad: bool = False) -> None:
        self.held = held.detach()
        _memory.hold(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnDevice({self.held})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = OnDevice(self.held.clone(), self.requires_grad)
            memo[id(self)] = nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("a tensor of the pretended device is pickled")

    # torch would make tensors without values of numbers and arrays.
    def __setitem__(self, index: Any, value: Any) -> None:
        value = value if isinstance(value, Tensor) else torch.tensor(value, dtype=self.dtype)
        super().__setitem__(_index(index), value)

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_index(index))

    def numpy(self, *, force: bool = False) -> Any:
        """Its values, if they may be copied."""
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        return self.detach().cpu().numpy()

    def tolist(self) -> Any:
        """Its values."""
        return self.cpu().tolist()

    def untyped_storage(self) -> Any:
        """The memory of its values."""
        return self.held.untyped_storage()

    def record_stream(self, s: Any) -> None:
        """No effect."""

    def is_pinned(self, device: Any = None) -> bool:
        """False."""
        return False

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        if any(type(t) not in (Tensor, nn.Parameter, OnDevice) for t in tensors):
            return NotImplemented
        _check(func, args, kwargs, [t for t in tensors if not isinstance(t, OnDevice)])
        options = dict(kwargs)
        to = options.pop("device", None)
        if to is not None:
            options["device"] = "cpu"
        given, named = _mapped(_held, args), _mapped(_held, options)

        def run() -> Any:
            if func in PRODUCTS:
                return PRODUCTS[func](*(x.to(given[2]) for x in given[:2]))
            if func in PRODUCTS_INTO:
                return named["out"].copy_(PRODUCTS_INTO[func](*(x.to(given[2]) for x in given[:2])))
            return func(*given, **named)

        result = run()
        stays = to is None or to.type != "cpu"
        _record(func, run, result, tensors, stays)
        if not stays:
            return result
        if func in BETWEEN and not isinstance(args[0], OnDevice):
            return args[0]
        if func._schema.name.startswith("aten::_foreach") and func._schema.name.endswith("_"):
            return result
        made = _mapped(_on_device, result)
        return return_and_correct_aliasing(func, args, kwargs, made) if _aliases(func) else made


@functools.cache
def _aliases(func: Any) -> bool:
    """True if an operation's result, or one of its arguments, may be another's memory."""
    return any(a.alias_info is not None for a in (*func._schema.arguments, *func._schema.returns))


def _check(func: Any, args: Any, kwargs: dict[str, Any], of_host: list[Tensor]) -> None:
    """Refuse what a GPU would: tensors of the host that are not numbers or are written to, a generator of the host, and
    products of integers."""
    if any(t.is_meta for t in of_host):
        raise RuntimeError(f"{func}: found a tensor without numbers, where a GPU would have been its device")
    if of_host and func not in BETWEEN:
        takes = torch.Tag.pointwise in func.tags or func in NUMBERS or func._schema.name.startswith("aten::_foreach")
        given = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
        written = [given.get(a.name) for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        if not takes or any(t.dim() or any(t is x for x in tree_leaves(written)) for t in of_host):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, found cuda:0 and cpu")
    _check_generator(kwargs.get("generator"))
    if func.overloadpacket in FLOATS and not (args[0].is_floating_point() or args[0].is_complex()):
        raise NotImplementedError(f"{func}: not implemented on cuda:0 for {args[0].dtype}")


def _check_generator(generator: torch.Generator | None) -> None:
    if generator is not None and not any(generator is known for known in torch.cuda.default_generators):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def _index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    return OnDevice(torch.as_tensor(np.asarray(index))) if isinstance(index, np.ndarray | list) else index


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _on_device(value: Any) -> Any:
    return OnDevice(value) if isinstance(value, Tensor) and not isinstance(value, OnDevice) else value


def _record(func: Any, run: Callable[[], Any], result: Any, inputs: list[Tensor], stays: bool) -> None:
    """Add an operation to the recording under way in this thread."""
    steps = getattr(_recording, "steps", None)
    if steps is None:
        return
    if func in READS or not stays or any(not isinstance(t, OnDevice) and t.dim() for t in inputs):
        raise RuntimeError(f"{func}: operation not permitted when stream is capturing")
    known = {t.untyped_storage().data_ptr() for t in inputs if isinstance(t, OnDevice)}
    made = [t if t.untyped_storage().data_ptr() not in known else None for t in _tensors(result)]

    def again() -> None:
        for old, new in zip(made, _tensors(run())):
            if old is not None:
                old.copy_(new)

    steps.append(again)


# As torch's trees do, in a tenth of their time, which was a quarter of an operation's.
def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if type(values) in (tuple, list, dict):
        return [t for v in (values.values() if type(values) is dict else values) for t in _tensors(v)]
    return [t for t in tree_leaves(values) if isinstance(t, Tensor)]


def _mapped(change: Callable[[Any], Any], values: Any) -> Any:
    kind = type(values)
    if kind is tuple or kind is list:
        return kind([_mapped(change, v) for v in values])
    if kind is dict:
        return {key: _mapped(change, v) for key, v in values.items()}
    return change(values) if isinstance(values, Tensor | int | float | None) else tree_map(change, values)


def _gradients(real: Any) -> Any:
    """`BackwardCFunction.apply` that refuses gradients which lie elsewhere than what they are of."""

    @functools.wraps(real)
    def apply(self: Any, *args: Any) -> Any:
        found = real(self, *args)
        for (node, at), grad in zip(self.next_functions, found if isinstance(found, tuple) else (found,)):
            if node is None or grad is None or grad.is_meta:
                continue
            # The device of a tensor as autograd knows it: see `OnDevice.__new__`.
            if (node._input_metadata[at].device.type == "meta") != isinstance(grad, OnDevice):
                raise RuntimeError(f"{type(self).__name__} returned an invalid gradient: not on the same device")
        return found

    return apply


class _Upload(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return OnDevice(x.detach().clone())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        return grads[0].held.clone()


def _to(real: Any) -> Any:
    """`Tensor.to` that knows the device."""

    @functools.wraps(real)
    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device = kwargs.get("device", args[0] if args and not isinstance(args[0], torch.dtype) else None)
        if device is None or torch.device(device).type != "cuda":
            return real(self, *args, **kwargs)
        if args and not isinstance(args[0], torch.dtype):
            args = args[1:]
        kwargs.pop("device", None)
        kwargs.pop("non_blocking", None)
        if args and isinstance(args[-1], bool):
            args = args[:-1]
        there = real(self, *args, **kwargs) if args or kwargs else self
        if isinstance(there, OnDevice):
            return there
        if type(there) not in (Tensor, nn.Parameter):
            there = there + 0  # rows that are only named are gathered
        return _Upload.apply(there) if there.requires_grad else OnDevice(there.detach().clone())

    return to


def _made(real: Any) -> Any:
    """A function that makes tensors and knows the device."""

    @functools.wraps(real)
    def make(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        if device is not None and torch.device(device).type == "cuda":
            requires_grad = kwargs.pop("requires_grad", False)
            _check_generator(kwargs.get("generator"))
            if pin_memory:
                raise RuntimeError("Only dense CPU tensors can be pinned")
            return OnDevice(real(*(_held(a) for a in args), **kwargs), requires_grad)
        if device is not None:
            kwargs["device"] = device
        made = real(*args, **kwargs)
        return _lock(made) if pin_memory else made

    return make


def _pinned(self: Tensor) -> Tensor:
    """`Tensor.pin_memory`."""
    if self.is_cuda:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
    return _lock(self.clone())


def _lock(x: Tensor) -> Tensor:
    storage = x.untyped_storage()
    _locked[storage.data_ptr()] = storage
    return x


MAKERS = (
    "arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones", "ones_like", "rand",
    "rand_like", "randint", "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like",
)  # fmt: skip
MAKERS_LIKE = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")


def _where(real: Any) -> Any:
    """`torch.where` that makes no tensor without values of a number."""

    @functools.wraps(real)
    def where(*args: Any, **kwargs: Any) -> Any:
        return real(*(torch.tensor(a) if isinstance(a, int | float) else a for a in args), **kwargs)

    return where


class Stream:
    """A stream of the pretended device."""

    cuda_stream = 1

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = DEVICE

    def _nothing(self, *_: Any, **__: Any) -> None:
        """No effect."""

    wait_stream = wait_event = synchronize = _nothing


class Event:
    """An event of the pretended device, which has come."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """No effect."""

    def record(self, stream: Any = None) -> None:
        """No effect."""

    wait = synchronize = record

    def query(self) -> bool:
        """True."""
        return True

    def elapsed_time(self, other: "Event") -> float:
        """Nothing takes time."""
        return 0.0


class Graph:
    """A recording of operations."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []

    def replay(self) -> None:
        """Run the operations again."""
        for step in self.steps:
            step()


@contextlib.contextmanager
def recording(graph: Graph, **_: Any) -> Iterator[None]:
    """Stand-in for `torch.cuda.graph`."""
    _recording.steps = graph.steps
    try:
        yield
    finally:
        _recording.steps = None


def _launched(real: Any) -> Any:
    """`GridExecutor.__call__` that knows the device."""

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        for t in (*args, *kwargs.values()):
            if isinstance(t, Tensor) and not isinstance(t, OnDevice) and not _is_locked(t):
                raise ValueError(f"{self.fn.__name__}: pointer argument cannot be accessed from Triton (cpu tensor?)")
        given, named = [_held(a) for a in args], {k: _held(v) for k, v in kwargs.items()}
        real(self, *given, **named)
        if getattr(_recording, "steps", None) is not None:
            _recording.steps.append(lambda: real(self, *given, **named))

    return launch


def _is_locked(x: Tensor) -> bool:
    return not x.numel() or x.untyped_storage().data_ptr() in _locked


def install(patch: pytest.MonkeyPatch) -> None:
    """Put the device into torch and Triton's interpreter until `patch` is undone, for all threads of this process.

    Not where there is a GPU.
    """
    if torch.cuda.is_available():
        return
    from triton.runtime.interpreter import GridExecutor

    from millrace.stages.kernels.runtime import triton_rng

    for name in MAKERS:
        patch.setattr(torch, name, _made(getattr(torch, name)))
    for name in MAKERS_LIKE:
        patch.setattr(Tensor, name, _made_like(getattr(Tensor, name)))
    patch.setattr(Tensor, "to", _to(Tensor.to))
    patch.setattr(Tensor, "cuda", lambda self, *_, **__: self.to(DEVICE))
    patch.setattr(Tensor, "type_as", lambda self, other: self.to(other))
    patch.setattr(Tensor, "pin_memory", _pinned)
    patch.setattr(torch, "where", _where(torch.where))
    function = torch.autograd.function.BackwardCFunction
    patch.setattr(function, "apply", _gradients(function.apply))
    patch.setattr(GridExecutor, "__call__", _launched(GridExecutor.__call__))
    # `Module.to` keeps a parameter's object, and so its class, and gives it other data: not of another class.
    patch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    patch.setattr(torch.backends.cuda, "is_built", lambda: True)
    # A torch that is built for CUDA would ask the driver for its streams.
    patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
    patch.setattr(triton_rng, "INTERPRETED", False)
    here = Stream()
    stand_ins = {
        "Stream": Stream, "Event": Event, "CUDAGraph": Graph, "graph": recording,
        "is_available": lambda: True, "is_initialized": lambda: True, "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1, "init": lambda: None, "set_device": lambda device: None, "current_device": lambda: 0,
        "synchronize": lambda device=None: None, "current_stream": lambda device=None: here,
        "stream": lambda stream: contextlib.nullcontext(),
        "mem_get_info": lambda device=None: (MEMORY - _memory.now, MEMORY),
        "memory_reserved": lambda device=None: _memory.now, "memory_allocated": lambda device=None: _memory.now,
        "max_memory_allocated": lambda device=None: _memory.peak,
        "reset_peak_memory_stats": lambda device=None: _memory.reset(),
        "get_device_properties": lambda device=None: PROPERTIES, "get_device_capability": lambda device=None: (9, 0),
        "default_generators": (torch.Generator(),), "is_bf16_supported": lambda *_: True,
    }  # fmt: skip
    for name, value in stand_ins.items():
        patch.setattr(torch.cuda, name, value)


def _made_like(real: Any) -> Any:
    @functools.wraps(real)
    def make(self: Tensor, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        there = isinstance(self, OnDevice) if device is None else torch.device(device).type == "cuda"
        made = real(_held(self), *args, **kwargs)
        return OnDevice(made) if there else made

    return make


def is_pretended() -> bool:
    """True if the device is in place."""
    return torch.cuda.Stream is Stream


def install_for_good() -> torch.device:
    """The device, in this process until it ends: for ranks."""
    install(pytest.MonkeyPatch())
    return DEVICE
