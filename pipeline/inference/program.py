"""Trained models in plain torch: programs of `torch.export`, which need no Millrace, and what PyG's explainers read."""

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ...stages.evaluate.layerwise import evaluating, infer
from ...stages.models.base import as_model, check_initialised, layered, reads_edges
from ...stages.models.pyg.hetero import HeteroPyGModel
from ...stages.models.pyg.model import PyGModel
from ...stages.models.small_graph import reads_weights
from ...stages.neighbourhood.edge_index import EdgeIndexNeighbourhood
from ...storage.errors import InputError, install
from ...storage.graph import from_edges
from ...storage.optional import present_items
from ..setup.result import Result
from .files import written
from .finished_run import TrainedRun, load

TRIED = ((37, 150), (8, 11))
"""Nodes and edges of the graphs that a program is traced and tried on."""
TOLERANCE = 1e-3
"""Largest difference of an output, beside outputs of about 1: another order of sums."""

MODES = {"multiclass": "multiclass_classification", "binary": "binary_classification", "regression": "regression"}
"""PyG's name of each task that it explains."""


class Forward(nn.Module):
    """A model's forward pass over a whole graph, in plain torch."""

    needs_weights = False
    """True: the model reads weights, and the graph has them, so that a call without `edge_weight` is an InputError."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[V, F], [2, E], [E] -> [V, C]."""
        if edge_weight is None and self.needs_weights:
            raise InputError(
                "edge_weight is missing, which the model reads and the run's graph has; pass edge_weight=, such as "
                "explainer(data.x, data.edge_index, index=17, edge_weight=data.edge_weight)"
            )
        if isinstance(self.model, PyGModel):
            return self.model.plain(x, edge_index, present_items({"edge_weight": edge_weight}))
        neighbourhood = EdgeIndexNeighbourhood(edge_index, x.shape[0], edge_weight, x.dtype)
        for i in range(layered(self.model).num_layers):
            x = layered(self.model).layer(i, neighbourhood, x)
        return x


def export_program(
    run: TrainedRun | Result | str | Path | nn.Module,
    path: str | Path | None = None,
    *,
    model: object = None,
    num_features: int | None = None,
    weighted: bool | None = None,
) -> ExportedProgram:
    """A trained model as a program of `torch.export`: ``program.module()(x, edge_index) -> logits``, for any graph.

    ``x`` is [V, F], ``edge_index`` int64 [2, E] with sources first, as PyG has it, all in-edges of each node among
    them; the result is [V, C], or of a run of links or of labels of edges the rows of nodes that its decoder reads. It
    needs torch alone, keeps a message for each edge in memory, and computes what `predict` does, up to rounding; on
    other devices after ``program.module().to(device)`` in torch's way. It knows no times: of a run by the sampler
    temporal, give it the edges until a node's time.

    Args:
        run: a finished run (its folder, the result of `millrace.run` or of `load`), or a model.
        path: file to write, which ends in ``.pt2``, for `torch.export.load`; None: none.
        model: for a run of your own module: see `load`.
        num_features: F of a model that is no run.
        weighted: the program takes ``edge_weight`` [E] too; by default as the run's dataset has weights; a model's has
            none.

    Raises:
        InputError: the model cannot be exported, or the file cannot be written.
        StoreError: something in the run's folder is damaged.
    """
    if path is not None and Path(path).suffix != ".pt2":
        raise InputError(f"{path} ends in '{Path(path).suffix}'; expected a file that ends in .pt2")
    if isinstance(run, nn.Module):
        if num_features is None:
            raise InputError("num_features is missing; expected the number of columns that the model reads")
        net, name, types = as_model(run), type(run).__name__, None
    else:
        trained = run if isinstance(run, TrainedRun) else load(run, model=model)
        net, name, types = trained.model, trained.result.model, trained.result.types
        num_features = trained.config.learned.num_read(trained.result.num_features)
        weighted = trained.open_dataset(lazy=True).graph.is_weighted if weighted is None else weighted
    check_initialised(net)
    if isinstance(net, PyGModel | HeteroPyGModel):
        raise InputError(f"{name} has convolutions of PyG, which are exported without Millrace: torch.export them")
    if types or reads_edges(net):
        raise InputError(f"{name} reads types or features of edges, which a program of x and edge_index does not take")
    program = _traced(net, name, num_features, bool(weighted))
    if path is not None:
        written(Path(path), lambda aside: _save(program, aside))
    return program


def _save(program: ExportedProgram, aside: Path) -> None:
    # Of a file that cannot be written, torch would end the process.
    torch.export.save(program, buffer := io.BytesIO())
    aside.write_bytes(buffer.getbuffer())


def _traced(model: nn.Module, name: str, num_features: int, weighted: bool) -> ExportedProgram:
    """The program, once it has given on small graphs what the model gives.

    Raises:
        InputError: torch cannot trace the model, or the program gives something else.
    """
    host = copy.deepcopy(model).cpu()
    dtype = next((p.dtype for p in host.parameters() if p.is_floating_point()), torch.float32)
    nodes, edges = Dim("nodes"), Dim("edges")
    shapes = ({0: nodes}, {1: edges}, {0: edges})[: 2 + weighted]
    tried = [_arguments(*sizes, num_features, dtype, weighted) for sizes in TRIED]
    with evaluating(host):
        try:
            program = torch.export.export(Forward(host), tried[0], dynamic_shapes=shapes, strict=False)
            found = [program.module()(*arguments) for arguments in tried]
        except Exception as e:
            reason = " ".join(str(e).split())[:200]
            raise InputError(
                f"{name} cannot be exported, as torch cannot trace it for graphs of any size ({type(e).__name__}: "
                f"{reason}); expected torch's operations alone, and no choices by values or sizes"
            ) from e
        for got, (x, ends, *weight) in zip(found, tried):
            src, dst = ends.numpy()
            graph = from_edges(src, dst, len(x), edge_weight=weight[0].numpy() if weight else None)
            want = infer(host, graph, x)
            if got.shape != want.shape or not torch.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE):
                raise InputError(
                    f"{name} cannot be exported, as its trace gives other outputs than the model, which does what a "
                    "trace does not see, such as random numbers, or knows more of a node than its rows"
                )
    return program


def _arguments(nodes: int, edges: int, width: int, dtype: torch.dtype, weighted: bool) -> tuple[Tensor, ...]:
    """Rows, edges and weights. Some nodes have no in-edges, and some edges are there twice."""
    rng = np.random.default_rng(nodes)
    x = torch.from_numpy(rng.standard_normal((nodes, width))).to(dtype)
    ends = torch.from_numpy(rng.integers(0, [[nodes], [nodes - 3]], (2, edges)))
    return (x, ends, torch.from_numpy(rng.random(edges, np.float32))) if weighted else (x, ends)


def explainer(run: TrainedRun | Result | str | Path, algorithm: Any, *, model: Any = None, **options: Any) -> Any:
    """Make one of PyG's explainers for a run: it says which features of which nodes decide a prediction.

    Call the explainer with the whole graph, ``explainer(data.x, data.edge_index, index=17,
    edge_weight=data.edge_weight)``, where `data` is ``dataset.to_pyg()``; it gives PyG's ``Explanation`` for node 17.
    Weights may be left out unless the run's graph has some and its model reads them: the call is then refused. The
    model's messages pass over all edges that the call gives; of a run by the sampler temporal, give those until the
    node's time. Edges have masks only if the model is PyG's.

    Args:
        run: a finished run: its folder, the result of `millrace.run`, or of `load`.
        algorithm: of `torch_geometric.explain`, such as ``GNNExplainer(epochs=100)``.
        model: for a run of your own module or of PyG's: see `load`.
        options: further ones of PyG's ``Explainer``; by default ``explanation_type="model"`` and
            ``node_mask_type="attributes"``.

    Raises:
        InputError: PyG is not installed or does not explain the run's task, or the model reads more than `x` and
            `edge_index`.
        StoreError: something in the run's folder is damaged.
    """
    try:
        from torch_geometric.explain import Explainer
    except ImportError:
        raise InputError(f"explainers are those of PyG, which is not installed; {install('pyg')}") from None
    trained = run if isinstance(run, TrainedRun) else load(run, model=model)
    result = trained.result
    if result.task not in MODES or result.labels_of != "nodes":
        what = "labels of edges" if result.labels_of == "edges" else f"the task '{result.task}'"
        raise InputError(f"PyG's explainers do not know {what}; expected one of {', '.join(MODES)}, of nodes")
    if result.types or isinstance(trained.model, HeteroPyGModel) or reads_edges(trained.model):
        raise InputError(
            f"{result.model} reads types or features of edges; expected a model of features of nodes and edges alone"
        )
    if options.get("edge_mask_type") is not None and not isinstance(trained.model, PyGModel):
        raise InputError("edge_mask_type is given, but edges have no masks here; leave it out, and mask nodes")
    usual: dict[str, Any] = {"explanation_type": "model", "node_mask_type": "attributes", "edge_mask_type": None}
    config = {"mode": MODES[result.task], "task_level": "node", "return_type": "raw"}
    forward = Forward(trained.model).eval()
    forward.needs_weights = _weighs(trained)
    return Explainer(forward, algorithm, model_config=config, **{**usual, **options})


def _weighs(run: TrainedRun) -> bool:
    """True if a run's model reads weights, and its graph is known to have them."""
    if not reads_weights(run.model, (run.config.learned.num_read(run.result.num_features), 0, None)):
        return False
    try:
        return run.open_dataset(lazy=True).graph.is_weighted
    except InputError:  # data that no file keeps
        return False
