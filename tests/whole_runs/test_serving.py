"""`examples/serve.py`: the answers of an exported program over HTTP are the run's predictions."""

import importlib.util
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import millrace as mr

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serve.py"


@pytest.fixture
def serve():
    spec = importlib.util.spec_from_file_location("serve", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_answers_are_the_predictions(serve, tmp_path):
    data = mr.open_dataset("sbm:nodes=90,classes=3,degree=6,features=5,train=0.3")
    job = {"epochs": 2, "hidden": 8, "layers": 2, "threads": 1, "fanout": [3, 3], "batch_size": 30, "verbose": False}
    result = mr.run(data, out=tmp_path / "run", **job)
    mr.export_program(result, tmp_path / "model.pt2")
    server = serve.server(tmp_path / "model.pt2", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(body):
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    try:
        graph, nodes = data.graph, [4, 17, 33]
        ends = [graph.indices.tolist(), np.repeat(np.arange(graph.num_nodes), graph.in_degree).tolist()]
        found = ask({"x": data.features.gather(np.arange(90)).tolist(), "edge_index": ends, "nodes": nodes})
        wanted = mr.predict(result, nodes=nodes)
        assert found["classes"] == list(wanted.classes)
        assert found["probabilities"] == pytest.approx(wanted.probabilities.max(1), abs=1e-5)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            ask({"x": [[1.0]]})
    finally:
        server.shutdown()
        server.server_close()
