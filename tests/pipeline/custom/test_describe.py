"""Descriptions of code: equal for code that does the same, different where it does not, the same in any process."""

import functools
import os
import subprocess
import sys

import torch

from millrace.pipeline.custom.describe import describe


def scaled(factor):
    def loss(out, y):
        """Comments and names of places do not matter."""
        return factor * torch.nn.functional.cross_entropy(out, y, reduction="none")

    return loss


class Focal:
    def __init__(self, gamma):
        self.gamma = gamma

    def __call__(self, out, y):
        return out.sum(1) ** self.gamma


class Steeper(Focal):
    def __call__(self, out, y):
        return out.sum(1) ** (2 * self.gamma)


def test_the_same_code_with_the_same_values_is_the_same():
    same = [
        lambda: scaled(2.0),
        lambda: Focal(2),
        lambda: Focal(3).__call__,
        lambda: functools.partial(torch.optim.SGD, lr=0.1),
        lambda: torch.optim.Adam,
        lambda: torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), reduction="none"),
        lambda: lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        lambda: Focal,
    ]
    digests = [describe(make()) for make in same]
    assert digests == [describe(make()) for make in same]
    assert len(set(digests)) == len(same)


def test_other_values_or_code_differ():
    assert describe(scaled(2.0)) != describe(scaled(3.0))
    assert describe(Focal(2)) != describe(Focal(3))
    assert describe(Focal(2)) != describe(Steeper(2))
    assert describe(lambda p: torch.optim.SGD(p, lr=0.5)) != describe(lambda p: torch.optim.SGD(p, lr=0.6))
    one, other = (torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, w])) for w in (2.0, 3.0))
    assert describe(one) != describe(other)
    smooth = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    assert describe(smooth) != describe(torch.nn.CrossEntropyLoss())


def test_what_refers_to_itself_ends():
    focal = Focal(2)
    focal.gamma = focal
    assert describe(focal) == describe(focal)


PROGRAM = """
from millrace.pipeline.custom.describe import describe

def f(out, y, names={"b", "a", "c", "d", "e", "f"}):
    return out if y in {1, 2, "x", "y", "z"} else None

print(describe(f), *(describe(g) for g in (lambda p: p + 1, lambda p: p + 2)))
"""


def test_another_process_gives_the_same(capsys):
    """One in which strings have other hashes, so that sets have another order."""
    exec(compile(PROGRAM, "<string>", "exec"), {"__name__": "__main__"})
    here = capsys.readouterr().out.split()
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert here == there and here[1] != here[2]
