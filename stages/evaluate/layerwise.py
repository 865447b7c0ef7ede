"""Exact evaluation: layer after layer over full neighbourhoods, in bounded memory.

Every node's layer is computed once, instead of once for each seed that reaches it as in sampled evaluation (layer-wise
inference: Hamilton, Ying, Leskovec, NeurIPS 2017, algorithm 1, run over all nodes).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...storage.array_kinds import Mask
from ...storage.dataset import SPLITS, Dataset
from ...storage.errors import InputError, one_of
from ...storage.features import ArrayFeatures, FeatureStore, is_read_together
from ...storage.graph import Graph
from ...storage.plural import counted
from ..models.base import Stack, as_model, check_initialised, keeps_edges, layered, reads_edges, reads_loops
from ..models.pyg.model import PyGModel, evaluating
from ..neighbourhood.checks import no_edge_features
from ..nodes import node_ids
from ..self_loops import COLUMNS, degree_of
from .chunks import (
    MAX_BYTES,
    Chunks,
    IdArray,
    Source,
    apply_layer,
    naming_features,
    needed_rows,
    widest_weight,
)
from .cuda import DeviceBudget, Layers, ModelSizes, layers_for
from .direct import infer_in_parts
from .far.rows import DeviceSink, HostSink
from .limits import DEFAULTS, Limits, Progress, silent

MANY_PASSES = 4
"""Passes over features on disk, beyond which a note says what to do."""
Rows = Literal["full", "bfloat16"]
"""Numbers of the rows between two layers."""


def infer(
    model: nn.Module,
    graph: Graph | Dataset,
    features: FeatureStore | npt.ArrayLike | Tensor | None = None,
    degree: npt.ArrayLike | Tensor | None = None,
    nodes: Any = None,
    *,
    max_bytes: int = MAX_BYTES,
    scratch: Path | None = None,
    on_progress: Progress | None = None,
    base: Tensor | None = None,
    budget: DeviceBudget | None = None,
    rows: Rows = "full",
) -> Tensor:
    """The model's outputs for `nodes`, each over all of its in-edges in every layer.

    A layer is computed in chunks of destination rows; only rows on which `nodes` depend are computed. The model runs in
    evaluation mode (no dropout, BatchNorm by its running statistics) without gradients, and gets its mode back.

    Memory: a chunk takes at most `max_bytes` for its edges, its sources with two working copies as wide as the model's
    widest weight, and its outputs. One row that alone takes more (a hub) is a chunk of its own, so the true bound is
    that of the largest in-degree; and a layer that keeps a tensor per edge (`neighbourhood.apply`) takes that on top,
    unless the model says so by `keeps_edges` or `reads_edges`.
    Beyond the chunk there are the results of two successive layers (in `scratch` where they are larger than
    half of the free memory), and about (40 + L) V bytes of tables.

    Millrace's own models read features and rows where they lie, and of hidden rows they keep what the next layer
    aggregates, which is a product of them where that is narrower.

    A model whose parameters lie on a CUDA device is computed there. If the layers fit into half of the device's free
    memory, each is one block and rows stay there; so do the graph's lists, for the next call with the same nodes. If
    only the rows of two layers fit, chunks are gathered there, as large as the remaining memory allows; otherwise
    chunks travel.

    Args:
        model: has `num_layers` and `layer(i, neighbourhood, h)`.
        graph: a `Dataset`, or a graph of V nodes; edge weights are used if it has any.
        features: [V, F], a store, an array or a tensor; converted to the dtype of the model's parameters. A dataset has
            its own.
        degree: [V], in-degree of each node in the whole graph (weighted: the sum of its in-edges' weights); by default
            the graph's, with its self loops where the model reads them.
        nodes: ids in [0, V) in any order, that may repeat (a list, an array, a tensor), or a mask [V]; of a dataset
            also ``"train"``, ``"val"`` or ``"test"``. By default all.
        max_bytes: see above.
        scratch: folder for nameless temporary files; without one, all results stay in memory.
        on_progress: called with (rows done, rows in all), over all layers.
        base: [V, F], the features, if they lie on the model's device already; `features` is then not read.
        budget: device and memory for the computation; by default those of the parameters' device.
        rows: ``bfloat16`` keeps rows between layers in 16 bits, which halves their memory; they are summed in float32,
            and logits agree to two or three digits. For Millrace's own models in float32, on the CPU; others keep them
            in full.

    Returns:
        [n, C], in the order of `nodes`, on the device of the model, or on the host if half of what is free there is
        less.

    Raises:
        InputError: an argument is not as described, or a layer's result has the wrong shape.
        RunError: the scratch folder cannot be written.
    """
    check_initialised(as_model(model))
    if rows not in get_args(Rows):
        raise InputError(f"rows is {rows!r}; {one_of(str(rows), get_args(Rows))}")
    limits = Limits(max_bytes, scratch, on_progress or silent, base=base, budget=budget, half=rows == "bfloat16")
    dataset = None
    if isinstance(graph, Dataset):
        if features is not None:
            raise InputError(
                "features are given beside a dataset, which has its own; expected infer(model, dataset, nodes=...)"
            )
        dataset, graph, features = graph, graph.graph, graph.features
    if not isinstance(graph, Graph):
        raise InputError(f"graph is a {type(graph).__name__}; expected a Dataset, or a Graph with features")
    if features is None:
        raise InputError("features are missing; expected [V, F] with a Graph, or a Dataset in its place")
    store = _store(features)
    if isinstance(model, PyGModel):
        model.fit(store.num_features, 0, graph.num_edge_features)
    wanted = node_ids(nodes, graph.num_nodes, dataset)
    return outputs(model, graph, store, _degree(model, graph, degree), wanted, limits)


def _store(features: Any) -> FeatureStore:
    if isinstance(features, FeatureStore):
        return features
    rows = np.asarray(features.detach().cpu() if isinstance(features, Tensor) else features)
    return ArrayFeatures(rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float32))


def _degree(model: nn.Module, graph: Graph, degree: Any) -> Tensor:
    known = torch.as_tensor(degree_of(graph, reads_loops(model)))
    if degree is None:
        return known
    given = torch.as_tensor(degree)
    if known.ndim == given.ndim or given.ndim > 1 or len(given) != len(known):
        return given
    rows = known.clone()
    rows[:, :2] += (given.to(known) - known[:, 0])[:, None]
    return rows


def outputs(
    model: nn.Module,
    graph: Graph,
    features: FeatureStore,
    degree: Tensor,
    nodes: IdArray,
    limits: Limits = DEFAULTS,
) -> Tensor:
    """`infer` with checked arguments: a graph, a feature store, a tensor, int64 ids."""
    as_model(model)
    _check(graph, features, degree, limits.max_bytes)
    wanted = nodes if np.all(nodes[1:] > nodes[:-1]) else np.unique(nodes)
    num_layers = layered(model).num_layers
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    dtype = parameters[0].dtype if parameters else torch.from_numpy(np.empty(0, features.dtype)).dtype
    device = parameters[0].device if parameters else torch.device("cpu")
    budget, base = limits.budget, limits.base
    if budget is None and device.type == "cuda":
        budget = DeviceBudget.from_free_memory(device)
    if device.type == "cpu" and dtype not in (torch.float32, torch.float64):
        raise InputError(f"the model is {dtype} on the CPU; expected float32 or float64: call model.float()")
    if budget is None and base is None and device.type == "cpu" and isinstance(model, Stack) and model.has_parts:
        limits = replace(limits, half=limits.half and dtype == torch.float32)
        needed = needed_rows(graph, wanted, num_layers + 1)
        with evaluating(model), naming_features(model, features.num_features):
            logits = infer_in_parts(model, graph, features, degree.to(dtype), needed, limits)
        return logits if wanted is nodes else logits[torch.from_numpy(np.searchsorted(wanted, nodes))]
    layers = None
    edges = graph.edge_features if reads_edges(model) else None
    if reads_edges(model) and edges is None:
        raise no_edge_features()
    if budget is not None and not keeps_edges(model) and graph.types.is_single:
        sizes = ModelSizes(num_layers, features.num_features, widest_weight(model), dtype)
        layers = layers_for(graph, degree, wanted, sizes, budget)
    with evaluating(model):
        if layers is not None:
            h = layers.rows(features if base is None else base, dtype)
            logits = _in_blocks(model, layers, h, limits.on_progress)
        else:
            source = Source(features if base is None else base, None, device, dtype, budget is None)
            needed, resident, kernels = needed_rows(graph, wanted, num_layers), False, None
            if budget is not None:
                # The rows of two layers take at most half of the budget, and leave the rest to chunks.
                row_bytes = max(features.num_features, widest_weight(model)) * dtype.itemsize
                most = max(int(np.count_nonzero(mask)) for mask in needed)
                resident, kernels = 2 * most * row_bytes <= budget.num_bytes // 2, budget.kernels
                if resident:
                    limits = replace(limits, max_bytes=max(limits.max_bytes, budget.num_bytes // 4))
            chunks = Chunks(model, graph, degree.to(dtype), limits.max_bytes, device, kernels, edges=edges)
            sink_of = DeviceSink if resident else partial(HostSink, scratch=limits.scratch)
            if base is None and is_read_together(features, rows := np.flatnonzero(needed[0])):
                _note_passes(chunks, rows, source, limits)
            logits = _in_chunks(chunks, needed, source, sink_of, limits.on_progress)
    if budget is None or logits.nbytes <= budget.num_bytes:
        logits = logits.to(device)
    return logits if wanted is nodes else logits[torch.from_numpy(np.searchsorted(wanted, nodes)).to(logits.device)]


def _in_blocks(model: nn.Module, layers: Layers, h: Tensor, on_progress: Progress) -> Tensor:
    """[n, C] for the n nodes of `layers`, from the rows [S, F] that the first layer reads."""
    done, total = 0, sum(neighbourhood.num_dst for neighbourhood in layers.neighbourhoods)
    for i, neighbourhood in enumerate(layers.neighbourhoods):
        h = apply_layer(model, i, neighbourhood, h)
        done += neighbourhood.num_dst
        on_progress(done, total)
    return h


def _note_passes(chunks: Chunks, rows: IdArray, source: Source, limits: Limits) -> None:
    """Say that the first layer reads features on disk many times, if the first chunk of its rows does."""
    dst = next(chunks.cut(rows, source))
    count = len(chunks.neighbourhood(dst).block.src)
    if (passes := count * len(rows) / max(1, len(dst) * source.count)) > MANY_PASSES:
        limits.on_note(
            f"chunks of {counted(len(dst), 'node')} have {count:,} sources all over the features on disk, which are "
            f"read some {passes:.0f} times; renumber the nodes part by part (millrace partition STORE --into NEW)"
        )


def _in_chunks(
    chunks: Chunks,
    needed: Sequence[Mask],
    source: Source,
    sink_of: Callable[[int], DeviceSink | HostSink],
    on_progress: Progress,
) -> Tensor:
    """Rows of the last layer, ascending. `sink_of` a count of rows returns what collects them, on the model's device or
    the host."""
    total, done = sum(int(np.count_nonzero(mask)) for mask in needed), 0
    for i, mask in enumerate(needed):
        rows = np.flatnonzero(mask)
        sink = sink_of(len(rows))
        for count in chunks.layer(i, rows, source, sink.append):
            done += count
            on_progress(done, total)
        result = sink.finish()
        if i == len(needed) - 1:
            return result if isinstance(result, Tensor) else torch.from_numpy(result)
        ids = None if len(rows) == len(mask) else rows
        source = replace(source, rows=result if isinstance(result, Tensor) else ArrayFeatures(result), ids=ids)
    raise AssertionError("a model has a layer")


def by_split(logits: Tensor, dataset: Dataset, splits: Sequence[str] = SPLITS) -> dict[str, tuple[Tensor, Tensor]]:
    """Outputs and labels of the nodes of each split that has any, from the outputs of all, split after split."""
    ids = [getattr(dataset.split, name) for name in splits]
    labels = torch.from_numpy(dataset.labels[np.concatenate([np.empty(0, np.int64), *ids])]).to(logits.device)
    parts = [len(part) for part in ids]
    rows = zip(splits, torch.split(logits, parts), torch.split(labels, parts), strict=True)
    return {name: (own, y) for name, own, y in rows if len(y)}


def tally(logits: Tensor, labels: Tensor) -> Tensor:
    """Counts behind `accuracy`, float64 [2] on the device of the logits. Counts of several sets of rows may be added
    up."""
    if not len(labels):
        return torch.zeros(2, dtype=torch.float64, device=logits.device)
    if labels.ndim == 1:
        counts = torch.full((2,), len(labels), dtype=torch.float64, device=logits.device)
        counts[0] = (logits.argmax(dim=1) == labels).sum()
        return counts
    said, true = (logits > 0) & ~labels.isnan(), labels > 0.5
    return torch.stack([2 * (said & true).sum(), said.sum() + true.sum()]).double()


def quotient(right: float, of: float) -> float:
    """Accuracy from the counts of `tally`."""
    return right / of if of else 0.0


def _check(graph: Graph, features: FeatureStore, degree: Tensor, max_bytes: int) -> None:
    n = graph.num_nodes
    if features.num_rows != n:
        raise InputError(f"features have {features.num_rows} rows; the graph has {n} nodes: give one row for each")
    if degree.shape not in ((n,), (n, COLUMNS)):
        raise InputError(f"degree has shape {list(degree.shape)}; expected [{n}], one for each node")
    if max_bytes < 1:
        raise InputError(f"max_bytes is {max_bytes}; expected at least 1")
