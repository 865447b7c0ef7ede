"""Explanations of a trained model by PyG's explainers."""

from pathlib import Path
from typing import Any

from ...storage.errors import InputError, install
from ..setup.result import Result
from .finished_run import TrainedRun, load

MODES = {"multiclass": "multiclass_classification", "binary": "binary_classification", "regression": "regression"}
"""PyG's name of each task that it explains."""


def explainer(run: TrainedRun | Result | str | Path, algorithm: Any, *, model: Any = None, **options: Any) -> Any:
    """Ready one of PyG's explainers for a run: which features of which nodes decide a prediction.

    Call what is returned with the whole graph, ``explainer(data.x, data.edge_index, index=17)``, where `data` is
    ``dataset.to_pyg()``; it gives PyG's ``Explanation`` for node 17. The model's messages pass over all in-edges, as in
    `predict`, and edges have no masks.

    Args:
        run: a finished run: its folder, the result of `millrace.run`, or of `load`.
        algorithm: of `torch_geometric.explain`, such as ``GNNExplainer(epochs=100)``.
        model: for a run of your own module: see `load`.
        options: further ones of PyG's ``Explainer``; by default ``explanation_type="model"`` and
            ``node_mask_type="attributes"``.

    Raises:
        InputError: PyG is not installed, it has no such task, or the model reads more than `x` and `edge_index`.
        StoreError: something in the run's folder is damaged.
    """
    try:
        from torch_geometric.explain import Explainer
    except ImportError:
        raise InputError(f"explainers are those of PyG, which is not installed; {install('pyg')}") from None
    from ...stages.models.base import reads_edges
    from ...stages.models.pyg.hetero import HeteroPyGModel
    from .program import Forward

    trained = run if isinstance(run, TrainedRun) else load(run, model=model)
    result = trained.result
    if result.task not in MODES or result.labels_of != "nodes":
        what = "labels of edges" if result.labels_of == "edges" else f"the task '{result.task}'"
        raise InputError(f"PyG's explainers do not know {what}; expected one of {', '.join(MODES)}, of nodes")
    if result.types is not None or isinstance(trained.model, HeteroPyGModel) or reads_edges(trained.model):
        raise InputError(
            f"{result.model} reads types or features of edges; expected a model of features of nodes and edges alone"
        )
    if options.get("edge_mask_type") is not None:
        raise InputError("edge_mask_type is given, but edges have no masks here; leave it out, and mask nodes")
    usual: dict[str, Any] = {"explanation_type": "model", "node_mask_type": "attributes", "edge_mask_type": None}
    config = {"mode": MODES[result.task], "task_level": "node", "return_type": "raw"}
    return Explainer(Forward(trained.model).eval(), algorithm, model_config=config, **{**usual, **options})
