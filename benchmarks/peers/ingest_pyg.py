"""Makes a PyTorch Geometric `Data` of a folder of Parquet, edges merged and sorted by destination, and saves it.

    python ingest_pyg.py GRAPH OUT

PyG has no reader of tables: this is what its users write, with the graph in memory.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce


def main(source: Path, out: Path) -> None:
    """Read, clean and save the graph."""
    edges = [pq.read_table(f, columns=["src", "dst"]) for f in sorted(source.glob("edges*.parquet"))]
    ends = np.stack([np.concatenate([t[name].to_numpy() for t in edges]) for name in ("src", "dst")])
    del edges
    nodes = [pq.read_table(f) for f in sorted(source.glob("nodes*.parquet"))]
    labels = np.concatenate([t["label"].to_numpy() for t in nodes]).astype(np.int64)
    lists = [t["features"].combine_chunks().flatten().to_numpy().reshape(len(t), -1) for t in nodes]
    x = torch.from_numpy(np.concatenate(lists).astype(np.float32))
    del nodes, lists
    edge_index = coalesce(torch.from_numpy(ends.astype(np.int64)), num_nodes=len(x), sort_by_row=False)
    torch.save(Data(x=x, y=torch.from_numpy(labels), edge_index=edge_index), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
