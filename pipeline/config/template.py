"""A job file to begin with: every key with its meaning and its default."""

import ast
import dataclasses
import inspect
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

import tomli_w
from pydantic import BaseModel

from ...stages.models import MODELS
from ...stages.sample import SAMPLERS
from ...storage.optional import present_items
from ..telemetry.printable import printable
from .aliases import expanded
from .job import Job
from .load import resolve
from .systems import SYSTEMS

HEAD = """\
# A job of Millrace: millrace run {name}
# Every key is here. Those behind "# " have their default: take the sign away to change one.
"""
WIDTH = 100
DECIDING = ("system", "model", "sampler", "device", "ranks")
"""Keys on which the defaults of others depend."""


def job_template(table: Mapping[str, Any], name: str = "job.toml") -> str:
    """A job file with the keys of `table`, and all others as comments.

    Args:
        table: keys and shorthands that are chosen.
        name: of the file, for its first line.

    Raises:
        InputError: the table is no valid job.
    """
    chosen = expanded(table)
    job = resolve(chosen)
    asked = job.model_dump(mode="json")
    usual = resolve({k: v for k, v in chosen.items() if k in DECIDING}).model_dump(mode="json")
    lines, sections = [HEAD.format(name=" ".join(printable(shlex.quote(name)).split()))], []
    for key, field in Job.model_fields.items():
        annotation = field.annotation
        if key in ("model", "sampler"):
            kinds: Mapping[str, Any] = MODELS if key == "model" else SAMPLERS
            options = getattr(job, key)
            if options:
                sections.append(
                    (key, _options(kinds[options["name"]], options, _given(chosen, asked, key), sorted(kinds)))
                )
        elif _is_section(annotation):
            if key not in SYSTEMS or key == job.system:
                sections.append((key, _keys(cast(type, annotation), usual[key], _given(chosen, asked, key))))
        else:
            lines.append(
                _entry(key, usual[key], {k: asked[k] for k in chosen if k in asked}, _meanings(Job).get(key, ""))
            )
    for key, entries in sections:
        lines.append(f"\n[{key}]\n" + "\n".join(entries))
    return "\n".join(lines) + "\n"


def _given(chosen: Mapping[str, Any], asked: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The keys of a section that are chosen, with their values in the resolved job."""
    keys = chosen.get(section, {})
    return {k: asked[section][k] for k in (["name"] if isinstance(keys, str) else keys)}


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation))


def _keys(kind: type, usual: Mapping[str, Any], chosen: Mapping[str, Any]) -> Iterator[str]:
    meanings = _meanings(kind)
    for key in usual:
        yield _entry(key, usual[key], chosen, meanings.get(key, ""))


def _options(kind: type, options: Mapping[str, Any], chosen: Mapping[str, Any], names: list[str]) -> Iterator[str]:
    """Entries of a section whose ``name`` decides the others."""
    yield _entry("name", options["name"], chosen, f"One of {', '.join(names)}.")
    meanings = _meanings(kind)
    for f in dataclasses.fields(kind):
        usual = options.get(f.name, None if f.default is dataclasses.MISSING else f.default)
        yield _entry(f.name, usual, chosen, meanings.get(f.name, ""))


def _entry(key: str, usual: Any, chosen: Mapping[str, Any], meaning: str) -> str:
    """A key below its meaning, as a comment unless it is chosen."""
    told = textwrap.fill(meaning.replace("``", "`"), WIDTH, initial_indent="# ", subsequent_indent="# ")
    if key in chosen:
        return f"{told}\n{_toml(key, chosen[key])}"
    return f"{told}\n# {f'{key} =  # unset' if usual is None else _toml(key, usual)}"


def _toml(key: str, value: Any) -> str:
    """An assignment in one line."""
    value = list(value) if isinstance(value, tuple) else value
    if isinstance(value, Mapping):
        inner = ", ".join(_toml(k, v) for k, v in present_items(value).items())
        return f"{key} = {{ {inner} }}" if inner else f"{key} = {{}}"
    if isinstance(value, list):
        return f"{key} = [{', '.join(_toml('x', v).removeprefix('x = ') for v in value)}]"
    return tomli_w.dumps({key: value}).strip()


@cache
def _meanings(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class, and of those that it derives from."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.partition(".")[0] in ("pydantic", "builtins", "typing", "abc"):
            continue
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError):
            continue  # made in a notebook, or at run time
        assert isinstance(body, ast.ClassDef)
        for field, doc in zip(body.body, body.body[1:]):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(doc, ast.Expr):
                found[field.target.id] = " ".join(str(ast.literal_eval(doc.value)).split())
    return found
