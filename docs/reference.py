"""Write reference pages from the code: every configuration key, command, result field and event.

A missing docstring is a warning.

The text replaces ``<!-- from the code: configuration -->`` in a page; likewise ``commands``, ``result``, ``events`` and
``support``.
"""

import dataclasses
import inspect
import json
import re
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from support import executed, link_support, rows, support, typed_support

from millrace.pipeline import cli
from millrace.pipeline.config.load import Job
from millrace.pipeline.setup import result
from millrace.pipeline.telemetry.events import Event
from millrace.stages.models import MODELS
from millrace.stages.sample import SAMPLERS
from millrace.storage.ledger import KINDS

Row = tuple[str, ...]
REGISTRIES: dict[str, dict[str, type]] = {"model": dict(MODELS), "sampler": dict(SAMPLERS)}
"""Sections whose keys depend on their ``name``."""
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
logger = logging.getLogger(__name__)


def meaning(kind: type, name: str) -> str:
    """The docstring below a field of a class, or of the class that it has the field from; empty if there is none."""
    for owner in kind.__mro__:
        if owner.__module__.startswith("millrace."):
            found = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs().get((owner.__qualname__, name))
            if found:
                return " ".join(" ".join(found).split())
    return ""


def shown_type(annotation: Any, metadata: Any = ()) -> str:
    """A type as a reader of a TOML file knows it: the choices, or a kind of value with its bounds."""
    if get_origin(annotation) in (types.UnionType, Union):
        return " or ".join(shown_type(part, metadata) for part in get_args(annotation) if part is not types.NoneType)
    if get_origin(annotation) is Annotated:
        inner, *about = get_args(annotation)
        return shown_type(inner, [m for field in about for m in field.metadata])
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) in (list, tuple):
        of = get_args(annotation)[0]
        if is_section(of):
            return "tables"
        return "whole numbers" if of is int else f"a list of {shown_type(of)}"
    if get_origin(annotation) is dict:
        return "table"
    words = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text"}
    bounds = [
        sign + shown_number(getattr(m, key))
        for m in metadata
        for key, sign in BOUNDS.items()
        if getattr(m, key, None) is not None
    ]
    return ", ".join([words[annotation], *bounds])


def shown_number(value: float) -> str:
    """As short as it goes, after a space that does not break."""
    return "\u00a0" + (f"2^{value.bit_length() - 1}" if isinstance(value, int) and value > 1 << 31 else f"{value:g}")


def shown_default(value: Any) -> str:
    """A default as TOML has it."""
    if value is None or value is PydanticUndefined:
        return "unset"
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def fields(kind: type) -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, annotation, default, constraints) of a pydantic model or a dataclass."""
    if issubclass(kind, BaseModel):
        for name, f in kind.model_fields.items():
            yield name, f.annotation, f.get_default(call_default_factory=True), f.metadata
    else:
        hints = inspect.get_annotations(kind, eval_str=True)
        for f in dataclasses.fields(kind):
            default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
            yield f.name, hints.get(f.name, f.type), default, ()


def is_section(annotation: Any) -> bool:
    """True if a field is a table with its own keys."""
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation))


def key_rows(prefix: str, kind: type, only: str = "") -> list[Row]:
    """A row for each key: name, type, default, meaning."""
    rows = []
    for name, annotation, default, metadata in fields(kind):
        if prefix and is_section(annotation):
            rows += key_rows(f"{prefix}{name}.", annotation, only)
        elif not is_section(annotation) and (prefix or annotation != dict[str, Any]):
            text = meaning(kind, name)
            if not text:
                logger.warning("configuration key %s%s has no docstring in %s", prefix, name, kind.__qualname__)
            rows.append((f"`{prefix}{name}`", shown_type(annotation, metadata), shown_default(default), only + text))
            if get_origin(annotation) is list and is_section(inner := get_args(annotation)[0]):
                rows += key_rows(f"{prefix}{name}[].", inner, only)
    return rows


def registered_rows(section: str) -> list[Row]:
    """The same for a section whose ``name`` says which keys there are; what not all have is marked."""
    kinds: dict[str, Any] = REGISTRIES[section]
    first = next(iter(kinds))
    rows = {
        "name": (f"`{section}.name`", ", ".join(f"`{name}`" for name in kinds), f'`"{first}"`', f"Which {section}.")
    }
    for kind in kinds.values():
        for row in key_rows(f"{section}.", kind):
            having = [
                name
                for name, k in kinds.items()
                if any(f.name == row[0].strip("`").split(".")[1] for f in dataclasses.fields(k))
            ]
            only = "" if len(having) == len(kinds) else "only " + ", ".join(f"`{name}`" for name in having) + ": "
            first_seen = rows.setdefault(row[0], (*row[:3], only + row[3]))
            if row[2] not in first_seen[2]:
                rows[row[0]] = (*first_seen[:2], f"{first_seen[2]} (`{kind.name}`: {row[2]})", first_seen[3])
    return list(rows.values())


def table(head: Row, rows: list[Row]) -> str:
    """As Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Docstrings mark code as reStructuredText does, with two backticks; Markdown needs one."""
    return re.sub(r"``(.+?)``", r"`\1`", text)


def configuration() -> str:
    """Every key of a job, section after section."""
    head = ("key", "type", "default", "meaning")
    parts = ["## The job itself", inspect.getdoc(Job) or "", table(head, key_rows("", Job))]
    for section, annotation, _, _ in fields(Job):
        if section in REGISTRIES:
            parts += [f"## `[{section}]`", meaning(Job, section), table(head, registered_rows(section))]
        elif is_section(annotation):
            parts += [
                f"## `[{section}]`",
                (inspect.getdoc(annotation) or "").split("\n\n")[0],
                table(head, key_rows(f"{section}.", annotation)),
            ]
    return code("\n\n".join(parts))


def flags_as_code(text: str | None) -> str:
    """Flags in running text would get dashes."""
    return re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)", r"`\1`", text or "")


def commands() -> str:
    """Every command with its arguments and flags."""
    parts: list[str] = []
    seen: dict[str, list[Any]] = {}
    tree: Any = typer.main.get_command(cli.app)
    for name, command in tree.commands.items():
        own = [p for p in command.params if p.name != "help"]
        shown = {p.name: p.metavar or p.name.upper().replace("_", "-") for p in own}
        arguments = [p for p in own if p.param_type_name == "argument"]
        usage = " ".join([name, *(shown[p.name] for p in arguments), "[OPTIONS]"])
        parts += [f"## `millrace {name}`", flags_as_code(command.help), f"```text\nmillrace {usage}\n```"]
        same = next((earlier for earlier, words in seen.items() if words == [p.opts for p in own]), None)
        seen.setdefault(name, [p.opts for p in own])
        if same:
            parts.append(f"Arguments and flags are those of `millrace {same}`.")
            continue
        rows = [(f"`{shown[p.name]}`", flags_as_code(p.help).rstrip(".")) for p in arguments]
        for p in own:
            if p not in arguments:
                value = "" if p.is_flag else " " + shown[p.name]
                default = (
                    "; required" if p.required else "" if p.default is None or p.is_flag else f"; default `{p.default}`"
                )
                rows.append((f"`{p.opts[0]}{value}`", flags_as_code(p.help).rstrip(".") + default))
        parts.append(table(("", "meaning"), rows))
    return "\n\n".join(parts)


def result_fields() -> str:
    """Every key of ``result.json``."""
    rows = []
    for f in dataclasses.fields(result.Result):
        text = meaning(result.Result, f.name)
        if not text:
            logger.warning("the field %s of Result has no docstring", f.name)
        kind = f.type if isinstance(f.type, str) else inspect.formatannotation(f.type)
        rows.append((f"`{f.name}`", f"`{kind}`".replace("typing.", ""), text))
    kinds = [(f"`{channel}`", ", ".join(f"`{kind}`" for kind in of)) for channel, of in KINDS.items()]
    parts = [
        table(("key", "Python type", "meaning"), rows),
        "## `seconds`",
        "Largest over the ranks; parts that overlap need not add up. "
        + ", ".join(f"`{s}`" for s in result.SECONDS)
        + ", and `per_epoch`.",
        "## `bytes` and `waits`",
        (
            "Payload, counted by who sends it (`store`: by who reads it), by channel and "
            "kind; `bytes` has `per_rank` beside the sums."
        ),
        table(("channel", "kinds"), kinds),
    ]
    return code("\n\n".join(parts))


def events() -> str:
    """Every event with its fields."""
    parts: list[str] = []
    for kind in get_args(Event):
        rows = [
            (
                f"`{f.name}`",
                f"`{inspect.formatannotation(f.type)}`".replace("typing.", ""),
                meaning(kind, f.name),
            )
            for f in dataclasses.fields(kind)
        ]
        parts += [f"## `{kind.__name__}`", inspect.getdoc(kind) or "", table(("field", "Python type", "meaning"), rows)]
    return code("\n\n".join(parts))


PAGES: dict[str, Callable[[], str]] = {
    "configuration": configuration,
    "commands": commands,
    "result": result_fields,
    "events": events,
    "support": support,
    "support-run": executed,
    "typed-support": typed_support,
    "link-support": link_support,
    "support-rows": rows,
}


def write(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the text in the place of its mark, before a page is read."""
    for name, text in PAGES.items():
        mark = f"<!-- from the code: {name} -->"
        if mark in source[0]:
            source[0] = source[0].replace(mark, text())


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
