"""Moves that `benchmarks/planted_devices.py` leaves out: they are found, noted where they move something, left out."""

import builtins
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

SOURCE = """
import torch

def to_device(rows, device):
    return torch.from_numpy(rows).to(device)

def moves(x, rows, device):
    return {
        "to": x.to(device),
        "with a dtype": x.to(device, torch.float64),
        "cpu": x.to(device).cpu(),
        "to_device": to_device(rows, device),
        "device": torch.zeros(2, device=device),
        "a dtype alone": x.to(torch.float64),
    }
"""
PLACES = {
    "stages/some.py: x.to(device)": "to",
    "stages/some.py: x.to(device, torch.float64)": "with a dtype",
    "stages/some.py: x.to(device).cpu()": "cpu",
    "stages/some.py: to_device(rows, device)": "to_device",
    "stages/some.py: torch.zeros(2, device=device)": "device",
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that Python imports at its start while moves are left out, for a package in `tmp_path`."""
    file = Path(__file__).parents[2] / "benchmarks" / "planted" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("planted", file)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(builtins, "__moved__", module.moved, raising=False)
    return module


def moves(planted: Any, tmp_path: Path) -> tuple[Any, dict[str, int]]:
    """The rewritten function, and the places in its module."""
    file = tmp_path / "stages" / "some.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(SOURCE)
    tree, places = planted.rewritten(file)
    names: dict[str, Any] = {}
    exec(compile(tree, str(file), "exec"), names)
    return names["moves"], places


def test_places_are_moves_with_their_lines(planted, tmp_path):
    _, places = moves(planted, tmp_path)
    lines = SOURCE.splitlines()
    assert set(PLACES) < set(places) and len(places) == len(PLACES) + 2  # in to_device, and inside .cpu()
    assert all(name.partition(": ")[2].partition(" (")[0].split("(")[0] in lines[n - 1] for name, n in places.items())


@pytest.mark.parametrize("place", PLACES)
def test_a_move_is_left_out_alone(place, planted, tmp_path, monkeypatch, on_device):
    run, _ = moves(planted, tmp_path)
    given = torch.ones(2), np.arange(3), on_device
    want = run(*given)
    monkeypatch.setenv("MILLRACE_PLANTED_PLACE", place)
    for name, got in run(*given).items():
        assert (got.device.type != want[name].device.type) == (name == PLACES[place])
        assert got.dtype == want[name].dtype and torch.equal(got.cpu(), want[name].cpu())


def test_what_moves_to_or_from_a_gpu_is_noted_once(planted, tmp_path, monkeypatch, on_device):
    run, _ = moves(planted, tmp_path)
    current = tmp_path / "current"
    current.write_text("test_one")
    monkeypatch.setenv("MILLRACE_PLANTED_CURRENT", str(current))
    for device in (torch.device("cpu"), on_device, on_device):
        run(torch.ones(2), np.arange(3), device)
    run(torch.ones(2).to(on_device), np.arange(3), on_device)
    noted = [line.split("\t") for line in (tmp_path / "seen").read_text().splitlines()]
    assert all(test == "test_one" for _, test, _ in noted) and len({tuple(n) for n in noted}) == len(noted)
    assert {name for name, _, moved in noted if moved == "True"} > set(PLACES)
    assert ["stages/some.py: x.to(device)", "test_one", "False"] in noted  # it was there already
