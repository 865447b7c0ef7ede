"""The command line's surface: every command with its arguments, flags and defaults, as scripts rely on them."""

import inspect
from pathlib import Path
from typing import Any, get_type_hints

import typer

from millrace.pipeline import cli

LISTING = Path(__file__).with_name("cli_surface.txt")


def surface() -> list[str]:
    """One line for each command and each of its parameters, in the order of the help pages."""
    tree: Any = typer.main.get_command(cli.app)
    lines = []
    for name, command in {"": tree, **tree.commands}.items():
        called = " ".join(["millrace", name]).strip()
        hints = get_type_hints(command.callback)
        defaults = {n: p.default for n, p in inspect.signature(command.callback).parameters.items()}
        lines.append(called)
        lines += [f"{called} {described(p, hints, defaults)}" for p in command.params if p.name in hints]
    return lines


def described(parameter: Any, hints: dict[str, Any], defaults: dict[str, Any]) -> str:
    """Names, kind of value and default of one parameter."""
    kind, default = hints[parameter.name], defaults[parameter.name]
    kind = getattr(kind, "__name__", str(kind)) if isinstance(kind, type) else str(kind)
    given = "required" if parameter.required else f"default {default!r}"
    return f"{' '.join(parameter.opts)} ({kind.replace('pathlib.', '').replace('typing.', '')}), {given}"


def test_commands_flags_and_defaults_are_those_of_the_listing():
    """A change of the surface is a change of `cli_surface.txt`, which reviewers see."""
    assert surface() == LISTING.read_text().splitlines()
