"""Sections of a configuration: their keys, types and defaults."""

import os
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .held_cluster import address_in


def takes_numbers(kind: Any) -> bool:
    """True if a type accepts numbers, or collections of them, but not booleans."""
    kinds = {kind, *(inner for arg in get_args(kind) for inner in (arg, *get_args(arg)))}
    return bool(kinds & {int, float}) and bool not in kinds


def words_between_commas(value: Any) -> Any:
    """The words of a text between commas; what is no text as it is."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


class Section(BaseModel):
    """Group of related keys. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and takes_numbers(cls.model_fields[str(info.field_name)].annotation):
            raise PydanticCustomError("a_flag", "expected a number")
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    def with_defaults(self, **values: Any) -> Self:
        """Copy the section with other values; keys that were not set count as not set still."""
        copied = self.model_copy(update=values)
        copied.model_fields_set.intersection_update(self.model_fields_set)
        return copied


class Schedule(Section):
    """Change of the learning rate while a run trains. It multiplies `train.lr`, and that of each parameter group."""

    name: Literal["constant", "cosine", "linear", "step", "plateau"] = "constant"
    """``cosine`` and ``linear`` lower the rate over the run's epochs, to `final` times its value. ``step`` multiplies
    the rate by `factor` after every `every` epochs, and ``plateau`` after `patience` validations without a new best. If
    layers are trained one after the other, each layer has its own schedule."""
    warmup: float = Field(default=0.0, ge=0)
    """Epochs in which the rate first rises in equal steps; a fraction is fine."""
    final: float = Field(default=0.0, ge=0, le=1)
    """Factor of the rate at the end of ``cosine`` and ``linear``."""
    every: int = Field(default=10, ge=1)
    """Epochs between the steps of ``step``."""
    factor: float = Field(default=0.1, gt=0, lt=1)
    """Factor of ``step`` and ``plateau``."""
    patience: int = Field(default=5, ge=0)
    """Validations without improvement after which ``plateau`` lowers the rate."""

    @property
    def needs_epochs(self) -> bool:
        """True if the number of epochs decides the rate of each."""
        return self.name in ("cosine", "linear")


class ParameterGroup(Section):
    """Parameters with a learning rate or weight decay of their own."""

    match: str
    """A pattern of parameter names for ``fnmatch``, such as ``convs.0.*``. A parameter belongs to the first group that
    it matches."""
    lr: float | None = Field(default=None, ge=0, le=1e6)
    """Learning rate of the group in place of `train.lr`; 0 keeps its parameters as they are."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Weight decay of the group in place of `train.weight_decay`."""


class LossOptions(Section):
    """Loss of a step, the mean over its seeds. Your own loss in code replaces it."""

    name: Literal["cross_entropy", "bce", "focal", "mse", "mae", "huber", "margin", "infonce"] | None = None
    """``cross_entropy`` (the default of multi-class), ``bce`` (binary cross entropy: of binary, multi-label and links),
    ``focal``, ``mse`` (of a regression), ``mae`` or ``huber``; ``margin`` or ``infonce`` (of links). With several
    columns, the loss is their mean; unknown labels (NaN) add nothing."""
    class_weights: Literal["balanced"] | list[float] | None = None
    """Factor of a node's loss by its class: a number for each class, or ``balanced``: n / (C n_c) for n train nodes,
    n_c of them of the class. For multi-class and binary labels. The loss is still divided by the number of seeds, not
    by their weights."""
    pos_weight: Literal["balanced"] | float | list[float] | None = None
    """Factor of the loss where a label is 1, one for all columns or one for each: for binary and multi-label.
    ``balanced``: the train nodes without the label, divided by those with it. For links with ``bce``: factor of
    positive pairs; ``balanced``: the number of negatives of a pair."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each label that ``cross_entropy`` spreads over all classes."""
    gamma: float = Field(default=2.0, ge=1)
    """Exponent of ``focal``."""
    delta: float = Field(default=1.0, gt=0)
    """Error from which ``huber`` is linear."""
    margin: float = Field(default=1.0, gt=0)
    """With ``margin``, a negative costs nothing if its score is at least this much below its positive pair's."""
    temperature: float = Field(default=1.0, gt=0)
    """Divisor of the scores, with ``infonce``."""

    @property
    def is_balanced(self) -> bool:
        """True if weights follow from the number of train nodes of each class."""
        return "balanced" in (self.class_weights, self.pos_weight)

    @field_validator("class_weights", "pos_weight")
    @classmethod
    def _not_negative(cls, value: Any) -> Any:
        if not isinstance(value, str | None) and any(w < 0 for w in (value if isinstance(value, list) else [value])):
            raise PydanticCustomError("weights", "expected numbers of at least 0")
        if isinstance(value, list) and not any(value):
            raise PydanticCustomError("weights", "expected a number above 0: nothing would be trained")
        return value


class Seeds(Section):
    """Separate random seeds for parts of a run; by default all are the job's `seed`."""

    split: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of a split that is drawn."""
    initial: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of the initial parameters. Runs that differ only in it can share one store of samples."""
    minibatches: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of minibatches, partitions and dropout."""


class Train(Section):
    """Training: minibatches, optimiser and validation."""

    batch_size: int = Field(default=1024, ge=1)
    """Seeds in a minibatch."""
    minibatches_per_step: int | None = Field(default=None, ge=1)
    """Minibatches in an optimiser step, over all ranks; by default one per rank."""
    optimizer: str = "adam"
    """One of torch's optimisers in lower case: ``adam``, ``adamw``, ``sgd``, ``rmsprop``, ``nadam``, ``adagrad``, ...;
    with torch's defaults except for `lr`, `weight_decay` and `optimizer_options`."""
    optimizer_options: dict[str, Any] = Field(default_factory=dict)
    """More options of the optimiser, by torch's names: ``{momentum = 0.9, nesterov = true}``."""
    schedule: Schedule = Schedule()
    """Change of the learning rate; a plain name is its `name`."""
    groups: list[ParameterGroup] = Field(default_factory=list)
    """Groups of parameters with their own learning rate or weight decay."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Scale a step's gradient, over all parameters together, down to this norm if its norm is larger."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Keep an exponential moving average of the parameters with this decay per step, such as 0.999. The run validates,
    tests and saves the average."""
    matmul_precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products' operands while training in float32; ``bfloat16`` is faster on processors that
    support it, and activations that the backward pass multiplies are kept in it."""
    compile: bool = False
    """Train the model through ``torch.compile``: the operations between two aggregations are compiled into kernels."""
    lr: float = Field(default=0.003, gt=0, le=1e6)
    """Learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the optimiser."""
    evaluate_every: int = Field(default=1, ge=0)
    """Validate after every so many epochs (0: only at the end)."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many validations without a new best."""
    loss: LossOptions = LossOptions()
    """The loss; a plain name is its `name`. By default it follows from the labels."""
    metrics: list[
        Literal[
            "loss", "macro_f1", "micro_f1", "auc", "average_precision", "rmse", "mae", "r2",
            "mrr", "hits@1", "hits@3", "hits@10", "hits@50", "hits@100",
        ]
    ] = Field(default_factory=list)  # fmt: skip
    """Metrics of validations and of the test besides accuracy: ``loss``, ``macro_f1``, ``micro_f1``, ``auc``,
    ``average_precision`` (means over classes). A regression always has ``rmse``, ``mae`` and ``r2`` (means over
    targets) in place of accuracy, and also knows ``loss``. Links always have ``mrr``, ``auc``, ``average_precision``
    and ``hits@10``, and also know hits at 1, 3, 50 and 100. They may be words between commas."""
    monitor: str | None = None
    """Metric that chooses the best epoch, and that `patience` and the schedule ``plateau`` follow: ``accuracy``, one of
    `metrics`, or the name of your own metric. A minus in front (``-brier``) means that smaller is better; the loss and
    errors need none. By default the accuracy, ``rmse`` or, of links, ``mrr`` (under ``retexo``, its mode decides)."""

    @field_validator("optimizer")
    @classmethod
    def _lower_case(cls, value: str) -> str:
        return value.lower()

    _between_commas = field_validator("metrics", mode="before")(words_between_commas)

    @field_validator("schedule", "loss", mode="before")
    @classmethod
    def _named_section(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def per_step(self, ranks: int) -> int:
        """Minibatches in an optimiser step over `ranks` ranks."""
        return self.minibatches_per_step or ranks


class Learned(Section):
    """Learnt features: a row of numbers for each node, trained with the model. A plain number is its `width`."""

    width: int = Field(default=0, ge=0, le=65536)
    """Learnt numbers of each node; 0: none."""
    beside: bool = True
    """true: the model reads learnt features and the dataset's; false: only learnt features."""
    optimizer: Literal["adagrad", "adam", "sgd"] = "adagrad"
    """Optimiser of the rows, which changes only those that a step reads: torch's ``Adagrad``, ``SparseAdam`` or
    ``SGD``."""
    lr: float | None = Field(default=None, gt=0, le=1e6)
    """Learning rate of the rows; by default `train.lr`. `train.schedule` multiplies it too."""
    weight_decay: float = Field(default=0.0, ge=0, le=1e6)
    """L2 penalty of the rows that a step reads: the gradient of a row grows by this factor times the row."""

    def num_read(self, num_features: int) -> int:
        """Columns that the model reads of a dataset with `num_features`."""
        return num_features if not self.width else self.width + (num_features if self.beside else 0)


class Links(Section):
    """Link prediction, with the task ``link``: rows of nodes, the score of a pair of them, and its negatives."""

    width: int = Field(default=64, ge=1, le=65536)
    """Columns of the rows that the model gives for nodes."""
    decoder: Literal["dot", "distmult", "complex", "mlp"] = "dot"
    """Score of a pair: ``dot`` product; ``distmult``, with a learnt weight for each column; ``complex`` (ComplEx),
    whose scores depend on the direction; ``mlp``, two dense layers on the product of the rows."""
    negatives: Literal["uniform", "degree", "destinations", "batch", "given"] = "uniform"
    """Negatives of a positive pair (u, v) in training: (u, w), where w is any node (``uniform``), a node in proportion
    to its in-degree (``degree``), a node that is the destination of some pair (``destinations``), or the destination of
    another pair of the minibatch (``batch``). ``given``: pairs of the dataset's negatives. A drawn negative may be
    positive by chance."""
    negative_ends: Literal["destination", "either", "both"] = "destination"
    """Ends of a negative that are drawn: ``destination`` keeps u; ``either`` keeps u in the first half of the negatives
    and v in the others, as knowledge graphs are trained; ``both`` draws both. Sources are drawn by the same law: in
    proportion to the out-degree (``degree``), of the nodes that are sources of pairs (``destinations``)."""
    shared_negatives: bool = False
    """All pairs of a minibatch share their drawn ends. Hundreds of negatives then cost little, because one matrix
    product gives all scores. Not for the negatives ``batch`` and ``given``."""
    exclude_known: bool = False
    """Ignore a drawn negative that is a train pair of its relation. Not under ``grappa``, whose ranks do not know all
    pairs."""
    num_negatives: int = Field(default=1, ge=1, le=65536)
    """Negatives of each positive pair."""
    ranked: Literal["destination", "both"] = "destination"
    """Ends of a pair that evaluation ranks: ``destination`` among all destinations; ``both``: also the source among all
    sources, as in published figures on knowledge graphs. MRR and Hits@k are then means over twice as many ranks."""


BULK_ON_GPU = 64
"""Default number of minibatches sampled together on a GPU."""


class Queue(Section):
    """Queue of sampled minibatches between sampling and training."""

    kind: Literal["memory", "zarr"] = "memory"
    """``memory``: each rank samples for itself; ``zarr``: on disk, where it can be filled by others and replayed; on a
    cluster, sampling tasks fill it."""
    bulk_size: int = Field(default=8, ge=1)
    """k, minibatches sampled together; by default 64 if a GPU samples."""
    max_bytes: int = Field(default=512 << 20, ge=1)
    """Largest size of waiting sampled minibatches, in bytes of structure."""
    keep: Literal["none", "epoch", "all"] = "none"
    """Minibatches that a Zarr queue keeps after training on them: none, those of the current epoch, or all."""
    location: str | None = None
    """Place of a Zarr queue: a folder, or an object store's URL such as ``s3://bucket/prefix``; by default in the run's
    folder."""
    reuse: Literal["once", "cycle"] = "once"
    """``cycle`` starts over when a store of samples has fewer epochs than are trained."""


class Partition(Section):
    """Partitioning of the graph into parts, one or more for each rank, for systems whose ranks hold parts."""

    method: str | None = None
    """contiguous, hash, ldg, fennel, metis, metis-work (the default), which balances nodes and edges together, or
    metis-streamed, which reads the graph row by row; louvain and leiden need GPUs; ``bulk.topology = "partitioned"``
    takes contiguous by default."""
    balance: Literal["nodes", "edges", "train"] | None = None
    """Quantity that parts share evenly, for contiguous (by default edges: nodes + in-edges) and metis-streamed (by
    default nodes; train: nodes, and train nodes too)."""
    passes: int | None = Field(default=None, ge=1)
    """Number of passes over the graph: of ldg and fennel by default one, of metis-streamed 8."""
    owners: str | None = None
    """File written by ``numpy.save`` with the part of each node, or folder of ``millrace partition --out``, in place of
    a method. Ranks read the folder's parts as they are if they are of this dataset and this many."""


class ClusterOptions(Section):
    """Cluster of a run with ``executor = "dask"``: addresses, security, and the response to failures."""

    scheduler: str | None = None
    """Address of a running scheduler, ``tcp://host:8786`` or ``tls://host:8786``, or the file of ``dask scheduler
    --scheduler-file``; by default a cluster is started on this machine. From Python a client or cluster of Dask too."""
    producers: int = Field(default=1, ge=1)
    """Sampling tasks at a time, for a queue of kind ``zarr``."""
    host: str = "127.0.0.1"
    """An address of this machine that workers and ranks can reach."""
    dashboard_port: int = Field(default=8787, ge=0, le=65535)
    """Port of the dashboard of a cluster started here; 0 takes any free port."""
    dashboard_hosts: list[str] = Field(default_factory=list)
    """Host names under which a proxy shows the run's page, such as that of a JupyterHub or an ingress; on the command
    line between commas. The page answers to addresses of its own machine, to these, and to that in Dask's
    ``distributed.dashboard.link``."""
    tls_ca: str | None = None
    """Files of Dask's TLS: certificate authority, certificate and key. A ``host`` or ``scheduler`` beyond this machine
    needs them."""
    tls_cert: str | None = None
    """See `tls_ca`."""
    tls_key: str | None = None
    """See `tls_ca`."""
    insecure: bool = False
    """Go beyond this machine, or use UCX, without TLS: anyone who reaches the ports can run code here."""
    on_rank_loss: Literal["restart", "continue", "stop"] = "restart"
    """Response to the loss of a rank: ``restart`` all ranks from the last checkpoint; ``continue`` without it until the
    super-epoch ends (``grappa``); ``stop`` the run."""
    restarts: int = Field(default=3, ge=0)
    """Largest number of restarts of all ranks after losses."""
    slow_peer_warning_s: float = Field(default=10.0, gt=0)
    """Seconds without a sign of life after which a note names a rank or worker. Under ``sar``, a rank that waits so
    long also names the rank whose rows it waits for."""
    silence_limit_s: float | None = Field(default=None, gt=0)
    """Seconds without a sign of life after which a rank or worker counts as lost; by default, only a note names it. A
    scheduler that is silent for as long (by default a minute) ends the run."""
    keep_freed_bytes: int = Field(default=1 << 30, ge=0)
    """Freed memory that a rank keeps for its next step, where the C library is glibc; 0 leaves the allocator alone."""
    backend: Literal["nccl", "gloo"] | None = None
    """Communication between ranks: ``nccl`` needs one GPU per rank; ``gloo`` goes through the host, and ranks may share
    a GPU. By default nccl if ranks are on GPUs and need not continue after a loss, else gloo."""
    cuda: dict[str, Any] = Field(default_factory=dict)
    """Options passed unchanged to the ``dask_cuda.LocalCUDACluster`` that is started here with ``device = "cuda"``: UCX
    (`protocol`, `enable_nvlink`, ...; it has no TLS, see `insecure`) and RMM (`rmm_pool_size`, ...). They concern
    Dask's own messages and tasks; ranks communicate through `backend`, and use torch's allocator."""

    _between_commas = field_validator("dashboard_hosts", mode="before")(words_between_commas)

    @property
    def starts_here(self) -> bool:
        """True if a cluster is started on this machine, since no scheduler is named."""
        return self.scheduler is None

    @property
    def names_tls(self) -> bool:
        """True if the named scheduler is to be reached by TLS."""
        return (self.scheduler or "").startswith("tls://")

    @field_validator("dashboard_hosts")
    @classmethod
    def _host_names(cls, hosts: list[str]) -> list[str]:
        for name in hosts:
            if not name or any(c in name for c in "/:*@ "):
                raise PydanticCustomError(
                    "host", "expected names of hosts alone, such as hub.example.org: no scheme, port or path"
                )
        return [name.lower() for name in hosts]

    @field_validator("scheduler")
    @classmethod
    def _address(cls, scheduler: str | None) -> str | None:
        if scheduler is not None and ":" not in (scheduler := address_in(scheduler)):
            raise PydanticCustomError(
                "address",
                "expected the address of a Dask scheduler, such as tcp://host:8786 (for learning rates: "
                "train.schedule)",
            )
        return scheduler


class Gpu(Section):
    """Memory of a rank's GPU, with ``device = "cuda"``."""

    topology: Literal["auto", "device", "pinned"] = "auto"
    """Place of neighbour lists: ``device`` memory, ``pinned`` memory of the host, which kernels read directly, or
    (``auto``) the device if they fit."""
    features: Literal["auto", "device", "pinned"] = "auto"
    """Place of feature rows, with the same choices as `topology`. Learnt rows that are not on the device stay in the
    host's ordinary memory."""
    graphs: bool = True
    """Record a step of fixed shape once as a CUDA graph, and replay it without the host."""
    cache_bytes: int = Field(default=1 << 30, ge=0)
    """GPU memory that caches rows of the host: those of the nodes with the most out-edges."""


class CheckpointEvery(Section):
    """Times of checkpoints, besides the end of the run."""

    every_s: float = Field(default=60.0, gt=0)
    """Seconds between checkpoints."""
    every_steps: int | None = Field(default=None, ge=1)
    """Also after this many optimiser steps."""
    every_epochs: int | None = Field(default=None, ge=1)
    """Also after this many epochs."""
    keep: int = Field(default=2, ge=1)
    """Number of checkpoints kept."""
