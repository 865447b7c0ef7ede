"""Ids of both signs meet exactly, in memory and in pieces."""

import numpy as np
import pyarrow as pa

import millrace as mr
from millrace.tests.contracts.ingest import cut_small, parquet, same


def test_unsigned_and_signed_ids_are_one_kind(tmp_path, monkeypatch):
    cut_small(monkeypatch)
    ids = (1 << 61) + 3 * np.random.default_rng(0).permutation(50)
    ends = ids[np.stack([np.arange(50), (np.arange(50) * 7 + 3) % 50])]
    for n, (of_nodes, of_edges) in enumerate([(pa.uint64(), pa.int64()), (pa.int64(), pa.uint64())]):
        folder = tmp_path / f"g{n}"
        parquet(folder, "nodes", pa.table({"id": pa.array(ids, of_nodes), "label": ids % 2, "feature_0": ids % 5}))
        parquet(folder, "edges", pa.table({"src": pa.array(ends[0], of_edges), "dst": pa.array(ends[1], pa.int64())}))
        data = same(folder, tmp_path, mr.ReadOptions(direction="directed", missing_ids="compact"))
        names = [int(name) for name in data.node_names]
        assert names == sorted(ids.tolist())
        dst = np.repeat(np.arange(50), data.graph.in_degree)
        assert {(names[u], names[v]) for u, v in zip(data.graph.indices, dst)} == set(map(tuple, ends.T.tolist()))
