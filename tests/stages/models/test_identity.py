"""The rows that are read are those that are given, and a decoder on learnt ones is the embedding of its name."""

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.models.identity import Identity, OwnRows
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.storage.errors import InputError
from millrace.storage.minibatch import Block

KG = "kg:people=60,companies=8,cities=4"
JOB = {
    "model": "identity", "fanout": [0], "epochs": 2, "seed": 3, "threads": 1, "lr": 0.02, "batch_size": 32,
    "learned": {"width": 6, "beside": False}, "link": {"width": 6, "decoder": "complex"}, "dtype": "float64",
}  # fmt: skip


def test_rows_are_those_of_the_destinations_in_the_first_columns():
    block = Block(2, np.array([4, 1, 7]), np.array([0, 1, 2]), np.array([2, 2], np.int32))
    h = torch.arange(15.0).view(3, 5)
    for width in (5, 3):
        assert torch.equal(OwnRows(width)(BlockNeighbourhood(block, torch.ones(3)), h), h[:2, :width])
    model = Identity(dropout=0.5).build(5, 5)
    kept = model.train()([BlockNeighbourhood(block, torch.ones(3))], h)
    assert ((kept == 0) | (kept == 2 * h[:2])).all()


def test_a_run_trains_rows_and_decoder_alone_on_any_number_of_ranks(tmp_path):
    data = mr.link_dataset(mr.open_dataset(KG), relation=["lives_in", "works_at"])
    alone, two = (
        mr.run(data, out=tmp_path / str(n), verbose=False, ranks=n, minibatches_per_step=2, **JOB) for n in (1, 2)
    )
    model = mr.load(alone).model
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"decoder"}
    rows = np.load(tmp_path / "1" / "learned.npy")
    np.testing.assert_allclose(mr.embed(alone).rows, rows, rtol=0, atol=0)
    np.testing.assert_allclose(np.load(tmp_path / "2" / "learned.npy"), rows, rtol=1e-9, atol=1e-9)
    assert alone.test_metrics == pytest.approx(two.test_metrics, abs=1e-9)


def test_widths_that_differ_and_layers_without_neighbours_are_refused(tmp_path):
    with pytest.raises(InputError, match="layers is 2, but the model reads no neighbours"):
        Identity(layers=2)
    data = mr.link_dataset(mr.open_dataset(KG), relation="lives_in")
    with pytest.raises(InputError, match="gives the 6 columns that it reads, but 8 are wanted"):
        mr.run(data, out=tmp_path / "run", verbose=False, **{**JOB, "link": {"width": 8}})
    assert not (tmp_path / "run").exists()
