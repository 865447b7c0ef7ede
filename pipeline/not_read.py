"""Notes of what the data have and a run does not read."""

from collections.abc import Iterator

import torch

from ..stages.models.small_graph import rows_of_small_graph
from ..stages.sample.base import reads_times
from ..storage.plural import counted
from .setup.model import typed_input
from .setup.prepare import Prepared


def not_read(prepared: Prepared) -> Iterator[str]:
    """A sentence for each kind of values, times among them, that neither the model nor the sampler of a run reads."""
    graph, outline, name = prepared.dataset.graph, prepared.outline, prepared.model.name
    width, sampler = outline.edge_width, prepared.system.sample.sampler
    if (graph.has_edge_times or graph.has_node_times) and not reads_times(sampler):
        yield "the times of edges are not read, so nodes see later edges too; sampler.name=temporal hides these."
    weighs = graph.is_weighted and not getattr(sampler, "weighted", False)
    if not (weighs or (width and not prepared.model.reads_edges)):
        return
    given = outline.num_features, width, typed_input(prepared.job, outline)
    model = prepared.model.build()
    rows = [found[1] for w in (False, True) if (found := rows_of_small_graph(model, *given, weighted=w)) is not None]
    # Of a model that cannot be tried nothing is said.
    reads = len(rows) < 2 or not torch.allclose(rows[0], rows[1], rtol=1e-5, atol=1e-7)
    if width and not prepared.model.reads_edges:
        as_weight = "; given as edge_weight it would be the weight of each edge" if width == 1 and reads else ""
        columns = counted(width, "column")
        yield f"the model {name} reads no features of edges: edge_attr ({columns}) is not read{as_weight}."
    if weighs and not reads:
        yield f"the model {name} reads no weights of edges: edge_weight is not read."
