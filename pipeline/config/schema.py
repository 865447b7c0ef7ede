"""The sections of a configuration: which keys there are, what each may be, and what it is where it is left out."""

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


def takes_numbers(kind: Any) -> bool:
    """Whether a type takes numbers, or collections of them, and not true and false."""
    kinds = {kind, *(inner for arg in get_args(kind) for inner in (arg, *get_args(arg)))}
    return bool(kinds & {int, float}) and bool not in kinds


class Section(BaseModel):
    """Keys that belong together. Unknown ones are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and takes_numbers(cls.model_fields[str(info.field_name)].annotation):
            raise PydanticCustomError("a_flag", "expected a number")
        return value


class Train(Section):
    """How the model is trained."""

    batch_size: int = Field(default=1024, ge=1)
    """Seeds in a minibatch."""
    minibatches_per_step: int | None = Field(default=None, ge=1)
    """Minibatches in an optimiser step, over all ranks; by default one per rank."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """torch's, with its defaults but for the next two keys."""
    matmul_precision: Literal["float32", "bfloat16"] = "float32"
    """What the operands of matrix products are rounded to while training in float32; ``bfloat16`` is faster on
    processors that have it."""
    compile: bool = False
    """Train the model through ``torch.compile``: what lies between its aggregations becomes kernels of its own."""
    lr: float = Field(default=0.003, gt=0, le=1e6)
    """Learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """As `optimizer` understands it."""
    evaluate_every: int = Field(default=1, ge=0)
    """Validate after every so many epochs (0: only at the end)."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after so many validations without a new best."""

    def per_step(self, ranks: int) -> int:
        """Minibatches in an optimiser step of so many ranks."""
        return self.minibatches_per_step or ranks


BULK_ON_GPU = 64
"""Minibatches sampled together on a GPU, where nothing else is said."""


class Queue(Section):
    """How sampled minibatches wait for their trainers."""

    kind: Literal["memory", "zarr"] = "memory"
    """``memory``: each rank samples for itself; ``zarr``: on disk, where others can fill and replay it; on a cluster,
    sampling tasks do."""
    bulk_size: int = Field(default=8, ge=1)
    """k: minibatches sampled together; by default 64 where a GPU samples."""
    max_bytes: int = Field(default=512 << 20, ge=1)
    """Sampled minibatches that may wait, in bytes of structure."""
    keep: Literal["none", "epoch", "all"] = "none"
    """What a Zarr queue keeps once it has been trained on: nothing, the epoch under way, or all."""
    location: str | None = None
    """Where a Zarr queue lies: a folder, or an object store's URL such as ``s3://bucket/prefix``; by default in the
    run's folder."""
    reuse: Literal["once", "cycle"] = "once"
    """``cycle`` goes round again through a store of samples that holds fewer epochs than are trained."""


class Partition(Section):
    """How the graph is cut into parts, one or more for each rank, by systems whose ranks hold parts."""

    method: str | None = None
    """contiguous, hash, ldg, fennel, metis, or metis-work, which balances nodes and edges together and is the default;
    louvain and leiden need GPUs; blocks of rows are contiguous."""
    owners: str | None = None
    """A file by ``numpy.save`` with the part of each node, in place of a method."""


class Cluster(Section):
    """Where a run with ``executor = "dask"`` lives, and what it does when something dies."""

    scheduler: str | None = None
    """A scheduler that runs already, ``tcp://host:8786`` or ``tls://host:8786``; by default a cluster is started on
    this machine."""
    producers: int = Field(default=1, ge=1)
    """Sampling tasks at a time, for a queue of kind ``zarr``."""
    host: str = "127.0.0.1"
    """An address of this machine that workers and ranks can reach."""
    dashboard_port: int = Field(default=8787, ge=0, le=65535)
    """Of a cluster that is started here; 0 takes any that is free."""
    tls_ca: str | None = None
    """Dask's TLS: certificate authority, certificate and key, as files. ``host`` or ``scheduler`` beyond this machine
    needs them."""
    tls_cert: str | None = None
    """See `tls_ca`."""
    tls_key: str | None = None
    """See `tls_ca`."""
    insecure: bool = False
    """Go beyond this machine, or use UCX, without TLS: whoever reaches the ports can run code here."""
    on_rank_loss: Literal["restart", "continue", "stop"] = "restart"
    """When a rank is lost: all ranks start again from the last checkpoint; under ``grappa``, the others go on without
    it until the super-epoch ends; or the run ends."""
    restarts: int = Field(default=3, ge=0)
    """How often all ranks start again after a loss."""
    slow_peer_warning_s: float = Field(default=10.0, gt=0)
    """A note names whoever has given no sign of life for longer, in seconds; and a rank of ``sar`` says for whose rows
    it waits."""
    silence_limit_s: float | None = Field(default=None, gt=0)
    """A rank or worker that gives no sign of life for this long is taken for lost, in seconds; by default it is only
    named in a note."""
    keep_freed_bytes: int = Field(default=1 << 30, ge=0)
    """Freed memory that a rank keeps for its next step, where the C library is glibc; 0 leaves the allocator alone."""
    backend: Literal["nccl", "gloo"] | None = None
    """What ranks talk over: ``nccl`` wants a GPU for each rank; ``gloo`` goes by way of the host, and ranks may share a
    GPU. By default nccl where ranks are on GPUs, unless they are to go on when one is lost, and else gloo."""
    cuda: dict[str, Any] = Field(default_factory=dict)
    """Options of the ``dask_cuda.LocalCUDACluster`` that is started here with ``device = "cuda"``, handed on as they are:
    UCX (`protocol`, `enable_nvlink`, ...; it knows no TLS, see `insecure`) and RMM (`rmm_pool_size`, ...). They concern
    Dask's own messages and tasks; what ranks send each other goes by `backend`, and ranks have torch's allocator."""

    @field_validator("scheduler")
    @classmethod
    def _address(cls, scheduler: str | None) -> str | None:
        if scheduler is not None and ":" not in scheduler:
            raise PydanticCustomError(
                "address",
                "expected the address of a Dask scheduler, such as tcp://host:8786 (there is no schedule of the learning rate)",
            )
        return scheduler


class Gpu(Section):
    """What a rank keeps in the memory of its GPU, with ``device = "cuda"``."""

    topology: Literal["auto", "device", "pinned"] = "auto"
    """Where neighbour lists lie: in its memory, in locked memory of the host, which kernels read directly, or there if
    they fit."""
    features: Literal["auto", "device", "pinned"] = "auto"
    """Where feature rows lie, likewise."""
    graphs: bool = True
    """Record a step once and play it again, where it has a shape to keep to: by CUDA graphs, without the host."""
    cache_bytes: int = Field(default=1 << 30, ge=0)
    """Of its memory for rows that lie on the host: those of the nodes with the most out-edges."""


class CheckpointEvery(Section):
    """When to write checkpoints, besides the end of the run."""

    every_s: float = Field(default=60.0, gt=0)
    """Seconds between checkpoints."""
    every_steps: int | None = Field(default=None, ge=1)
    """Also after so many optimiser steps."""
    every_epochs: int | None = Field(default=None, ge=1)
    """Also after so many epochs."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept."""
