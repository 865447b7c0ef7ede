"""Measures of the product's code that say how easily a newcomer finds their way.

The product is the root's modules, and all of storage, stages and pipeline. Nothing of it is imported.
"""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LAYERS = ("storage", "stages", "pipeline")
KERNELS = "stages/kernels/"
SYSTEMS = "/systems/"
MOST = 6
"""Parameters of a function, and arguments of a call that are given by their position, beyond which they are counted."""
BANNED = {
    "told", "untold", "heard", "said", "unsaid", "speaking", "speaks", "tell", "tells", "telling", "there", "anew",
    "hood", "meanwhile", "whoever", "leash", "darts",
}  # fmt: skip
"""Words that say nothing by themselves: the name of a function, class or module is made of others."""
PREPOSITIONS = {"of", "on", "to", "by", "in", "at", "for", "from", "with", "among"}
"""None of them is the whole name of a function."""
POLICY_FOLDERS = tuple(f"stages/{name}/" for name in ("fetch", "feed", "sample", "placement", "schedule", "reduce"))
"""Classes defined here, and in modules named ``policies.py``, are policies: code that asks which one it has multiplies
axes."""
COMPILED = re.compile(r"njit|numba|\bjit\b|kernel|vectorize|triton")
SEE_ONLY = re.compile(r"See `[A-Za-z_.]+`\.?")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """A file of the product."""

    path: str
    text: str
    nodes: list[ast.AST]


class Measures:
    """Values by name, and the places that each one counts."""

    def __init__(self, root: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.places: dict[str, list[str]] = defaultdict(list)
        self.most_positional = 0
        sources = [*product(root)]
        self._compiled = {
            n.name for s in sources for n in s.nodes if isinstance(n, ast.FunctionDef) and is_compiled(n)
        }  # fmt: skip
        self._policies = {
            n.name
            for s in sources if s.path.startswith(POLICY_FOLDERS) or s.path.endswith("/policies.py")
            for n in s.nodes if isinstance(n, ast.ClassDef)
        }  # fmt: skip
        for source in sources:
            self.counts["lines_code"] += code_lines(source)
            if is_banned(source.path.removesuffix(".py").partition("/")[2].replace("/", "_")):
                self._hit("banned_words", f"{source.path} (module)")
            for node in source.nodes:
                self._node(source.path, node)

    def values(self) -> dict[str, float]:
        """All measures."""
        found = self.counts
        per_kloc = round(1000 * found["none_checks"] / max(1, found["lines_code"]), 1)
        counted = {name: found[name] for name in COUNTED}
        return {**counted, "none_checks_per_kloc": per_kloc, "max_positional_args_at_a_call": self.most_positional}

    def _hit(self, name: str, place: str, count: int = 1) -> None:
        if count:
            self.counts[name] += count
            self.places[name].append(place)

    def _node(self, path: str, node: ast.AST) -> None:
        place = f"{path}:{getattr(node, 'lineno', 0)}"
        for kind in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if kind is not None:
                self._hit("any_annotations", place, words_in(kind)["Any"])
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                self._named(path, place, node)
            case ast.MatchClass(cls=cls) if named(cls) in self._policies and SYSTEMS not in path:
                self._hit("isinstance_on_policies", place)
            case ast.Compare():
                self._comparison(path, place, node)
            case ast.Call():
                self._call(path, place, node)

    def _named(self, path: str, place: str, node: ast.ClassDef | Function) -> None:
        place = f"{place} {node.name}"
        self._hit("banned_words", place, is_banned(node.name))
        self._hit("see_only_docstrings", place, bool(SEE_ONLY.fullmatch((ast.get_docstring(node) or "").strip())))
        if isinstance(node, ast.ClassDef):
            return
        self._hit("functions_named_by_preposition", place, node.name in PREPOSITIONS)
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for parameter in given:
            if parameter.annotation is not None:
                self._hit("optional_arguments", place, words_in(parameter.annotation)["None"] > 0)
        if not path.startswith(KERNELS) and not is_compiled(node):
            self._hit("functions_over_6_params", place, len([p for p in given if p.arg not in ("self", "cls")]) > MOST)

    def _comparison(self, path: str, place: str, node: ast.Compare) -> None:
        left = node.left
        if isinstance(left, ast.Call) and named(left.func) == "type" and SYSTEMS not in path:
            self._hit("isinstance_on_policies", place, any(named(c) in self._policies for c in node.comparators))
        for op, right in zip(node.ops, node.comparators):
            if isinstance(op, ast.Is | ast.IsNot) and isinstance(right, ast.Constant) and right.value is None:
                self._hit("none_checks", place)
                self._hit("none_checks_of_types", place, named(left) == "types")

    def _call(self, path: str, place: str, node: ast.Call) -> None:
        name = named(node.func)
        if name == "isinstance" and len(node.args) == 2 and SYSTEMS not in path:
            self._hit("isinstance_on_policies", place, not self._policies.isdisjoint(classes_of(node.args[1])))
        self._hit("hasattr", place, name == "hasattr")
        if not path.startswith(KERNELS) and name not in self._compiled and name not in ("call", "print"):
            positional = len([a for a in node.args if not isinstance(a, ast.Starred)])
            self._hit("calls_over_6_positional", f"{place} {name}", positional > MOST)
            self.most_positional = max(self.most_positional, positional)


COUNTED = (
    "lines_code", "none_checks_of_types", "functions_over_6_params", "isinstance_on_policies", "see_only_docstrings",
    "any_annotations", "optional_arguments", "hasattr", "calls_over_6_positional", "banned_words",
    "functions_named_by_preposition",
)  # fmt: skip


def product(root: Path) -> Iterator[Source]:
    """The product's files."""
    layers = (p for layer in LAYERS for p in sorted((root / layer).rglob("*.py")) if "__pycache__" not in p.parts)
    for path in (*sorted(root.glob("*.py")), *layers):
        text = path.read_text()
        yield Source(path.relative_to(root).as_posix(), text, [*ast.walk(ast.parse(text))])


def code_lines(source: Source) -> int:
    """Lines with code: without docstrings of modules, classes, functions and fields, comments and blank lines."""
    documented: set[int] = set()
    count = 0
    for node in source.nodes:
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                    documented.update(range(first, (last or first) + 1))
                    count += 1
    if source.text.count('"""') <= 2 * count:  # no other string has lines of its own
        lines = source.text.splitlines()
        return sum(
            number not in documented and bool(line := text.strip()) and not line.startswith("#")
            for number, text in enumerate(lines, 1)
        )
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in skip:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documented)


def named(node: ast.expr) -> str:
    """Last name of a dotted expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def classes_of(node: ast.expr) -> Iterator[str]:
    """Names in the second argument of isinstance."""
    if isinstance(node, ast.Tuple):
        for element in node.elts:
            yield from classes_of(element)
    elif isinstance(node, ast.BinOp):
        yield from classes_of(node.left)
        yield from classes_of(node.right)
    else:
        yield named(node)


def words_in(annotation: ast.AST) -> Counter[str]:
    """How often an annotation has ``Any`` and ``None``."""
    found: Counter[str] = Counter()
    for node in ast.walk(annotation):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                found.update(re.findall(r"\bAny\b", name))
                found["None"] += "None" in name
            case ast.Constant(value=None):
                found["None"] += 1
    return found


def is_compiled(node: Function) -> bool:
    """True for a kernel, whose arguments are flat."""
    return any(COMPILED.search(ast.unparse(d)) for d in node.decorator_list)


def is_banned(name: str) -> bool:
    """True if a name in snake_case or CamelCase has a banned word."""
    parts = (re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", part) for part in name.split("_"))
    return not BANNED.isdisjoint(word.lower() for part in parts for word in part)
