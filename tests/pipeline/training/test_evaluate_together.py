"""Ranks evaluate together on the host, wherever the model is trained."""

import copy

import pytest
import torch

from millrace.pipeline.training.evaluate_together import evaluate_together
from millrace.stages.fetch.visit import Visits
from millrace.stages.models import MODELS
from millrace.tests.contracts.full_batch import C, F, make_case
from millrace.tests.contracts.pretended_device import OnDevice, on_pretended_device
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads


def test_a_pretended_device_keeps_values_and_refuses_tensors_of_the_host() -> None:
    rows, weight = torch.randn(4, 3), torch.randn(3, 2)
    product = OnDevice(rows) @ OnDevice(weight)
    assert product.device.type == "cuda"
    assert torch.equal(product.cpu(), rows @ weight)
    for mixed in (lambda: rows @ OnDevice(weight), lambda: OnDevice(rows) + rows):
        with pytest.raises(RuntimeError, match="on the same device"):
            mixed()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_a_device_is_evaluated_as_on_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that ranks hold lie on the host: they must not meet parameters that are trained on a device."""
    # `Module.to` keeps a parameter's object, and so its class, and gives it other data: not of another class.
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    torch.manual_seed(0)
    case, model = make_case(9, 2), MODELS[name](hidden=8, layers=2).build(F, C).double()
    there = on_pretended_device(copy.deepcopy(model))

    def rank(group: ThreadGroup) -> list[float]:
        visits = Visits(share := case.share(group, 2, False), (), 0, group)
        found = [evaluate_together(m, share, visits, "train", 2, group) for m in (copy.deepcopy(model), there)]
        return [f.accuracy for f in found if f is not None]

    for host, device in run_threads(rank, 2):
        assert host == device
    assert all(isinstance(p, OnDevice) for p in there.parameters())
