"""What parts of a job cannot do: rows of one table, from which refusals and `millrace doctor --support` are made."""

from enum import Enum
from typing import NamedTuple


class Need(Enum):
    """What a job may ask of its parts; the value is a name for readers."""

    LINKS = "links"
    EDGE_LABELS = "labels of edges"
    TYPES = "several types of nodes or edges"
    TIMES = "samples by time"
    EDGE_FEATURES = "features of edges"
    LEARNED = "learnt features"
    OWNED = "owned features"
    MAPPED = "a mapped graph"
    QUEUE = "a queue on disk"
    STORED = "stored samples"
    PACKED_EDGES = "features of edges, with packed samples"
    DEVICE = "a GPU"
    DEVICE_DRAWS = "samples drawn on a GPU"
    COMPILE = "a compiled model"
    COMPONENT = "the largest component"


class Cannot(NamedTuple):
    """A need that a part of a job does not meet.

    With a sentence's beginning that says how the job asks for it, part and reason make a refusal: ``graph is 'mapped',
    but system 'sar' arranges the edges of one rank in memory``.
    """

    part: str
    """The part, as the subject of the reason."""
    need: Need
    because: str
    """The reason: a verb and its objects."""
    applies: bool = True
    """False if the question makes no sense, as that for a queue of a system without minibatches."""
