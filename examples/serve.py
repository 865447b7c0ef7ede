"""Serve a trained model over HTTP from a process that needs torch alone.

    millrace export runs/a --out model.pt2
    python examples/serve.py model.pt2 --port 8000
    curl -s localhost:8000 -d '{"x": [[0.1, 0.2], [0.3, 0.4]], "edge_index": [[0], [1]], "nodes": [1]}'

A request has the rows of the nodes around those that are asked for, and their edges, sources first: all in-edges of as
many hops as the model has layers. The rows are those that the run read: columns that it scaled, filled or made of words
must be so here too, by the numbers that `millrace export --json` prints, key rows (also in runs/a/data_card.json).

What to expect: the class and the probability of each node, some milliseconds after the request. Put a server of your
own in the place of Python's for TLS, many requests at once, or batches.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch


def answer(program: torch.nn.Module, asked: dict) -> dict:
    """Classes and probabilities of the nodes that are asked for."""
    x, ends = torch.tensor(asked["x"], dtype=torch.float32), torch.tensor(asked["edge_index"], dtype=torch.int64)
    with torch.no_grad():
        logits = program(x, ends.reshape(2, -1))[torch.tensor(asked["nodes"], dtype=torch.int64)]
    best = logits.softmax(1).max(1)
    return {"classes": best.indices.tolist(), "probabilities": best.values.tolist()}


def server(path: str, port: int) -> HTTPServer:
    """A server of the program in a file; port 0 takes any free one."""
    program = torch.export.load(path).module()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                status, found = 200, answer(program, json.loads(body))
            except (ValueError, KeyError, TypeError, RuntimeError, IndexError) as e:
                status, found = 400, {"error": f"{type(e).__name__}: {e}"}
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

    return HTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    server(arguments.program, arguments.port).serve_forever()
