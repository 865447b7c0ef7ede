"""Read the parameters of RAPIDS' functions from its wheels, without installing them, and write
`rapids_signatures.json`.

    pip download --no-deps -d wheels cugraph-cu13==26.10.0 pylibcugraph-cu13==26.10.0 cudf-cu13==26.10.2
    dask-cuda==26.10.0 \
        dask==2026.7.1 cupy-cuda13x==14.2.0 pylibraft-cu13==26.10.0
    python tests/contracts/rapids_signatures.py wheels > tests/contracts/rapids_signatures.json

Only names of parameters and their defaults are kept.
"""

import ast
import json
import re
import sys
import zipfile
from pathlib import Path

WHERE = {
    "cudf.DataFrame": ("cudf/core/dataframe.py", "DataFrame.__init__"),
    "cudf.Series.to_numpy": ("cudf/core/frame.py", "Frame.to_numpy"),
    "cudf.DataFrame.sort_values": ("cudf/core/indexed_frame.py", "IndexedFrame.sort_values"),
    "cudf.concat": ("cudf/core/reshape.py", "concat"),
    "cudf.read_parquet": ("cudf/io/parquet.py", "read_parquet"),
    "dask_cudf.DataFrame.sort_values": ("dask/dataframe/dask_expr/_collection.py", "DataFrame.sort_values"),
    "dask_cudf.DataFrame.to_delayed": ("dask/dataframe/dask_expr/_collection.py", "FrameBase.to_delayed"),
    "dask_cudf.from_delayed": ("dask/dataframe/dask_expr/io/_delayed.py", "from_delayed"),
    "cugraph.Graph": ("cugraph/structure/graph_classes.py", "Graph.__init__"),
    "cugraph.Graph.from_cudf_edgelist": ("cugraph/structure/graph_classes.py", "Graph.from_cudf_edgelist"),
    "cugraph.Graph.from_dask_cudf_edgelist": ("cugraph/structure/graph_classes.py", "Graph.from_dask_cudf_edgelist"),
    "cugraph.louvain": ("cugraph/community/louvain.py", "louvain"),
    "cugraph.leiden": ("cugraph/community/leiden.py", "leiden"),
    "cugraph.dask.louvain": ("cugraph/dask/community/louvain.py", "louvain"),
    "cugraph.dask.leiden": ("cugraph/dask/community/leiden.py", "leiden"),
    "cugraph.dask.comms.comms.initialize": ("cugraph/dask/comms/comms.py", "initialize"),
    "cugraph.dask.comms.comms.destroy": ("cugraph/dask/comms/comms.py", "destroy"),
    "dask_cuda.LocalCUDACluster": ("dask_cuda/local_cuda_cluster.py", "LocalCUDACluster.__init__"),
    "pylibcugraph.ResourceHandle": ("pylibcugraph/resource_handle.pyx", "ResourceHandle.__cinit__"),
    "pylibcugraph.GraphProperties": ("pylibcugraph/graph_properties.pyx", "GraphProperties.__cinit__"),
    "pylibcugraph.SGGraph": ("pylibcugraph/graphs.pyx", "SGGraph.__cinit__"),
    "pylibcugraph.MGGraph": ("pylibcugraph/graphs.pyx", "MGGraph.__cinit__"),
    "pylibcugraph.comms.cugraph_comms_create_unique_id": (
        "pylibcugraph/comms/cugraph_nccl_comms.py",
        "cugraph_comms_create_unique_id",
    ),
    "pylibcugraph.comms.cugraph_comms_get_raft_handle": (
        "pylibcugraph/comms/cugraph_nccl_comms.py",
        "cugraph_comms_get_raft_handle",
    ),
    "pylibcugraph.comms.cugraph_comms_init": ("pylibcugraph/comms/cugraph_nccl_comms.py", "cugraph_comms_init"),
    "pylibcugraph.comms.cugraph_comms_shutdown": ("pylibcugraph/comms/cugraph_nccl_comms.py", "cugraph_comms_shutdown"),
    "pylibraft.common.handle.Handle.getHandle": ("pylibraft/common/handle.pyx", "DeviceResources.getHandle"),
    "pylibcugraph.neighbor_sample": ("pylibcugraph/neighbor_sample.pyx", "neighbor_sample"),
    "cupy.asarray": ("cupy/_creation/from_data.py", "asarray"),
    "cupy.arange": ("cupy/_creation/ranges.py", "arange"),
    "cupy.bincount": ("cupy/_statistics/histogram.py", "bincount"),
    "cupy.cumsum": ("cupy/_math/sumprod.py", "cumsum"),
    "cupy.searchsorted": ("cupy/_sorting/search.py", "searchsorted"),
}
"""Name as callers write it -> file in a wheel, and the definition there. `dask_cudf` has some of these from Dask."""


def plain(parameters: str) -> str:
    """Parameters of a Python or Cython function without types: ``(a, b=None, *, c)``; ``self`` is left out."""
    kept = []
    # Commas inside the brackets of a type do not separate parameters.
    for piece in re.split(r",(?![^\[(]*[\])])", re.sub(r"#.*", "", parameters)):
        name, equals, default = piece.partition("=")
        words = name.split(":")[0].split()
        if words and words != ["self"]:
            kept.append(words[-1] + equals + default.strip())
    return ast.unparse(ast.parse(f"def f({', '.join(kept)}): pass").body[0]).split("\n")[0][5:-1]


def read(source: str, what: str) -> str:
    """Parameters of a function, or of a method as ``Class.method``."""
    owner, _, function = what.rpartition(".")
    if owner:
        source = source[source.index(f"class {owner}") :]
    indent = "    " if owner else ""
    begin = source.index(f"\n{indent}def {function}(") + len(f"\n{indent}def {function}(")
    depth, end = 1, begin
    while depth:
        depth += {"(": 1, ")": -1}.get(source[end], 0)
        end += 1
    return plain(source[begin : end - 1])


def main(folder: Path) -> None:
    wheels = {
        w.name.split("-")[0].replace("_", "-"): (w.name.split("-")[1], zipfile.ZipFile(w))
        for w in sorted(folder.glob("*.whl"))
    }
    homes = {name: wheel for wheel, (_, files) in wheels.items() for name in files.namelist()}
    signatures = {name: read(wheels[homes[file]][1].read(file).decode(), what) for name, (file, what) in WHERE.items()}
    used = {homes[file]: wheels[homes[file]][0] for file, _ in WHERE.values()}
    print(
        json.dumps(
            {"made_by": "tests/contracts/rapids_signatures.py", "wheels": used, "signatures": signatures}, indent=2
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
