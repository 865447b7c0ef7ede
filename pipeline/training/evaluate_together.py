"""Exact evaluation by all ranks together: each computes its own rows, layer after layer, over full neighbourhoods.

The same neighbourhoods that train full-batch: no rank holds more than its share of the graph, of the features and of
any layer.
"""

import copy
from itertools import chain

import torch
from torch import nn

from ...stages.comm.base import Group
from ...stages.evaluate.layerwise import evaluating
from ...stages.evaluate.measures import Measures, Scored
from ...stages.fetch.visit import Visits
from ...stages.memory.arena import Arena, give_back, reusing
from ...stages.placement.sharded import Share


def evaluate_together(
    module: nn.Module,
    share: Share,
    visits: Visits,
    split: str,
    num_layers: int,
    group: Group,
    measures: Measures | None = None,
    by_class: bool = False,
) -> Scored | None:
    """Metrics over all ranks' rows of a split; None for a split without nodes. All ranks call this at the same time.

    Args:
        module: has `layer(i, neighbourhood, h)`; runs in evaluation mode, without gradients, and gets its mode back. A
            copy on the host runs in place of one whose parameters lie on a device, as rows are held and exchanged on
            the host.
        share: of this rank.
        visits: of the same.
        split: train, val or test.
        num_layers: L.
        group: the ranks. What they exchange is counted under ``evaluation``.
        measures: what is measured; by default accuracy.
        by_class: count by class too.
    """
    measures, module = measures or Measures(), _on_host(module)
    rows = share.splits[split]
    with group.counting("evaluation"), evaluating(module):
        neighbourhoods, h = visits.everything(share.graph, module, num_layers)
        for i, neighbourhood in enumerate(neighbourhoods):
            # Layers differ in width: what one has used would lie idle beside what the next one takes.
            with reusing(Arena()):
                h = module.layer(i, neighbourhood, h)  # pyright: ignore[reportCallIssue]
            give_back()
        count = torch.tensor([len(rows)], dtype=torch.float64)
        group.all_reduce(count, "control")
        return measures.over_ranks(h[rows], share.labels[rows], group, by_class) if count[0] else None


def _on_host(module: nn.Module) -> nn.Module:
    """The module itself, or a copy if not all of it lies on the host."""
    state = chain(module.parameters(), module.buffers())
    return module if all(t.device.type == "cpu" for t in state) else copy.deepcopy(module).cpu()
