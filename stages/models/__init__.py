"""Models, by the names that the configuration uses."""

from .base import ModelConfig
from .gat import GAT
from .gcn import GCN
from .gin import GIN
from .sage import SAGE

MODELS: dict[str, type[ModelConfig]] = {config.name: config for config in (SAGE, GCN, GAT, GIN)}
