"""`benchmarks/triples_accuracy.py`: its ranks by NumPy are the product's, and its exit status says what is short."""

import sys

import numpy as np
import pytest

import millrace as mr
from millrace.benchmarks import triples_accuracy


@pytest.mark.parametrize("decoder", ["complex", "distmult"])
def test_the_exit_status_says_if_a_figure_is_short_or_differs(decoder, tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    found = np.unique(rng.integers((20, 2, 20), size=(150, 3)), axis=0)
    rng.shuffle(found)
    names = {"entities": np.array([f"e{i}" for i in range(20)]), "relations": np.array(["likes", "knows"])}
    source = tmp_path / "small.npz"
    np.savez(source, train=found[:90], valid=found[90:110], test=found[110:], **names)
    triples_accuracy.write_triples(source, tmp_path / "WN18RR")
    learned = {"width": 8, "beside": False}
    mr.run(
        tmp_path / "WN18RR", model="identity", fanout=[0], epochs=1, batch_size=30, out=tmp_path / f"{decoder}-0",
        link={"ranked": "both", "width": 8, "decoder": decoder}, learned=learned, verbose=False,
        train={"metrics": list(triples_accuracy.METRICS)},
    )  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["", "--only", decoder, "--data", str(source), "--out", str(tmp_path)])
    for published, status in ((0.0, 0), (1.5, 1)):
        monkeypatch.setitem(triples_accuracy.PUBLISHED, decoder, (0.0, 0.0, 0.0, published))
        assert triples_accuracy.main() == status
    assert "hits@10 is " in capsys.readouterr().out
    shifted = [0.01 + m for m in (0.5, 0.4, 0.5, 0.6)]
    assert triples_accuracy.faults(decoder, shifted, (0.5, 0.4, 0.5, 0.6), (2, 2, 2, 2)) == [
        "result.json and NumPy differ by 0.0100"
    ]
    assert len(triples_accuracy.faults(decoder, shifted, [float("nan")] * 4, [float("nan")] * 4)) == 5
