"""Keys of a configuration. `load` adds a section for each registered system."""

from collections.abc import Container, Mapping
from typing import Any, Literal

import tomli_w
import torch
from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ...stages.kernels import NO_REFERENCE
from ...stages.models import MODELS
from ...stages.sample import SAMPLERS
from ..datasets import ReadOptions
from .schema import CheckpointEvery, ClusterOptions, Gpu, Learned, Links, Partition, Queue, Section, Seeds, Train


def canonical(registry: Container[str], name: str) -> str:
    """The registered name for a name in another case (``SAGE``) or the public name of a class (``GraphSAGE``); other
    names are returned unchanged."""
    word = name.lower().removeprefix("graph")
    return word if word in registry else name


class Job(Section):
    """All settings that decide a run. The resolved job is written into the run's folder as ``job.toml``."""

    dataset: str = "digits"
    """An embedded name, a file, a folder, a store, or an OGB name."""
    split: str | None = None
    """``public``, ``random:20,30`` (per class: training, validation), or ``fraction:0.6,0.2``; in the order
    of times ``time:0.7,0.15`` (shares) or ``until:2017,2018`` (last times of train and val, perhaps dates);
    by default the dataset's own split, or a random one."""
    features: Literal["memory", "mapped", "zarr", "owned"] = "memory"
    """Place of a Millrace store's features during the run; ``owned``: each rank holds its share in memory, and sends
    rows to the others."""
    graph: Literal["memory", "mapped"] = "memory"
    """Place of a Millrace store's graph during the run; ``mapped``: processes of a machine share the pages of its
    files, which ``millrace convert --graph npy`` writes; ranks that hold parts or blocks arrange these in unnamed files
    of the run's folder."""
    system: str = ""
    """The training system. Its options are in the section of the same name."""
    epochs: int = Field(default=30, ge=1)
    """Passes over the train split. If layers are trained one after the other, each layer has as many."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Random seed of the split, the initial parameters, minibatches and dropout; the section `seeds` sets each."""
    ranks: int = Field(default=1, ge=1)
    """P: trainer processes."""
    executor: Literal["inline", "dask"] | None = None
    """``inline``: this process; ``dask``: a cluster. By default inline for one rank."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the ranks: processors, or one GPU each."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of features, activations and parameters."""
    threads: int | None = Field(default=None, ge=1, le=4096)
    """Threads of each rank; by default all cores."""
    kernel: Literal["cpu", "matrix", "cuda", "cugraph"] = "cpu"
    """Sampling kernels: compiled, or a GPU's; ``matrix``: SciPy's products (slow), which check a `MatrixSampler`;
    ``cugraph``: RAPIDS, for the sampler ``neighbor``, with other random numbers. By default chosen by `device`."""
    track: list[str] = Field(default_factory=list)
    """Trackers that record the run: ``tensorboard``, ``mlflow``, ``wandb``, or those of other packages. A single
    tracker may be a plain word."""
    check: bool = False
    """Check the invariants of every message."""
    start_from: str | None = None
    """Folder of a finished run whose parameters this run starts from: for example, to tune a run end to end that was
    trained layer by layer, or to start a run on nodes from one on links. If that run predicts something else, this run
    takes its first layers, and has a new head."""
    model: dict[str, Any] = Field(default_factory=lambda: {"name": "sage"})
    """``name``, and the options of that model."""
    sampler: dict[str, Any] = Field(default_factory=lambda: {"name": "neighbor"})
    """``name``, and the options of that sampler."""
    train: Train = Train()
    learned: Learned = Learned()
    link: Links = Links()
    seeds: Seeds = Seeds()
    queue: Queue = Queue()
    partition: Partition = Partition()
    gpu: Gpu = Gpu()
    cluster: ClusterOptions = ClusterOptions()
    checkpoint: CheckpointEvery = CheckpointEvery()
    read: ReadOptions = ReadOptions()
    """Options for cleaning the dataset's input."""

    @field_validator("device", "dtype", mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        """The name of a torch object, such as ``torch.device("cpu")``."""
        word = str(value).removeprefix("torch.") if isinstance(value, torch.device | torch.dtype) else value
        if isinstance(word, str) and word.startswith("cuda:"):
            raise PydanticCustomError(
                "device",
                "expected 'cpu' or 'cuda': each rank uses one GPU; choose among them with CUDA_VISIBLE_DEVICES",
            )
        return word

    @field_validator("kernel", mode="before")
    @classmethod
    def _known_kernel(cls, value: Any) -> Any:
        if value == "reference":
            raise PydanticCustomError("kernel", NO_REFERENCE)
        return value

    @field_validator("track", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("model", "sampler", mode="before")
    @classmethod
    def _known_name(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept names in any case, and the class names of models."""
        if not isinstance(value, Mapping) or not isinstance(name := value.get("name"), str):
            return value
        return {**value, "name": canonical(MODELS if info.field_name == "model" else SAMPLERS, name)}

    def seed_of(self, part: Literal["split", "initial", "minibatches"]) -> int:
        """The seed of a part of the run: its own, or the job's."""
        own = getattr(self.seeds, part)
        return self.seed if own is None else own

    @property
    def options(self) -> Any:
        """The section of the job's system."""
        return getattr(self, self.system)

    def to_toml(self) -> str:
        """The resolved configuration as TOML, without keys that are unset, and without a kernel that the GPU chose,
        which is chosen anew by a run that goes on."""
        chosen = self.kernel == self.device == "cuda" and "kernel" not in self.model_fields_set
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True, exclude={"kernel"} if chosen else None))
