"""Names in benchmarks that the type checker does not see: attributes of `millrace`, and keys of configurations."""

import ast
from collections.abc import Iterator
from pathlib import Path

import millrace as mr
from millrace.pipeline.config.aliases import REMOVED, RENAMED

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PUBLIC = {*dir(mr)}
OLD = RENAMED.keys() | REMOVED.keys()


def _tables(node: ast.AST) -> Iterator[tuple[object, ast.AST]]:
    """Names of a dictionary's or a call's values, and the values."""
    if isinstance(node, ast.Dict):
        yield from ((key.value, value) for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant))
    elif isinstance(node, ast.Call):
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords)


def gone(tree: ast.AST) -> Iterator[str]:
    """Attributes of `mr` that are not there, and keys that configurations no longer have."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="mr"), attr=name) if name not in PUBLIC:
                yield f"mr.{name}"
            case ast.Constant(value=str(text)):
                yield from OLD & {word.partition("=")[0] for word in text.split()}
        for section, table in _tables(node):
            yield from OLD & {f"{section}.{key}" for key, _ in _tables(table)}


def test_benchmarks_use_no_name_that_is_gone() -> None:
    old = 'mr.GoneSampler(); mr.run(d, grappa={"every": 1}); {"sar": {"ahead_bytes": 1}}; "--set bulk.hot=0.1"'
    assert sorted(gone(ast.parse(old))) == ["bulk.hot", "grappa.every", "mr.GoneSampler", "sar.ahead_bytes"]
    files = sorted(BENCHMARKS.rglob("*.py"))
    assert len(files) > 50
    found = {str(f.relative_to(BENCHMARKS)): names for f in files if (names := [*gone(ast.parse(f.read_text()))])}
    assert not found
