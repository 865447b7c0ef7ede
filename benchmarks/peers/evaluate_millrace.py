"""`millrace.infer` for all nodes. Option: mapped, the features are read from their file as a memory map."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from evaluate_task import CLASSES, FEATURES, HEADS, HIDDEN, LAYERS, Evaluation, evaluate

import millrace as mr
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.models import MODELS
from millrace.storage.features import ArrayFeatures, MappedFeatures


def start(task: Evaluation) -> Callable[[], np.ndarray]:
    """See `evaluate_task.evaluate`."""
    torch.set_num_threads(task.threads)
    set_num_threads(task.threads)
    torch.manual_seed(0)
    options = {"heads": HEADS} if task.model == "gat" else {}
    model = MODELS[task.model](hidden=HIDDEN, layers=LAYERS, **options).build(FEATURES, CLASSES)
    convs: Any = model.convs
    for i, conv in enumerate(convs):
        given = {name: torch.from_numpy(w) for name, w in task.weights(i).items()}
        with torch.no_grad():
            if task.model == "sage":
                conv.own.weight.copy_(given["own"])
                conv.neighbours.weight.copy_(given["near"])
                conv.own.bias.zero_()
            elif task.model == "gat":
                conv.linear.weight.copy_(given["product"])
                conv.a_src.copy_(given["src"])
                conv.a_dst.copy_(given["dst"])
    graph, mapped = mr.Graph(*task.graph()), task.options.get("mapped", False)
    path = task.folder / "evaluation" / "features.npy"
    features = MappedFeatures(path) if mapped else ArrayFeatures(task.features())
    # Compiled code is loaded before the clock starts.
    small = mr.Graph(np.array([0, 1, 2]), np.array([1, 0], graph.indices.dtype))
    few = MappedFeatures(path).rows[:2] if mapped else features.rows[:2]
    mr.infer(model, small, ArrayFeatures(few))
    mr.infer(model, small, ArrayFeatures(few), nodes=[0])
    return lambda: mr.infer(model, graph, features).numpy()


if __name__ == "__main__":
    evaluate(start)
