"""`examples/serve.py`: the answers of an exported program over HTTP are the run's predictions."""

import importlib.util
import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import millrace as mr
from millrace.tests.contracts.command import command

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serve.py"


@pytest.fixture
def serve():
    spec = importlib.util.spec_from_file_location("serve", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def asking(server):
    """A function that asks a server."""
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(body):
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    try:
        yield ask
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("classes", [3, 2])
@pytest.mark.parametrize(
    "read",
    [
        {"normalize_features": "standard", "nan_features": "mean"},
        {"normalize_features": "standard", "nan_features": "median"},
        {"nan_features": "indicator"},
        {"normalize_features": "row", "nan_features": "zero"},
    ],
    ids=str,
)
def test_rows_of_a_table_are_read_as_the_runs_were(serve, tmp_path, read, classes):
    draw = np.random.default_rng(0)
    (folder := tmp_path / "data").mkdir()
    ends = np.unique(draw.integers(0, 30, (2, 70)), axis=1)
    table = [
        {
            "id": f"n{v}",
            "age": "" if v % 7 == 0 else 100 + 3 * v,
            "code": ["01", "1", "7", ""][v % 4],
            "pay": 0.5 * v,
            "new": v % 3 > 1,
        }
        for v in range(30)
    ]
    rows = [",".join(map(str, [*row.values(), "abc"[v % classes]])) for v, row in enumerate(table)]
    (folder / "nodes.csv").write_text("\n".join(["id,age,code,pay,new,label", *rows, ""]))
    (folder / "edges.csv").write_text("src,dst\n" + "".join(f"n{u},n{w}\n" for u, w in ends.T))
    read = {"feature_columns": "age,pay,new", "one_hot": "code", "direction": "directed", **read}
    more = {"task": "binary"} if classes == 2 else {}
    result = mr.run(folder, read=read, out=tmp_path / "run", epochs=2, hidden=8, layers=2, verbose=False, **more)
    code, out, _ = command("export", result.out, "--out", tmp_path / "model.pt2", "--json")
    assert code == 0
    (tmp_path / "model.json").write_text(out)
    with asking(serve.server(tmp_path / "model.pt2", 0, tmp_path / "model.json")) as ask:
        found = ask({"rows": table, "edge_index": ends.tolist(), "nodes": list(range(30))})
    wanted = mr.predict(result)
    assert found["classes"] == [*wanted.classes]
    assert found["names"] == ["abc"[c] for c in wanted.classes]
    assert found["probabilities"] == pytest.approx(wanted.probabilities.max(1), abs=1e-5)


def test_answers_are_the_predictions(serve, tmp_path):
    data = mr.open_dataset("sbm:nodes=90,classes=3,degree=6,features=5,train=0.3")
    job = {"epochs": 2, "hidden": 8, "layers": 2, "threads": 1, "fanout": [3, 3], "batch_size": 30, "verbose": False}
    result = mr.run(data, out=tmp_path / "run", **job)
    mr.export_program(result, tmp_path / "model.pt2")
    with asking(serve.server(tmp_path / "model.pt2", 0)) as ask:
        graph, nodes = data.graph, [4, 17, 33]
        ends = [graph.indices.tolist(), np.repeat(np.arange(graph.num_nodes), graph.in_degree).tolist()]
        found = ask({"x": data.features.gather(np.arange(90)).tolist(), "edge_index": ends, "nodes": nodes})
        wanted = mr.predict(result, nodes=nodes)
        assert found["classes"] == list(wanted.classes)
        assert found["probabilities"] == pytest.approx(wanted.probabilities.max(1), abs=1e-5)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            ask({"x": [[1.0]]})
