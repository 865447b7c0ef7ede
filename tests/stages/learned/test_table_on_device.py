"""Tables of learnt features in the memory of a GPU, or of a pretended one: the rows of one on the host."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millrace.stages.comm.solo import Solo
from millrace.stages.learned.table import LearnedTable
from millrace.tests.stages.learned.test_table import OPTIMIZERS, SEED, TARGET, D, V, nodes_of

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "on_device")
THERE = torch.device("cuda", 0)


def table(optimizer: str, device: torch.device | None) -> LearnedTable:
    return LearnedTable(V, D, torch.float64, SEED, Solo(), optimizer, lr=0.1, device=device)


def train(of: LearnedTable, steps: range) -> None:
    """Two minibatches a step, which share nodes; gradients are clipped in the second step."""
    for step in steps:
        for minibatch in (2, 3):
            nodes = nodes_of(step, minibatch)
            there = torch.from_numpy(nodes.astype(np.int64)).to(of.rows.device)
            # Ids come from the host or from the device.
            rows = of.take(nodes if minibatch == 2 else there)
            assert rows.device.type == of.rows.device.type
            ((rows - TARGET[torch.from_numpy(nodes.astype(np.int64))].to(rows.device)) ** 2).sum().backward()
        of.sum_gradients(2.0)
        if step == 1:
            of.scale_gradients(0.5 / of.gradient_norm())
        of.step(1 / (1 + step))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_steps_as_on_the_host_and_goes_on_there(optimizer: str, tmp_path: Path) -> None:
    here, there, back = table(optimizer, None), table(optimizer, THERE), table(optimizer, None)
    assert there.rows.is_cuda and all(x.is_cuda for x in there._optimizer.state.values())
    for of in (here, there):
        train(of, range(3))
        of.keep_best()
    state: dict[str, Any] = there.state()
    assert state["rows"].device.type == "cpu"
    back.load(state)
    again = table(optimizer, THERE)
    again.load(back.state())
    wanted = here.rows
    for of in (here, there, back, again):
        train(of, range(3, 5))
        wanted = of.rows.clone() if of is here else wanted
        torch.testing.assert_close(of.rows.cpu(), wanted, rtol=0, atol=1e-12)
        of.write(tmp_path / "rows.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), of.rows.cpu().numpy())
        of.use_best()
        torch.testing.assert_close(of.rows.cpu(), state["best"], rtol=0, atol=1e-12)
        assert of.rows.device.type == ("cuda" if of in (there, again) else "cpu")
