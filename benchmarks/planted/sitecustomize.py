"""Put on the path of tests and of their processes by `planted_devices.py`: every move of a tensor to a device, or from
one, goes through `moved`, which notes it or leaves it out.

Modules are rewritten as they are imported; the files stay as they are.
"""

import ast
import builtins
import os
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("MILLRACE_PLANTED", "/nonexistent"))
PACKAGE = Path(__file__).resolve().parents[2]
WHERE = (
    "stages/fetch", "stages/evaluate", "stages/reduce", "stages/neighbourhood", "stages/models", "stages/nn",
    "stages/feed", "stages/placement", "stages/schedule", "stages/links", "stages/learned", "pipeline/training",
)  # fmt: skip

_noted: set[tuple[str, str, bool]] = set()


def moved(place: str, kind: str, call: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Makes the call of a place and returns its result; without the move, if this place is the one that is left out.

    Args:
        place: see `Rewriter`.
        kind: ``to``, ``cpu`` or ``cuda``, methods of `call`; ``to_device`` or ``device``, of which `call` is the
            function.
        call: the tensor or module that is moved, or the function that makes a tensor.
        args: of the call.
        kwargs: of the call.
    """
    import torch

    if place == os.environ.get("MILLRACE_PLANTED_PLACE"):
        if kind in ("cpu", "cuda"):
            return call
        if kind == "to_device":
            return torch.from_numpy(args[0])
        if kind == "device":
            return call(*args, **{**kwargs, "device": None})
        kept = [a.dtype if isinstance(a, torch.Tensor) else a for a in args if not isinstance(a, torch.device | str)]
        named = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
        return call.to(*kept, **named) if kept or named else call
    if "MILLRACE_PLANTED_CURRENT" in os.environ:
        _note(place, kind, call, args, kwargs, torch)
    return getattr(call, kind)(*args, **kwargs) if kind in ("to", "cpu", "cuda") else call(*args, **kwargs)


def _note(place: str, kind: str, call: Any, args: Any, kwargs: Any, torch: Any) -> None:
    """Add the place to ``$MILLRACE_PLANTED/seen`` if a GPU has to do with it, with the test, and whether it moves."""
    held = next(iter(call.parameters()), torch.empty(0)) if isinstance(call, torch.nn.Module) else call
    begin = held.device.type if kind in ("to", "cpu", "cuda") else "cpu"
    named = [kwargs.get("device")]
    ends = [a.device if isinstance(a, torch.Tensor) else a for a in (named if kind == "device" else [*args, *named])]
    ends = [torch.device(a).type for a in ends if isinstance(a, torch.device | str)]
    end = {"cpu": "cpu", "cuda": "cuda"}.get(kind, ends[0] if ends else begin)
    if "cuda" not in (begin, end):
        return
    found = place, Path(os.environ["MILLRACE_PLANTED_CURRENT"]).read_text(), begin != end
    if (ends or kind in ("cpu", "cuda")) and found not in _noted:
        _noted.add(found)
        with open(FOLDER / "seen", "a") as file:
            file.write("\t".join(map(str, found)) + "\n")


class Rewriter(ast.NodeTransformer):
    """Sends a module's moves through `moved`. `places` has the line of each, by its name: ``file: source``, and a
    number if the file has several of that source."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.places = dict[str, int]()

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """The call, or one of `moved`."""
        text = ast.unparse(node)
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(attr="to" | "cpu" | "cuda" as kind) if not _gives_dtype(kind, node):
                call = node.func.value
            case ast.Name(id="to_device" as kind):
                call = node.func
            case call if any(k.arg == "device" for k in node.keywords):
                kind = "device"
            case _:
                return node
        place = first = f"{self.name}: {text}"
        for n in range(2, 100):
            if place not in self.places:
                break
            place = f"{first} ({n})"
        self.places[place] = node.func.end_lineno or 0
        return ast.Call(
            ast.Name("__moved__", ast.Load()),
            [ast.Constant(place), ast.Constant(kind), call, *node.args],
            node.keywords,
        )


def _gives_dtype(kind: str, node: ast.Call) -> bool:
    """True of ``x.to(dtype)``."""
    text = ast.unparse(node.args[0]) if node.args else ""
    return kind == "to" and len(node.args) == 1 and ("dtype" in text or "_type" in text or text.startswith("torch."))


def rewritten(file: Path) -> tuple[ast.Module, dict[str, int]]:
    """A module whose moves go through `moved`, and its places."""
    rewriter = Rewriter(file.relative_to(PACKAGE).as_posix())
    tree = rewriter.visit(ast.parse(file.read_bytes()))
    return ast.fix_missing_locations(tree), rewriter.places


def _begin() -> None:
    folders, real = tuple(f"{PACKAGE / name}{os.sep}" for name in WHERE), SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> Any:
        file = self.get_filename(fullname)
        return compile(rewritten(Path(file))[0], file, "exec") if file.startswith(folders) else real(self, fullname)

    builtins.__moved__ = moved  # pyrefly: ignore[missing-attribute]
    SourceFileLoader.get_code = get_code


if FOLDER.is_dir():
    _begin()
