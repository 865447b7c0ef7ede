"""The command that tries what needs RAPIDS, with RAPIDS stood in for."""

import numpy as np
import pytest

from millrace.benchmarks import rapids as check
from millrace.tests.contracts import rapids


@pytest.mark.parametrize("gpus", [1, 2])
def test_all_but_training_is_tried_and_found_right(monkeypatch, capsys, gpus):
    rapids.install(monkeypatch, gpus)
    # Parts feed ranks in tests/whole_runs/test_driver.py.
    monkeypatch.setattr(check, "THINGS", [thing for thing in check.THINGS if thing is not check.fed])
    assert check.main(400) == 0
    told = capsys.readouterr().out
    assert [line.split()[1].strip(":") for line in told.splitlines()[1:]] == [thing.__name__ for thing in check.THINGS]


def test_without_a_gpu_a_sentence_says_so(monkeypatch, capsys):
    rapids.install(monkeypatch, 0)
    assert check.main() == 2
    told = capsys.readouterr().out
    assert told.startswith("benchmarks/rapids.py: this check needs an NVIDIA GPU") and told.count("\n") == 1


def test_what_is_wrong_is_told_and_ends_with_1(monkeypatch, capsys):
    rapids.install(monkeypatch)
    real = rapids.neighbor_sample

    def uneven(resource_handle, input_graph, start_vertex_list, h_fan_out, **options):
        # True edges in the right number, but some come more often.
        return real(
            resource_handle,
            input_graph,
            start_vertex_list,
            h_fan_out,
            **{**options, "use_edge_weights_as_biases": True},
        )

    monkeypatch.setattr("pylibcugraph.neighbor_sample", uneven)
    made = rapids.SGGraph.__init__

    def weighted(self, *args, **options):
        made(self, *args, **options)
        self.weight = np.where(self.dst % 7, 1.0, 3.0)

    monkeypatch.setattr(rapids.SGGraph, "__init__", weighted)
    monkeypatch.setattr(check, "THINGS", (check.drawn_alike, check.edges_of_parquet))
    assert check.main(400) == 1
    told = capsys.readouterr().out
    assert "FAILED  drawn_alike" in told and "draws are not uniform" in told and "ok      edges_of_parquet" in told
