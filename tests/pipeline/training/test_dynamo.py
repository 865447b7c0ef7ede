"""Processes of Millrace's own never load torch's compiler, and train to the same bits."""

import subprocess
import sys

TRAIN = """
import sys
import torch
from millrace.pipeline.training.dynamo import leave_compiler_out

if sys.argv[1] == "without":
    leave_compiler_out()
for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3)
    optimizer = kind(layer.parameters(), lr=0.1, weight_decay=0.01)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        layer(torch.ones(2, 5)).square().sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert torch.is_grad_enabled()
    print(kind.__name__, [p.tolist() for p in layer.parameters()])
print("torch._dynamo" in sys.modules)
"""


def trained(how: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", TRAIN, how], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_optimisers_step_alike_without_the_compiler() -> None:
    without, beside = trained("without"), trained("beside")
    assert without[:-1] == beside[:-1] and len(without) == 4
    # Where torch no longer loads it by itself, there is nothing left to leave out.
    assert (without[-1], beside[-1]) == ("False", "True")
