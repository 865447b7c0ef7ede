"""Cautions become Python warnings, which point at the line that called Millrace."""

import warnings
from dataclasses import replace

import pytest

import millrace as mr
from millrace.pipeline.datasets.open import divided
from millrace.pipeline.telemetry.events import Caution, Note, cautioning


def test_a_warning_points_at_the_callers_line(tmp_path):
    data = mr.open_dataset("karate")
    run = mr.run(data, out=tmp_path / "run", epochs=1, verbose=False, fanout=[2, 2], model=mr.GraphSAGE(8, 2))
    notes = ("The input stores no split: it was drawn.",)
    other = divided(replace(data, labels=1 - data.labels, notes=notes), None, 0)
    with pytest.warns(mr.DataWarning) as seen:
        mr.evaluate(run, other)
    assert {w.filename for w in seen} == {__file__}


def test_only_cautions_are_warnings():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        cautioning(Note("a note"))
        cautioning(Caution("a caution"))
    assert [(str(w.message), w.filename) for w in seen] == [("a caution", __file__)]
