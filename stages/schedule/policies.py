"""Schedule policies."""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from torch import nn

from ..messages import Phase
from ..models.base import ModelConfig
from ..models.phased import PhasedModel, Phases


@dataclass(frozen=True)
class Epochs:
    """One phase: the whole model, on one partitioning, for all epochs."""

    takes_modules: ClassVar[bool] = True

    def record(self, epochs: int) -> dict[str, Any]:
        return {}

    def build(self, config: ModelConfig, num_features: int, num_classes: int) -> nn.Module:
        return config.build(num_features, num_classes)

    def phases(self, epochs: int, model: nn.Module) -> tuple[Phase, ...]:
        return (Phase(0, 0, epochs),)

    def begin(self, phase: Phase, model: nn.Module) -> nn.Module:
        return model


@dataclass(frozen=True)
class SuperEpochs:
    """The whole model for all epochs; each rank's view changes after every super-epoch."""

    takes_modules: ClassVar[bool] = True

    repartition_every: int = 50
    """Epochs in a super-epoch."""

    def record(self, epochs: int) -> dict[str, Any]:
        return {"super_epoch": self.repartition_every}

    def build(self, config: ModelConfig, num_features: int, num_classes: int) -> nn.Module:
        return config.build(num_features, num_classes)

    def phases(self, epochs: int, model: nn.Module) -> tuple[Phase, ...]:
        firsts = range(0, epochs, self.repartition_every)
        return tuple(
            Phase(t, first, min(first + self.repartition_every, epochs), f"super-epoch {t + 1}")
            for t, first in enumerate(firsts)
        )

    def begin(self, phase: Phase, model: nn.Module) -> nn.Module:
        return model


@dataclass(frozen=True)
class LayerByLayer:
    """A phase for each layer, first to last, each for all epochs with an optimiser of its own; finished layers are
    frozen."""

    takes_modules: ClassVar[bool] = False

    cut: Phases = field(default_factory=Phases)

    def record(self, epochs: int) -> dict[str, Any]:
        """See `SchedulePolicy.record`: finished phases are not trained again, so the epochs of each matter too."""
        return {**asdict(self.cut), "epochs": epochs}

    def build(self, config: ModelConfig, num_features: int, num_classes: int) -> nn.Module:
        return PhasedModel(config, num_features, num_classes, self.cut)

    def phases(self, epochs: int, model: nn.Module) -> tuple[Phase, ...]:
        """See `SchedulePolicy.phases`: each takes `epochs`."""
        assert isinstance(model, PhasedModel)
        names = [
            *(["an MLP on the features"] if self.cut.base == "mlp" else []),
            *(f"layer {i + 1}" for i in range(model.num_layers)),
        ]
        return tuple(Phase(k, k * epochs, (k + 1) * epochs, name, fresh_optimizer=True) for k, name in enumerate(names))

    def begin(self, phase: Phase, model: nn.Module) -> nn.Module:
        assert isinstance(model, PhasedModel)
        return model.phase(phase.number)
