"""Serve a trained model over HTTP from a process that needs torch alone.

    millrace export runs/a --out model.pt2 --json > model.json
    python examples/serve.py model.pt2 --read model.json --port 8000
    curl -s localhost:8000 -d '{"rows": [{"age": 31, "city": "Oslo"}, {"age": 54, "city": ""}],
        "edge_index": [[0], [1]], "nodes": [1]}'

A request has the rows of the nodes around those that are asked for, and their edges, sources first: all in-edges of as
many hops as the model has layers. `rows` are those of a table, by column: the server scales and fills them, and makes
words numbers, as the run did. Without --read, or where features have no columns, give `x`, rows as the run read them.

What to expect: the class (its name too, if classes have names) and the probability of each node, or its outputs if the
run predicts several classes or values, some milliseconds after the request. Put a server of your own in the place of
Python's for TLS, many requests at once, or batches.
"""

import argparse
import json
import math
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch

MISSING, FLAGS = ("", "NA", "null"), {"true": "1", "True": "1", "TRUE": "1", "false": "0", "False": "0", "FALSE": "0"}
"""Words in a column of numbers, or of flags."""


def number_of(value: object, column: dict) -> float:
    """The number of a cell, NaN if it is missing; of a column for one value of a text 1 or 0."""
    text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value).strip()
    if "value" in column:
        return float(text.removesuffix(".0") == column["value"])
    return float("nan" if text in MISSING else FLAGS.get(text, text))


def rows_of(table: list[dict], read: dict) -> list[list[float]]:
    """Rows of a table as the run read them."""
    columns, ways = read["treatment"]["nodes"], read["normalize_features"]
    filled_by, found = f"{read['nan_features']} after {ways}", []
    for row in table:
        numbers = [number_of(row.get(c["column"]), c) for c in columns]
        missing = [not math.isfinite(x) for x in numbers]
        if any(missing) and read["nan_features"] == "error":
            raise ValueError(f"{columns[missing.index(True)]['column']} is missing")
        known = [0.0 if gap else x for x, gap in zip(numbers, missing)]
        total = sum(map(abs, known)) or 1.0 if ways == "row" else 1.0
        known = [float(x != 0) if ways == "binary" else x / total for x in known]
        scaled = [(x - c.get("mean", 0.0)) / c.get("deviation", 1.0) for x, c in zip(known, columns)]
        made = [c.get(filled_by, 0.0) if gap else x for x, gap, c in zip(scaled, missing, columns)]
        found.append(made + [float(gap) for gap, c in zip(missing, columns) if c.get("indicated")])
    return found


def answer(program: torch.nn.Module, asked: dict, exported: dict) -> dict:
    """Classes and probabilities of the nodes that are asked for."""
    given = rows_of(asked["rows"], exported["rows"]) if "rows" in asked else asked["x"]
    x, ends = torch.tensor(given, dtype=torch.float32), torch.tensor(asked["edge_index"], dtype=torch.int64)
    with torch.no_grad():
        logits = program(x, ends.reshape(2, -1))[torch.tensor(asked["nodes"], dtype=torch.int64)]
    if (task := exported.get("task", "multiclass")) not in ("multiclass", "binary"):
        return {"outputs": logits.tolist()}
    best = (logits if task == "multiclass" else torch.cat([torch.zeros_like(logits), logits], 1)).softmax(1).max(1)
    found = {"classes": best.indices.tolist(), "probabilities": best.values.tolist()}
    names = exported.get("class_names")
    return found if names is None else {**found, "names": [names[c] for c in found["classes"]]}


def server(path: str, port: int, read: str | None = None) -> HTTPServer:
    """A server of the program in a file, whose record is in the file `read`; port 0 takes any free one."""
    program, exported = torch.export.load(path).module(), {}
    if read is not None:
        with open(read) as file:
            exported = json.load(file)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                status, found = 200, answer(program, json.loads(body), exported)
            except (ValueError, KeyError, TypeError, RuntimeError, IndexError, AssertionError) as e:
                status, found = 400, {"error": f"{type(e).__name__}: {e}"}
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

    return HTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--read", help="what `millrace export --json` has printed")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    server(arguments.program, arguments.port, arguments.read).serve_forever()
