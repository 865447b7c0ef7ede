"""Modules of a user's own, pickled by value: what they compute, and the file that an error in them names."""

import re
import subprocess
import sys
import types
from pathlib import Path

import cloudpickle
import pytest
import torch
from torch import nn

from millrace.pipeline.custom.user_code import pickled, unpickled

SCRIPT = """
from torch import nn

class Own(nn.Linear):
    def forward(self, x):
        if x.sum() > 100:
            raise ValueError("too much")
        return super().forward(x)
"""


@pytest.fixture
def script(tmp_path: Path):
    """A module that another process cannot import, as the script that a user starts."""
    path = tmp_path / "train_mine.py"
    path.write_text(SCRIPT)
    module = types.ModuleType("train_mine")
    exec(compile(SCRIPT, str(path), "exec"), module.__dict__)
    sys.modules["train_mine"] = module
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules["train_mine"]


OTHER_PROCESS = """
import sys, torch
from millrace.pipeline.custom.user_code import unpickled
module = unpickled(sys.stdin.read())
print(module(torch.ones(1, 3)).tolist())
module(torch.full((1, 3), 100.0))
"""


def test_an_error_in_a_module_that_travels_by_value_names_its_file_and_line(script, tmp_path):
    own = script.Own(3, 2)
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS], input=pickled(own), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(own(torch.ones(1, 3)).tolist())
    assert done.returncode == 1
    named = re.search(r'File "([^"]+)", line (\d+), in forward\n +(.*)\nValueError: too much$', done.stderr.strip())
    assert named is not None, done.stderr
    assert named.groups() == (str(tmp_path / "train_mine.py"), "7", 'raise ValueError("too much")')


def test_a_module_that_ranks_can_import_travels_by_name():
    assert len(pickled(nn.Linear(3, 2))) < 3000
    assert unpickled(None) is None
