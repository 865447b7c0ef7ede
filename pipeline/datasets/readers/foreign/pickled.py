"""Published pickles, read without running what is in them: only arrays, matrices and PyG's own classes are built.

Planetoid's ``ind.NAME.x``, ``.graph``, ... (Yang et al. 2016), and what PyG keeps in ``processed/`` or `torch.save`
writes of a `Data` or `HeteroData`.
"""

import codecs
import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from .....storage.dataset import SPLITS
from .....storage.errors import InputError, MissingExtraError, first_line, install
from ...cleaning.raw import Hint
from ...cleaning.splits import Which, one_split
from .npz_layouts import CSR, OwnArrays, matrix_of

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph")
VAL_NODES = 500
"""Nodes behind those that train, which validate."""


def _reconstruct(kind: Callable[[], object], base: Callable[[object], object], state: object) -> object:
    """An object without its state, for pickles of Python 2."""
    return kind() if base is object else base(state)


def _built() -> Mapping[tuple[str, str], object]:
    """The classes and functions that Planetoid's files name."""
    from numpy._core.multiarray import _reconstruct as of_array

    matrices = {(f"scipy.sparse.{module}", "csr_matrix"): sp.csr_matrix for module in ("csr", "_csr")}
    arrays = {(f"numpy.{module}.multiarray", "_reconstruct"): of_array for module in ("core", "_core")}
    return matrices | arrays | {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("collections", "defaultdict"): defaultdict,
        ("_codecs", "encode"): codecs.encode,
        ("copy_reg", "_reconstructor"): _reconstruct,
        **{(module, name): kind for module in ("__builtin__", "builtins") for name, kind in (
            ("list", list), ("object", object))},
    }  # fmt: skip


class _Unpickler(pickle.Unpickler):
    """Builds what `_built` has, and refuses everything else."""

    def find_class(self, module: str, name: str, /) -> object:
        found = _built().get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which might run code")
        return found


def read_planetoid(source: Path) -> OwnArrays:
    """The arrays of a folder of Planetoid's files, or of the graph whose ``.graph`` file is given, with its split.

    Nodes for tests are put in the places that ``test.index`` says; places between them without a row, as Citeseer has,
    get no features and no label. Raises InputError: a file is missing or damaged, names other classes than arrays and
    matrices, or there are several graphs."""
    folder = source if source.is_dir() else source.parent
    files = [f.name for f in folder.iterdir()] if source.is_dir() else [source.name]
    name, *others = sorted(n.split(".")[1] for n in files if n.startswith("ind.") and n.endswith(".graph"))
    if others:
        raise InputError(f"{folder} holds the graphs {', '.join((name, *others))}; give one, {folder}/ind.{name}.graph")
    held = {part: _unpickled(folder / f"ind.{name}.{part}") for part in PARTS}
    try:
        test = np.array((folder / f"ind.{name}.test.index").read_text().split(), np.int64)
        x, tx, ally, ty = (_matrix(held[part]) for part in ("allx", "tx", "ally", "ty"))
        number = int(test.max()) + 1
        if x.shape[0] != test.min() or len(np.unique(test)) != tx.shape[0] or ty.shape[0] != tx.shape[0]:
            raise ValueError("the rows of tx and ty are not those of test.index, behind those of allx")
        order = np.zeros(number, np.int64)
        order[: x.shape[0]], order[test] = np.arange(x.shape[0]), x.shape[0] + np.arange(len(test))
        there = np.zeros(number, bool)
        there[: x.shape[0]] = there[test] = True
        rows = sp.vstack([x, tx]).tocsr()[order]
        classes = sp.vstack([ally, ty]).toarray()[order]
        y = np.where(there & classes.any(1), classes.argmax(1), -1)
        if not isinstance(graph := held["graph"], dict):
            raise TypeError("the graph is no dictionary")
        ends = np.array([(int(v), int(u)) for v, others in graph.items() for u in others], np.int64).reshape(-1, 2)
        train = _matrix(held["y"]).shape[0]
        x = sp.diags(there.astype(np.float32)) @ rows
    except (OSError, ValueError, TypeError, AttributeError, IndexError) as e:
        raise InputError(f"{folder}: ind.{name}.* cannot be read ({first_line(e)[:200]}); copy them again") from e
    sets = np.arange(train), np.arange(train, train + VAL_NODES), test
    ids = {f"{part}_idx": own for part, own in zip(SPLITS, sets)}
    notes = (f"{int((~there).sum())} nodes have no row in tx, and no label.",) if not there.all() else ()
    return OwnArrays({"edge_index": ends.T, "x": x, "y": y, **ids}, Hint("undirected", "Planetoid's graphs are"), notes)


def _unpickled(path: Path) -> object:
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except Exception as e:  # damage raises errors of many kinds
        raise InputError(f"{path} cannot be read ({first_line(e)[:200]}); copy it again") from e


def _matrix(held: object) -> sp.csr_matrix:
    """A matrix of SciPy, checked; its pickle may hold anything."""
    if sp.issparse(held):
        state = {key.removeprefix("_"): value for key, value in vars(held).items()}
        return matrix_of("csr", {key: np.asarray(state[key]) for key in CSR}, "the arrays")
    if not isinstance(held, np.ndarray) or held.ndim != 2 or held.dtype.kind not in "biuf":
        raise ValueError("a part is no matrix of numbers")
    return sp.csr_matrix(held)


def torch_file(source: Path) -> Path | None:
    """The file of a folder of PyG, or one that `torch.save` wrote; None if it is neither."""
    if source.is_file():
        return source if source.name.lower().endswith((".pt", ".pth")) else None
    found = sorted((source / "processed").glob("*.pt")) or sorted(source.glob("*.pt"))
    found = [path for path in found if not path.name.startswith("pre_")]
    return next((path for path in found if path.name.startswith(("data", "geometric_data"))), next(iter(found), None))


def read_torch(path: Path, split: Which) -> tuple[object, tuple[str, ...]]:
    """The `Data` or `HeteroData` of a file of `torch.save`, which is loaded with ``weights_only``, and notes. Of
    several splits it has one; see `one_split`. Raises InputError: it holds something else, or several graphs;
    MissingExtraError: PyTorch Geometric is not installed."""
    import torch

    try:
        from torch_geometric.data import Data, HeteroData
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage
    except ImportError:
        raise MissingExtraError(f"{path} is read by PyG, which is not installed: {install('pyg')}") from None
    kinds: list[Callable[..., object] | tuple[Callable[..., object], str]] = [Data, HeteroData, DataEdgeAttr]
    kinds += [DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage]
    try:
        with torch.serialization.safe_globals(kinds):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:  # damage raises errors of many kinds
        named = re.search(r"GLOBAL (\S+)", str(e))
        why = first_line(e)[:120] if named is None else f"it names {named[1]}"
        raise InputError(
            f"{path} cannot be read without running code in it ({why}): where you trust it, use "
            f"mr.write_dataset('store', mr.from_pyg(torch.load('{path}', weights_only=False)))"
        ) from e
    slices = None
    if isinstance(held, tuple) and held:
        held, slices = held[0], held[1] if len(held) > 1 else None
    if isinstance(held, list) and len(held) == 1:
        (held,) = held
    several = max((len(v) - 1 for v in (slices or {}).values() if not isinstance(v, int | float | None)), default=1)
    if several > 1:
        raise InputError(f"{path} holds {several} graphs; expected one: save that alone")
    if isinstance(held, dict):
        held = (Data if all(isinstance(v, torch.Tensor | int) for v in held.values()) else HeteroData).from_dict(held)
    if isinstance(held, HeteroData):
        return held, ()
    if not isinstance(held, Data):
        raise InputError(f"{path} holds a {type(held).__name__}; expected a Data or HeteroData of PyG")
    stored = vars(held).get("_store")  # versions before 2.0 kept attributes in the object itself
    given = vars(held) if stored is None else stored
    found: dict[str, torch.Tensor | int] = {key: v for key, v in given.items() if isinstance(v, torch.Tensor | int)}
    keys = {part: f"{part}_mask" for part in SPLITS if f"{part}_mask" in found}
    num_nodes = Data.from_dict(found).num_nodes or 0
    sets, notes = one_split(
        {part: torch.as_tensor(found.pop(key)).numpy() for part, key in keys.items()}, num_nodes, split, path
    )
    return Data.from_dict(found | {keys[part]: torch.as_tensor(ids) for part, ids in sets.items()}), notes
