"""Makes an on-disk dataset of GraphBolt (dgl 2.1.0) of a folder of arrays; runs in DGL's environment.

    python ingest_graphbolt.py FOLDER

FOLDER holds ``edges.npy`` [2, E] and ``features.npy`` [V, F]: that environment reads no Parquet. `OnDiskDataset` makes
the sampling graph of the edges when it is first opened; features stay on disk. Duplicates stay too.
"""

import sys
from pathlib import Path

import numpy as np
from dgl import graphbolt as gb

METADATA = """
dataset_name: graph
graph:
  nodes:
    - num: {nodes}
  edges:
    - format: numpy
      path: edges.npy
feature_data:
  - domain: node
    name: feat
    format: numpy
    in_memory: false
    path: features.npy
tasks: []
"""


def main(folder: Path) -> None:
    """Describe the files, and open them as a dataset."""
    nodes = len(np.load(folder / "features.npy", mmap_mode="r"))
    (folder / "metadata.yaml").write_text(METADATA.format(nodes=nodes))
    print(gb.OnDiskDataset(str(folder)).load().graph)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
