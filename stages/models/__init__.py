"""Models, by the names that the configuration uses. Other packages add theirs as entry points ``millrace.models``."""

from ...storage.registry import Registry
from .base import ModelConfig
from .gat import GAT
from .gatv2 import GATv2
from .gcn import GCN
from .gin import GIN
from .gine import GINE
from .hgt import HGT
from .relational import Identity
from .rgat import RGAT
from .rgcn import RGCN
from .rsage import RSAGE
from .sage import SAGE

MODELS: Registry[type[ModelConfig]] = Registry(
    "model", (SAGE, GCN, GAT, GATv2, GIN, GINE, RGCN, RSAGE, RGAT, HGT, Identity)
)
"""The first is the default."""
