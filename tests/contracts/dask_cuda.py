"""Stand-in for dask_cuda 26.10: its cluster of worker processes, each with GPUs in its environment as the real one
names them.

`test_rapids_signatures` compares its parameters with the wheel's. Its workers are Dask's own, on the processor.
"""

import copy
import importlib.machinery
import os
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
from distributed import LocalCluster

import millrace

VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalCUDACluster(LocalCluster):
    """dask_cuda's cluster. `given` has the arguments of the last one, `started` counts them."""

    given: ClassVar[dict[str, Any]] = {}
    started: ClassVar[int] = 0
    preload: ClassVar[list[str]] = []
    """Code that each worker runs first."""

    def __init__(
        self,
        CUDA_VISIBLE_DEVICES=None,
        n_workers=None,
        threads_per_worker=1,
        memory_limit="auto",
        device_memory_limit="default",
        enable_cudf_spill=False,
        cudf_spill_stats=0,
        local_directory=None,
        protocol=None,
        enable_tcp_over_ucx=None,
        enable_infiniband=None,
        enable_nvlink=None,
        enable_rdmacm=None,
        rmm_pool_size=None,
        rmm_maximum_pool_size=None,
        rmm_managed_memory=False,
        rmm_async=False,
        rmm_allocator_external_lib_list=None,
        rmm_release_threshold=None,
        rmm_log_directory=None,
        rmm_track_allocations=False,
        log_spilling=False,
        pre_import=None,
        **kwargs,
    ):
        type(self).given = {k: v for k, v in locals().items() if k not in ("self", "kwargs", "__class__")} | kwargs
        type(self).started += 1
        os.environ["RAPIDS_NO_INITIALIZE"] = "True"
        self.cuda_visible_devices = (CUDA_VISIBLE_DEVICES or os.environ[VISIBLE]).split(",")
        if n_workers is None:
            n_workers = len(self.cuda_visible_devices)
        if n_workers < 1:
            raise ValueError("Number of workers cannot be less than 1.")
        if rmm_async and rmm_managed_memory:
            raise ValueError("`rmm_managed_memory` is incompatible with `rmm_async`.")
        if rmm_release_threshold is not None and not rmm_async:
            raise ValueError("`rmm_release_threshold` requires `rmm_async`.")
        if enable_tcp_over_ucx or enable_infiniband or enable_nvlink:
            protocol = protocol or "ucx"
            if protocol not in ("ucx", "ucxx"):
                raise TypeError("Enabling InfiniBand or NVLink requires protocol='ucx'")
        self.travels_by = protocol
        super().__init__(
            n_workers=0,
            threads_per_worker=threads_per_worker,
            memory_limit=memory_limit,
            processes=True,
            protocol="tcp" if protocol == "ucx" else protocol,
            **kwargs,
        )
        self.scale(n_workers)
        self.sync(self._correct_state)

    def new_worker_spec(self):
        left = [gpu for gpu in self.cuda_visible_devices if gpu not in self.worker_spec]
        if not left:
            raise ValueError("Can not scale beyond visible devices", self.cuda_visible_devices)
        at = self.cuda_visible_devices.index(left[0])
        spec = copy.deepcopy(self.new_spec)
        spec["options"]["preload"] = self.preload
        spec["options"]["env"] = {VISIBLE: ",".join(self.cuda_visible_devices[at:] + self.cuda_visible_devices[:at])}
        return {left[0]: spec}


def install(monkeypatch: pytest.MonkeyPatch, gpus: str, *modules: str) -> None:
    """Make imports of dask_cuda find the stand-in on a machine with these GPUs, named as in CUDA_VISIBLE_DEVICES; and
    make `modules` importable too, as empty modules."""
    for name in ("dask_cuda", *modules):
        made = types.ModuleType(name)
        made.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.setattr(sys.modules["dask_cuda"], "LocalCUDACluster", LocalCUDACluster, raising=False)
    monkeypatch.setenv(VISIBLE, gpus)


def install_for_ranks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Two pretended GPUs for this process, which has the fixture `on_device`, and those that a run starts. The latter
    find what they need in `folder`, a new one: ranks only check that dask-cuda is there."""
    install(monkeypatch, "0,1")
    folder.mkdir()
    (folder / "dask_cuda.py").touch()
    # Python imports it first; ranks sample in one thread and train in another.
    (folder / "sitecustomize.py").write_text(
        "import sys\n\n"
        "if any('rank_main' in word for word in sys.orig_argv):\n"
        "    from millrace.tests.contracts import interpreter, pretended_device\n\n"
        "    interpreter.prepare()\n"
        "    pretended_device.install_for_good()\n"
    )
    # Dask's workers have this process's path.
    monkeypatch.syspath_prepend(folder)
    package = Path(millrace.__path__[0]).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(package), os.environ.get("PYTHONPATH", "")]))


def seen() -> tuple[str | None, int]:
    """A worker's visible GPUs, and its process."""
    return os.environ.get(VISIBLE), os.getpid()


def tell_gpu(spec: dict[str, Any], topic: str, kill: str) -> dict[str, Any]:
    """Replacement for `hold_rank` that fails with a message about the environment of the rank."""
    text = f"sees {spec['environment'].get(VISIBLE)} on a worker of {os.environ.get(VISIBLE)}"
    return {"failed": {"kind": "RunError", "text": text, "where": [], "exit_code": 3}}
