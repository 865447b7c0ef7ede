"""Compiled kernels. Backends of sampling are chosen once, by name, those of aggregation by the
device of the rows; all of one kind export the same functions."""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...storage.errors import InputError, MissingExtraError, one_of

if TYPE_CHECKING:
    import torch

AGGREGATION = ("cpu", "cuda")
"""Backends of aggregation, by the type of the device whose memory holds the tensors."""
SAMPLING = ("cpu", "cuda", "matrix")
"""Backends of sampling that draw the same bits; ``matrix`` has only samplers that are written as matrices."""
NO_REFERENCE = (
    "which is no longer part of the package; leave kernel out, which draws the same minibatches, or set kernel = "
    '"matrix" to check a MatrixSampler by products in SciPy'
)
"""End of the sentence that refuses the kernel ``reference`` of earlier versions."""
OTHER_BITS = ("cugraph",)
"""Backends that have only the sampler ``neighbor`` and draw from the same distributions with other bits; runs must
record their use."""


def aggregation_backend(name: str = "cpu") -> ModuleType:
    """The aggregation kernels of that name.

    Raises:
        InputError: no such backend.
        MissingExtraError: it needs Triton, which is not installed.
    """
    if name not in AGGREGATION:
        raise InputError(f"no aggregation backend '{name}'; {one_of(name, AGGREGATION)}")
    if name == "cuda":
        _check_triton("aggregation on a GPU needs Triton, which is not installed: install torch with CUDA, or triton")
    return import_module(f".aggregation.{name}.backend", __name__)


def aggregation_on(device: "torch.device") -> ModuleType:
    """Backend for tensors on `device`."""
    return aggregation_backend("cuda" if device.type == "cuda" else "cpu")


def destinations_on_host() -> ModuleType:
    """Module that aggregates blocks of destinations from the rows of a whole layer in host memory."""
    return import_module(".aggregation.cpu.destinations", __name__)


def numbering_on_host() -> ModuleType:
    """Module that numbers the sources of a block of a graph in host memory."""
    return import_module(".aggregation.cpu.numbering", __name__)


def dropout_on(device: "torch.device") -> ModuleType:
    """Module that drops elements of tensors on `device`.

    Raises:
        MissingExtraError: it is a GPU, and Triton is not installed.
    """
    if device.type != "cuda":
        return import_module(".aggregation.cpu.dropout", __name__)
    _check_triton("dropout on a GPU needs Triton, which is not installed: install torch with CUDA, or triton")
    return import_module(".aggregation.cuda.dropout", __name__)


def check_known(kernel: str, known: Sequence[str] = (*SAMPLING, *OTHER_BITS)) -> None:
    """Refuse names that are no sampling kernel's. Raises InputError."""
    if kernel == "reference":
        raise InputError(f'kernel is "reference", {NO_REFERENCE}')
    if kernel not in known:
        raise InputError(f"no sampling kernel '{kernel}'; {one_of(kernel, known)}")


def sampling_backend(name: str = "cpu") -> ModuleType:
    """The sampling kernels of that name.

    Raises:
        InputError: no such backend, or, for "cuda" and "cugraph", no GPU.
        MissingExtraError: Triton, or RAPIDS, is not installed.
    """
    check_known(name)
    if name == "cuda":
        _check_triton('kernel is "cuda", but Triton is not installed; install triton, or leave kernel out')
    module = import_module(f".sampling.{name if name in SAMPLING else 'rapids'}.backend", __name__)
    if name == "cuda":
        module.device()
    elif name in OTHER_BITS:
        module.check_available()
    return module


def workspace_of(backend: ModuleType) -> Any:
    """Buffers of a sampling backend to reuse from bulk to bulk, owned by one thread; None if it has none."""
    return backend.Workspace() if hasattr(backend, "Workspace") else None


def multi_gpu_sampling() -> ModuleType:
    """RAPIDS' sampling of one graph whose edges are divided among several GPUs."""
    return import_module(".sampling.rapids.neighbor", __name__)


def _check_triton(text: str) -> None:
    try:
        import_module("triton")
    except ImportError:
        raise MissingExtraError(text) from None
