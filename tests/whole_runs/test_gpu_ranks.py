"""The part of `benchmarks/gpu.py` that sets several ranks beside one."""

from functools import partial
from pathlib import Path

import pytest
import torch

import millrace

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[2]


def test_several_ranks_are_set_beside_one(monkeypatch, scheduler):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu_ranks
    from gpu_lab import Lab

    lab = Lab(torch.device("cpu"), 60, 150, 4, 2, float("inf"))
    name = "sar, one rank after the other"
    monkeypatch.setattr(gpu_ranks, "SYSTEMS", {name: gpu_ranks.SYSTEMS[name]})
    monkeypatch.setattr(millrace, "run", partial(millrace.run, scheduler=scheduler))
    gpu_ranks.ranks(lab)
    assert not lab.failures and [r.name for r in lab.rows] == [f"epoch of {name}, 2 ranks"]
    one, two = (lab.details["ranks"][name][n] for n in ("1", "2"))
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert sum(two["bytes"]["per_rank"][0]["network"].values()) > 0
    losses = iter([1.0, 1.0, 2.0])
    monkeypatch.setattr(gpu_ranks, "train", lambda *_: {"epoch_s": [1.0], "loss": next(losses), "bytes": {}})
    monkeypatch.setattr(Lab, "on_gpu", True)
    monkeypatch.setattr(Lab, "clear", lambda _: None)
    gpu_ranks.ranks(lab)
    assert "the loss is 1.0; on processors it is 2.0" in lab.failures[f"ranks: {name}"]
