"""The shape of the house: layers, packages, extras, and an import that does nothing."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from millrace.tests.contracts.fresh_python import run_python

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("storage", "stages", "pipeline")
"""Each may import itself and those before it."""
GPU = {"dask_cuda", "dask_cudf", "cudf", "cugraph", "pylibcugraph", "raft_dask", "cupy"}
LAZY = GPU | {"torch_geometric", "ogb", "networkx", "obstore", "dgl", "matplotlib", "tensorboard", "mlflow", "wandb"}
MODULES = sorted(p.relative_to(ROOT) for layer in LAYERS for p in (ROOT / layer).rglob("*.py"))
BACKENDS = {"cpu", "cuda", "matrix", "rapids"}
"""Folders of `stages/kernels` that are chosen by name, or by device, through `stages.kernels`."""
MOST_LINES, MOST_FILES, MOST_FUNCTION_LINES = 450, 17, 80
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


parsed = cache(ast.parse)
"""The tree of a source: several tests look at each module's."""


@cache
def nodes(source: str) -> list[ast.AST]:
    """All nodes of a source's tree."""
    return list(ast.walk(parsed(source)))


def is_late(node: ast.AST) -> bool:
    """True if the code inside does not run when the module is imported."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def imports(module: Path, source: str) -> list[tuple[str, int, bool]]:
    """Every import as (absolute name, relative level, at module level). `module` is relative to the package's root."""
    lazily: set[int] = set()
    for f in nodes(source):
        # Outer functions come first, with those inside them.
        if is_late(f) and id(f) not in lazily:
            lazily.update(map(id, ast.walk(f)))
    package = ("millrace", *module.parent.parts)
    found = []
    for node in nodes(source):
        top = id(node) not in lazily
        if isinstance(node, ast.Import):
            found += [(alias.name, 0, top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append((node.module or "", 0, top))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found += [(".".join((*base, name)), node.level, top) for name in names]
    return found


def faults(module: Path, source: str) -> list[str]:
    """Sentences about the imports of one module that break the rules."""
    allowed = LAYERS[: LAYERS.index(module.parts[0]) + 1]
    wrong = []
    for name, level, top in imports(module, source):
        first, _, rest = name.partition(".")
        layer = rest.partition(".")[0]
        if level and (first != "millrace" or layer not in allowed):
            wrong.append(f"{module} imports {name}: {module.parts[0]} may import {allowed}")
        if not level and (first == "millrace" or first in LAYERS):
            wrong.append(f"{module} imports {name} absolutely: imports inside the package are relative")
        if top and first in LAZY:
            wrong.append(f"{module} imports {first} at module level: import it inside the function that needs it")
    return wrong


def test_imports_go_one_way_and_are_relative():
    assert len(MODULES) > 20
    assert not [fault for module in MODULES for fault in faults(module, (ROOT / module).read_text())]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("storage/graph.py", "from ..stages.random import mix"),
        ("storage/graph.py", "from ..stages import random"),
        ("storage/graph.py", "from .. import stages"),
        ("stages/partition/hash.py", "from ...pipeline.config import Config"),
        ("stages/partition/hash.py", "def f():\n    from ...pipeline import config"),
        ("stages/random.py", "from ..tests import contracts"),
        ("pipeline/training/loop.py", "from millrace.storage.graph import Graph"),
        ("pipeline/training/loop.py", "import storage.graph"),
        ("pipeline/training/loop.py", "import torch_geometric.nn"),
        ("pipeline/training/loop.py", "from ogb.nodeproppred import NodePropPredDataset"),
        ("pipeline/interop/export.py", "import dgl"),
        ("pipeline/training/loop.py", "class A:\n    import cudf"),
    ],
)
def test_the_check_sees_each_kind_of_fault(module, source):
    assert faults(Path(module), source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("storage/graph.py", "import numpy as np\nfrom .errors import InputError"),
        ("stages/partition/hash.py", "from ..random import mix\nfrom ...storage.graph import Graph"),
        ("pipeline/training/loop.py", "from ..stages import train\nfrom ..storage import graph"),
        ("pipeline/training/loop.py", "def f():\n    import torch_geometric"),
        ("pipeline/training/loop.py", "if TYPE_CHECKING:\n    import networkx"),
    ],
)
def test_the_check_lets_the_rest_pass(module, source):
    assert faults(Path(module), source) == []


def test_tests_and_root_import_absolutely():
    outside = [ROOT / "__init__.py", *(p for p in (ROOT / "tests").rglob("*.py"))]
    # Only files with a line that looks like a relative import are parsed: all of them take long.
    line = re.compile(r"^\s*from\s*\.", re.MULTILINE)
    assert line.search("def f():\n    from . import g") and line.search("import os\nfrom .g import h")
    sources = [(p, text) for p in outside if line.search(text := p.read_text())]
    relative = [p for p, text in sources for _, level, _ in imports(p.relative_to(ROOT), text) if level]
    assert not relative


def test_folders_equal_the_packages_of_pyproject():
    folders = {"millrace"} | {".".join(("millrace", *m.parent.parts)) for m in MODULES}
    assert sorted(folders) == sorted(PYPROJECT["tool"]["setuptools"]["packages"])
    assert not [m for m in MODULES if not (ROOT / m.parent / "__init__.py").exists()]


def folder_of(module: str) -> str:
    """The folder that a module is in; one that lies directly in a layer counts as a folder of its own."""
    return module if module.count("/") == 1 else module.rsplit("/", 1)[0]


def arrows(module: Path, source: str, modules: set[str]) -> set[tuple[str, str]]:
    """(importing, imported) modules inside the package, imports inside functions included."""
    package, found = module.parent.parts, set()
    for node in nodes(source):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = (*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else ()))
        for alias in node.names:
            paths = ("/".join((*base, alias.name)) + ".py", "/".join(base) + ".py", "/".join((*base, "__init__.py")))
            found |= {(module.as_posix(), path) for path in [p for p in paths if p in modules][:1]}
    return found


def cycles(edges: set[tuple[str, str]]) -> list[str]:
    """Cycles of a graph, as text: removes sources and sinks until only nodes between cycles are left."""
    edges = {(a, b) for a, b in edges if a != b}
    while True:
        inner = {a for a, _ in edges} & {b for _, b in edges}
        left = {(a, b) for a, b in edges if a in inner and b in inner}
        if left == edges:
            return sorted(f"{a} -> {b}" for a, b in left)
        edges = left


@pytest.fixture(scope="module")
def edges() -> set[tuple[str, str]]:
    names = {m.as_posix() for m in MODULES}
    return {arrow for module in MODULES for arrow in arrows(module, (ROOT / module).read_text(), names)}


def test_no_cycles_between_files(edges):
    assert len(edges) > 500
    assert not cycles(edges)


def test_no_cycles_between_folders(edges):
    assert not cycles({(folder_of(a), folder_of(b)) for a, b in edges})


def test_cycles_are_found():
    known = {"stages/a.py", "stages/b/c.py", "stages/b/d.py", "stages/e/f.py"}
    there = arrows(Path("stages/b/c.py"), "from ..e.f import x\ndef g():\n    from . import d", known)
    assert there == {("stages/b/c.py", "stages/e/f.py"), ("stages/b/c.py", "stages/b/d.py")}
    back = arrows(Path("stages/e/f.py"), "from ..b.d import y", known)
    assert not cycles(there | back)
    assert cycles({(folder_of(a), folder_of(b)) for a, b in there | back})


def test_folders_are_small_and_say_what_belongs_there():
    folders = sorted({m.parent for m in MODULES})
    sizes = {f.as_posix(): sum(m.parent == f for m in MODULES) for f in folders}
    assert not {f: n for f, n in sizes.items() if n > MOST_FILES}
    docs = {f: ast.get_docstring(parsed((ROOT / f / "__init__.py").read_text())) or "" for f in folders}
    assert not [f for f, doc in docs.items() if not doc.split("\n\n")[0].endswith(".")]


def test_files_are_short():
    lines = {m.as_posix(): (ROOT / m).read_text().count("\n") for m in MODULES}
    assert not {m: n for m, n in lines.items() if n > MOST_LINES}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_are_short():
    functions = [
        (f"{module.as_posix()}:{node.lineno} {node.name}", code_lines(node))
        for module in MODULES
        for node in nodes((ROOT / module).read_text())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 1000
    assert not {name: lines for name, lines in functions if lines > MOST_FUNCTION_LINES}


def backends_reached(module: Path, source: str) -> list[str]:
    """Imports of kernels' backends from outside `stages/kernels`, a sentence each."""
    if module.parts[:2] == ("stages", "kernels"):
        return []
    wrong = []
    for node in nodes(source):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        path = (node.module or "").split(".")
        inside = {name for alias in node.names for name in (*path, alias.name)} if "kernels" in path else set()
        if inside & BACKENDS:
            wrong.append(f"{module.as_posix()}:{node.lineno} imports a backend: choose it through stages.kernels")
    return wrong


def test_backends_are_chosen_in_one_place():
    assert not [fault for module in MODULES for fault in backends_reached(module, (ROOT / module).read_text())]


@pytest.mark.parametrize(
    "source",
    [
        "from ..kernels.sampling.cuda import backend",
        "def f():\n    from ..kernels.aggregation.cpu.shards import add_rows",
        "from ..kernels.sampling import matrix",
    ],
)
def test_the_check_sees_each_way_to_a_backend(source):
    assert backends_reached(Path("stages/sample/neighbor.py"), source)


def test_gpu_extra_pins_minor_versions():
    """Below 26.8 these lines are stubs that need another index; an open range lets a resolver walk back to them."""
    lines = PYPROJECT["project"]["optional-dependencies"]["gpu"]
    rapids = [line for line in lines if not line.startswith("cupy")]
    assert len(rapids) >= 6
    assert not [line for line in rapids if not re.fullmatch(r"[a-z0-9-]+(\[cu\d+\])?==\d+\.\d+\.\*", line)]


def run(code: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )


NOTHING = """
import logging, os, sys, threading
before = dict(os.environ), list(logging.root.handlers), logging.root.level, threading.active_count()
for name in {names}:
    __import__(name)
after = dict(os.environ), list(logging.root.handlers), logging.root.level, threading.active_count()
assert before == after, [(a, b) for a, b in zip(before, after) if a != b]
assert not logging.getLogger("millrace").handlers
lazy = sorted({lazy} & set(sys.modules))
assert not lazy, lazy
if "torch" in sys.modules:
    import torch
    assert not torch.distributed.is_initialized()
    assert not torch.cuda.is_initialized()
    assert torch.get_default_dtype() == torch.float32
print("nothing")
"""


def test_importing_millrace_does_nothing(tmp_path):
    done = run(NOTHING.format(names=["millrace"], lazy=LAZY), cwd=tmp_path)
    assert done.stdout == "nothing\n", done.stderr


def test_importing_any_module_does_nothing():
    names = [
        ".".join(("millrace", *m.with_suffix("").parts)) for m in MODULES if m.stem not in ("__init__", "__main__")
    ]
    # torch and Dask come first: what *their* import does to a process is not ours to answer for. A process that has
    # imported them is forked, and forgets PyG, which ranks of tests need.
    forget = "for name in [n for n in sys.modules if n.startswith('torch_geometric')]: del sys.modules[name]\n"
    code = "import sys, torch, distributed, sklearn\n" + forget + NOTHING.format(names=names, lazy=LAZY - {"networkx"})
    ended, out, err = run_python("-c", code)
    assert (ended, out) == (0, "nothing\n"), err


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_cannot_be_imported_as_if_it_were_a_package_of_its_own(layer):
    done = run(f"import {layer}", cwd=ROOT)
    assert done.returncode != 0
    assert f"import millrace.{layer}" in done.stderr


SYSTEM_NAMES = {"bulk", "grappa", "retexo", "sar"}
SYSTEM_REGISTRY = Path("pipeline/config/systems.py")
OTHER_MEANINGS = {(Path("pipeline/dashboard/page.py"), "bulk")}
"""A bulk of minibatches, counted for people."""


def test_no_system_is_named_outside_its_module_and_the_registry():
    named = set()
    for module in MODULES:
        if module.parts[0] != "pipeline" or module.parts[1] == "systems" or module == SYSTEM_REGISTRY:
            continue
        for node in nodes((ROOT / module).read_text()):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in SYSTEM_NAMES:
                named.add((module, node.value))
    assert named == OTHER_MEANINGS


def test_a_method_without_a_docstring_has_that_of_another_class():
    """An override needs none of its own: its protocol or base says what it does, or that of torch or Python."""
    others = {"backward", "tell"}
    methods = [
        (f"{m}:{c.name}.{f.name}", f.name, ast.get_docstring(f) is not None)
        for m in MODULES
        for c in ast.walk(parsed((ROOT / m).read_text()))
        if isinstance(c, ast.ClassDef) and not c.name.startswith("_")
        for f in c.body
        if isinstance(f, ast.FunctionDef) and not f.name.startswith("_")
    ]
    documented = {name for _, name, has in methods if has}
    # A field's docstring stands below it: a view has as a property what the record that it stands for has as a field.
    documented |= {
        field.target.id
        for m in MODULES
        for c in ast.walk(parsed((ROOT / m).read_text()))
        if isinstance(c, ast.ClassDef)
        for field, below in zip(c.body, c.body[1:])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr)
    }
    assert not [place for place, name, has in methods if not has and name not in documented | others]
