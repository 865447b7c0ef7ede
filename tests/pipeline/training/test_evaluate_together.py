"""Ranks evaluate together on the host, wherever the model is trained."""

import copy

import pytest
import torch

from millrace.pipeline.training.evaluate_together import evaluate_together
from millrace.stages.fetch.visit import Visits
from millrace.stages.models import MODELS
from millrace.tests.contracts.full_batch import C, F, make_case
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads


@pytest.mark.parametrize("name", [n for n, kind in MODELS.items() if not (kind.reads_edges or kind.reads_relations)])
def test_a_model_on_a_device_is_evaluated_as_on_the_host(name: str, on_device: torch.device) -> None:
    """Rows that ranks hold lie on the host: they must not meet parameters that are trained on a device."""
    torch.manual_seed(0)
    case, model = make_case(9, 2), MODELS[name](hidden=8, layers=2).build(F, C).double()
    there = copy.deepcopy(model).to(on_device)

    def rank(group: ThreadGroup) -> list[float]:
        visits = Visits(share := case.share(group, 2, False), (), 0, group)
        found = [evaluate_together(m, share, visits, "train", 2, group) for m in (copy.deepcopy(model), there)]
        return [f.accuracy for f in found if f is not None]

    for host, device in run_threads(rank, 2):
        assert host == device
    assert all(p.is_cuda for p in there.parameters())
