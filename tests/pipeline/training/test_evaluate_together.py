"""Ranks evaluate together, on the host or on their devices, wherever the model is trained."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from millrace.pipeline.training import evaluate_together as together
from millrace.pipeline.training import evaluation
from millrace.pipeline.training.evaluate_together import evaluate_together, fits_device
from millrace.stages.comm.gloo import Gloo
from millrace.stages.evaluate.measures import Measures
from millrace.stages.fetch.visit import Visits
from millrace.stages.models import MODELS
from millrace.tests.contracts.full_batch import C, F, make_case
from millrace.tests.contracts.nccl import stood_in
from millrace.tests.contracts.pretended_device import DEVICE
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads


@pytest.mark.parametrize("name", [n for n, kind in MODELS.items() if not (kind.reads_edges or kind.reads_relations)])
def test_a_model_on_a_device_is_evaluated_as_on_the_host(name: str, on_device: torch.device) -> None:
    """Rows that ranks hold on the host must not meet parameters that are trained on a device."""
    torch.manual_seed(0)
    case, model = make_case(9, 2), MODELS[name](hidden=8, layers=2).build(F, C).double()
    there = copy.deepcopy(model).to(on_device)

    def rank(group: ThreadGroup) -> list[float]:
        visits = Visits(case.share(group, 2, False), (), 0, group)
        found = [evaluate_together(m, visits, "train") for m in (copy.deepcopy(model), there)]
        return [f.accuracy for f in found if f is not None]

    for host, device in run_threads(rank, 2):
        assert host == device
    assert all(p.is_cuda for p in there.parameters())


def there_and_here(group: Gloo) -> tuple[float, list[Any], list[int]]:
    """The largest difference of outputs on the pretended device and on the host; accuracies, and messages between the
    devices so far, on the host, on the device, and where one rank has no room there."""
    made, case = stood_in(group), make_case(7, group.size)
    torch.manual_seed(0)
    model = MODELS["gat"](hidden=4, layers=2).build(F, C).double().train()
    share = case.share(made, 2, False)
    here, there = Visits(share, (), 0, made), Visits(share, (), 100, made, DEVICE)
    on_host = together._rows_of(model.eval(), here)
    model = model.train().to(DEVICE)
    with torch.no_grad():
        difference = (together._rows_of(model.eval(), there) - on_host).abs().max()
    prepared: Any = SimpleNamespace(
        data=SimpleNamespace(features=None), outline=SimpleNamespace(splits={"val": True}, task="node", of_pairs=False)
    )
    job: Any = SimpleNamespace(group=made, device=DEVICE, num_layers=2, measures=Measures())

    def score() -> Any:
        return evaluation._together(prepared, lambda: share, lambda: None, job, model.train())(model, "val")

    tried: list[Callable[[], Any]] = [
        lambda: evaluate_together(model.train(), here, "val"),
        score,
        score,
    ]
    scores, swaps = [], []
    for n, one in enumerate(tried):
        if n == 2 and made.rank:
            torch.cuda.mem_get_info = lambda device=None: (0, 0)
        scores.append(one().accuracy)
        swaps.append(made._on_gpus.asked.count("swap"))
        assert model.training
    return float(difference), scores, swaps


@pytest.mark.usefixtures("on_device")
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning")
def test_ranks_evaluate_on_their_devices_as_on_the_host() -> None:
    for difference, scores, swaps in run_ranks(there_and_here, 2):
        assert difference < 1e-10 and len({*scores}) == 1
        assert 0 < swaps[0] < swaps[1] == swaps[2]


def test_what_does_not_fit_on_a_device_is_said_not_to(monkeypatch: pytest.MonkeyPatch, on_device: torch.device) -> None:
    def rank(group: ThreadGroup) -> list[bool]:
        share, model = make_case(7, 1).share(group, 2, False), MODELS["gcn"](hidden=4, layers=2).build(F, C)
        found = [fits_device(share, model, on_device)]
        stays = share.new_bytes_on(on_device)
        for free, used in ((stays, 0), (2 * stays + (1 << 16), 0), (2 * stays + (1 << 16), 1 << 20)):
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, n=free: (n, n))
            monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _, n=used: n)
            found.append(fits_device(share, model, on_device))
        share.to_device(on_device)
        assert share.new_bytes_on(on_device) == stays - share.x.nbytes
        return found

    assert run_threads(rank, 1) == [[True, False, True, False]]
