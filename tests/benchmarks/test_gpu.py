"""`benchmarks/gpu.py` runs from end to end: a GPU is lent for minutes, and none of them should go into finding a typing
error."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import millrace
from millrace.stages.kernels.sampling.draws import NeighborDraws
from millrace.tests.contracts.fresh_python import run_python

pytest.importorskip("triton")
pytest.importorskip("torch_geometric")
ROOT = Path(__file__).resolve().parents[2]
TINY = ("--device", "cpu", "--scale", "14,30", "--batch", "2", "--minibatches", "2")


def benchmark(*arguments: str) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of the script in a process of its own, with this checkout as the
    package."""
    paths = os.pathsep.join(
        filter(None, [str(Path(millrace.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")])
    )
    script = str(ROOT / "benchmarks" / "gpu.py")
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); sys.argv = {[script, *arguments]}; "
        f"runpy.run_path({script!r}, run_name='__main__')"
    )
    return run_python("-c", code, variables={"PYTHONPATH": paths}, timeout=580)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_part_runs(tmp_path):
    # Inside, samples are compared with those of the compiled kernels, and aggregations and their gradients with PyG's.
    code, out, err = benchmark(*TINY, "--json", str(tmp_path / "gpu.json"))
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert (code, told["failures"]) == (0, {}), out + err
    rows = {r["name"]: r for r in told["rows"]}
    for sampler in ("neighbor", "labor", "ladies", "fastgcn"):
        assert rows[f"sampling {sampler}, bulks of 2"]["measured"] > 0
        assert told["details"]["bits"][sampler]["equal_bulks"] == 1
    for strategy in ("uniform", "last"):
        assert rows[f"sampling by time, {strategy}, bulks of 2"]["ratio"] > 0
        told["details"]["bits"].pop(f"temporal, sampling by time, {strategy}")
        assert all(
            told["details"]["bits"][f"temporal, {x}, {strategy}"]["equal_bulks"] == 3 for x in ("weights", "types")
        )
    assert all(rows[f"sampling links{way}, bulks of 2"]["ratio"] > 0 for way in ("", ", all nodes again"))
    for name in (
        "mean of layer 1, forward",
        "attention of layer 2, forward and backward",
        "epoch of gat float32, millrace.run",
    ):
        row = rows[name]
        assert row["share"] == pytest.approx(row["floor"] / row["measured"])
        assert row["ratio"] == pytest.approx(row["peer"] / row["measured"])
        assert f"| {name} " in out
    for way in ("", ", gradient of rows", ", gradient of weights"):
        assert rows[f"product of layer 1 of GAT{way}"]["ratio"] > 0
    for name in ("sar, sage", "sar, gat", "retexo, sage", "retexo, gat"):
        assert rows[f"epoch of {name}"]["ratio"] > 0
    assert rows["step of sage float32, grappa, the device draws"]["ratio"] > 0
    # Two minibatches of two seeds: what the layers see is what was drawn.
    sage = told["details"]["training"]
    assert len(sage["sage float32, millrace"]["epoch_s"]) == 2 and sage["gat float32, PyG"]["loss"] > 0


def test_what_fails_is_told_and_the_rest_goes_on(tmp_path):
    # With no time left every part fails.
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({"rows": [{"name": "gone", "measured": 1.0}]}))
    few = ("--minutes", "0", "--only", "machine,gather", "--against", str(earlier))
    code, out, _ = benchmark(*TINY, *few, "--json", str(tmp_path / "gpu.json"))
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert code == 1 and "| before | better |" in out
    assert told["failures"].keys() == {"machine", "gather"} and told["rows"] == []
    assert all("the time was up" in why for why in told["failures"].values())
    assert out.count("FAILED") == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "machine,flight"), "--only has flight"),
        (("--device", "cpu", "--scale", "60"), "two numbers"),
        (("--device", "cpu", "--scale", "60,150"), "fewer minibatches"),
        (("--batch", "1"), "at least 2"),
        (("--device", "cpu", "--ranks", "1"), "--ranks must be at least 2"),
        (("--device", "cpu", "--against", "none.json"), "there is no file none.json"),
    ],
)
def test_arguments_are_refused(arguments, said, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu

    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    with pytest.raises(SystemExit) as left:
        gpu.arguments()
    assert left.value.code == 2 and said in capsys.readouterr().err


def test_what_is_run_with_and_without_all(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu

    for given, parts in (
        ((), gpu.PARTS),
        (("--ranks", "2"), (*gpu.PARTS, "ranks")),
        (("--all",), (*gpu.PARTS, "rapids")),
        (("--all", "--ranks", "2"), gpu.ALL),
        (("--only", "ranks"), ("ranks",)),
    ):
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", *given])
        assert tuple(gpu.arguments().only) == parts


def test_an_earlier_run_is_set_beside(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu
    from gpu_lab import Lab

    lab = Lab(torch.device("cpu"), 300, 900, 5, 3, float("inf"))
    lab.add("epoch", 2.0, "s")
    lab.add("rate", 2.0, "GB/s")
    lab.add("new", 1.0, "s")
    gpu.show(lab, {"epoch": 4.0, "rate": 4.0})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [row[-2:] for row in rows if row and row[0] in ("epoch", "rate", "new")] == [
        ["4", "2.00"], ["4", "0.50"], ["", ""]
    ]  # fmt: skip


def test_layers_of_other_convolutions_are_those_that_were_drawn(monkeypatch):
    # PyG sees them through `resident`.
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from gpu_lab import Lab
    from gpu_sampling import draw
    from gpu_training import resident
    from peers.train_task import FANOUT

    from millrace.stages.kernels.sampling.cpu import backend as cpu
    from millrace.stages.kernels.sampling.cuda import backend as cuda

    lab = Lab(cuda.device(), 300, 900, 5, 3, float("inf"))
    (request,) = lab.bulks(3, 5)
    made = list(resident(lab, draw(lab, "neighbor", request, cuda.Workspace())))
    drawn = cpu.neighbor(lab.graph, NeighborDraws(request.seeds, request.keys, FANOUT))
    assert len(made) == len(drawn) == 3
    for (nodes, blocks), m in zip(made, drawn):
        assert np.array_equal(nodes.cpu().numpy(), m.nodes)
        assert [n for _, n in blocks] == list(m.node_ends[-2::-1])
        for edges, n in blocks:
            src, dst = edges.cpu().numpy()
            assert np.array_equal(src, m.indices[: m.indptr[n]])
            assert np.array_equal(dst, np.repeat(np.arange(n), np.diff(m.indptr[: n + 1])))


def test_the_graph_is_simple_and_symmetric(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from gpu_lab import rmat

    V = 300
    indptr, indices = (x.numpy() for x in rmat(V, 4000, torch.Generator().manual_seed(1), torch.device("cpu")))
    dst = np.repeat(np.arange(V), np.diff(indptr))
    dense = np.zeros((V, V), int)
    np.add.at(dense, (dst, indices), 1)
    assert dense.max() == 1 and not dense.diagonal().any() and np.array_equal(dense, dense.T)
    assert all((np.diff(indices[a:b]) > 0).all() for a, b in zip(indptr, indptr[1:]))
    # Each pair that was drawn is there twice, but for loops and repetitions, and ids are skewed.
    assert 4000 < len(indices) <= 8000 and np.diff(indptr).max() > 3 * len(indices) / V
