"""Valid files and folders of other libraries, to be damaged."""

import io
import json
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import scipy.io
import scipy.sparse as sp

V = 30


def _saved(write) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def sources(work: Path) -> dict[str, dict[str, bytes]]:
    """Files of each format by their names; one file is a source by itself, several are a folder. `work` is a folder for
    libraries that write to paths only."""
    work.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    a = sp.random(V, V, 0.15, "csr", random_state=rng)
    pairs = np.stack(a.nonzero(), axis=1).tolist()
    graph = nx.DiGraph([(u, v, {"weight": 1.5}) for u, v in pairs])
    for node in graph:
        graph.nodes[node].update(age=node / 2, kind="ab"[node % 2])
    nodes = pa.table({"id": list(range(V)), "label": [i % 3 for i in range(V)], "feature_0": rng.random(V)})
    edges = pa.table({"src": [u for u, _ in pairs], "dst": [v for _, v in pairs]})

    def text(rows, sign="\t", begin=""):
        return (begin + "".join(sign.join(map(str, row)) + "\n" for row in rows)).encode()

    def lines(table):
        return "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()

    y = [i % 3 for i in range(V)]
    csr = {f"adj_{key}": getattr(a, key) for key in ("indptr", "indices", "data", "shape")}
    beside = {"nodes.csv": text(zip(range(V), y), ",", "id,label\n")}
    both = {".feather": pyarrow.feather.write_feather, ".orc": pyarrow.orc.write_table}
    tables = {"nodes": nodes, "edges": edges}
    found = {
        "edge list": {"g.txt": text(pairs, "\t", "# Directed graph\n# FromNodeId\tToNodeId\n")},
        "weights": {"g.edges": text([(*p, 2) for p in pairs], " ")},
        "konect": {"out.g": text([(*p, 2, 10**9) for p in pairs], " ", "% bip weighted\n")},
        "bare csv": {"edges.csv": text(pairs, ","), **beside},
        "neo4j": {
            "n.csv": text([(i, i / 2, "AB"[i % 2]) for i in range(V)], ",", ":ID,age:double,:LABEL\n"),
            "e.csv": text([(*p, "ab"[p[0] % 2]) for p in pairs], ",", ":START_ID,:END_ID,:TYPE\n"),
        },
        "citations": {"g.content": text(zip(range(V), y, y, y)), "g.cites": text(pairs)},
        "dgl": {
            "meta.yaml": b"edge_data: [{file_name: e.csv}]\nnode_data: [{file_name: n.csv}]\n",
            "e.csv": text(pairs, ",", "src_id,dst_id\n"),
            "n.csv": text([(i, y[i], '"1,2"') for i in range(V)], ",", "node_id,label,feat\n"),
        },
        "openke": {
            "entity2id.txt": text([(V,), *((f"e{i}", i) for i in range(V))]),
            "relation2id.txt": text([(1,), ("r", 0)]),
            "train2id.txt": text([(len(pairs),), *((*p, 0) for p in pairs)], " "),
            "valid2id.txt": text([(1,), (0, 1, 0)], " "),
        },
        "saint": {
            "adj_full.npz": _saved(lambda out: sp.save_npz(out, a)),
            "role.json": json.dumps(
                {"tr": list(range(20)), "va": list(range(20, 25)), "te": list(range(25, V))}
            ).encode(),
            "class_map.json": json.dumps({str(i): y[i] for i in range(V)}).encode(),
        },
        "benchmark": {"g.npz": _saved(lambda out: np.savez(out, **csr, labels=np.array(y)))},
        "save_npz": {"g.npz": _saved(lambda out: sp.save_npz(out, a))},
        "mtx": {"g.mtx": _saved(lambda out: scipy.io.mmwrite(out, a))},
        "mat": {"g.mat": _saved(lambda out: scipy.io.savemat(out, {"A": a, "y": np.array(y)}))},
        "json": {"g.json": json.dumps(nx.node_link_data(graph, edges="links")).encode()},
        "lines": {f"{stem}.jsonl": lines(table) for stem, table in tables.items()},
    }
    for suffix, write in both.items():
        for stem, table in tables.items():
            write(table, work / f"{stem}{suffix}")
        found[suffix] = {f"{stem}{suffix}": (work / f"{stem}{suffix}").read_bytes() for stem in tables}
    for suffix in ("gml", "graphml", "gexf"):
        getattr(nx, f"write_{suffix}")(graph, work / f"g.{suffix}")
        found[suffix] = {f"g.{suffix}": (work / f"g.{suffix}").read_bytes()}
    return found
