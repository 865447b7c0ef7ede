"""The stand-ins for RAPIDS take what the real functions take, as read from the wheels of 26.10."""

import ast
import inspect
import json
from pathlib import Path

import pytest

import millrace
from millrace.tests.contracts import dask_cuda
from millrace.tests.contracts.rapids import FAKES
from millrace.tests.contracts.rapids_signatures import WHERE, plain, read

MODULES = {"cudf", "cugraph", "cupy", "dask_cuda", "dask_cudf", "pylibcugraph", "pylibraft"}
OF_DASK = {"dask_cudf.DataFrame.sort_values", "dask_cudf.DataFrame.to_delayed"}
"""Those that are Dask's own in tests, too."""
READ = json.loads(Path(__file__).with_name("rapids_signatures.json").read_text())


def taken(fake) -> str:
    """The parameters of a stand-in, in the words of the file."""
    parameters = list(inspect.signature(fake).parameters.values())
    if parameters and parameters[0].name == "self":
        del parameters[0]
    bare = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    return plain(str(bare)[1:-1])


def test_every_stand_in_was_read_from_a_wheel():
    assert set(FAKES) | OF_DASK == set(READ["signatures"]) == set(WHERE)
    assert READ["wheels"]["cugraph-cu13"] == READ["wheels"]["pylibcugraph-cu13"] == "26.10.0"


@pytest.mark.parametrize("name", FAKES)
def test_a_stand_in_takes_what_the_real_one_takes(name):
    assert taken(FAKES[name]) == READ["signatures"][name]


@pytest.mark.parametrize("name", sorted(OF_DASK))
def test_dasks_own_dataframes_take_what_those_of_dask_cudf_take(name):
    import dask.dataframe

    assert taken(getattr(dask.dataframe.DataFrame, name.rpartition(".")[2])) == READ["signatures"][name]


def calls_in(path: Path):
    """(line, name as in the file of signatures, positional arguments, keywords) of each call of a module's function."""
    text, known = path.read_text(), {}
    if not any(f"import {module}" in text for module in MODULES):
        return
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            if f"{home}{alias.name}".split(".")[0] in MODULES:
                known[alias.asname or alias.name] = f"{home}{alias.name}"
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        name = ast.unparse(node.func)
        first, dot, rest = name.partition(".")
        if first in known and "(" not in rest:
            spread = any(isinstance(a, ast.Starred) for a in node.args)
            keywords = None if spread or any(k.arg is None for k in node.keywords) else [k.arg for k in node.keywords]
            yield node.lineno, known[first] + dot + rest, len(node.args), keywords


def test_every_call_of_a_module_is_of_a_known_function_with_arguments_that_it_takes():
    root, found = Path(millrace.__path__[0]), []
    for path in sorted(p for folder in ("pipeline", "stages") for p in (root / folder).rglob("*.py")):
        for line, name, count, keywords in calls_in(path):
            found.append(name)
            where = f"{path.name}:{line}: {name}"
            assert name in READ["signatures"], f"{where} was not read from a wheel"
            space = {}
            exec(f"def real{READ['signatures'][name]}: ...".replace("no_default", "None"), space)
            if keywords is not None:
                inspect.signature(space["real"]).bind(*range(count), **dict.fromkeys(keywords))
    # Classes that are handed on (cuGraph's graphs) are called as stand-ins, which take what the real ones take.
    assert len(found) >= 20 and {"cudf.read_parquet", "pylibcugraph.ResourceHandle"} <= {*found}
    assert {"pylibcugraph.MGGraph", "pylibcugraph.SGGraph"} <= {*FAKES}


def test_so_does_the_cluster_of_processes():
    assert taken(dask_cuda.LocalCUDACluster) == READ["signatures"]["dask_cuda.LocalCUDACluster"]


def test_an_argument_that_is_gone_is_refused():
    with pytest.raises(TypeError, match="label_to_output_comm_rank"):
        FAKES["pylibcugraph.neighbor_sample"](
            1, 2, 3, 4, with_replacement=False, do_expensive_check=False, label_to_output_comm_rank=0
        )


def test_the_reader_drops_types_and_comments():
    source = """
class Other:
    def f(self, a):
        pass

cdef class Graph(Base):
    class Inner:
        def __cinit__(self, x):
            pass

    def __cinit__(self,
                  Handle handle,
                  size_t count, # why, and (why) not
                  *,
                  names: dict[str, int] | None = None,
                  bool_t check,
                  times=(1, 2)):
        pass

def f(a: int = -1, **kwargs: Any) -> tuple[int, int]:
    pass
"""
    assert read(source, "Graph.__cinit__") == "(handle, count, *, names=None, check, times=(1, 2))"
    assert read(source, "f") == "(a=-1, **kwargs)"
    assert read(source, "Other.f") == "(a)"
