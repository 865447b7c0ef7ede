"""Templates of pages that need no other file: those of the report and of the dashboard have one style and palette."""

import functools
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, select_autoescape
from markupsafe import Markup

from ...storage.plural import counted
from .palette import VARIABLES
from .printable import printable
from .quantities import amount, duration, percent, thousands

FOLDERS = [Path(__file__).parents[1] / name for name in ("report", "dashboard", "planning")]


@functools.cache
def _template(name: str) -> Template:
    """A template; to parse it takes as long as several pages."""
    loader, trims = FileSystemLoader(FOLDERS), {"trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(
        loader=loader, autoescape=select_autoescape(("html",)), undefined=StrictUndefined, **trims
    )
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters |= {f.__name__: f for f in (amount, counted, duration, percent, thousands)} | {"svg": Markup}
    return environment.get_template(name)


@functools.cache
def _style() -> Markup:
    return Markup((FOLDERS[0] / "page.css").read_text(encoding="utf-8"))


def rendered(template: str, **values: Any) -> str:
    """A page or a part of one, as HTML, whose values are escaped; or text, by a template that is no HTML."""
    colours = {variable: colour for colour, variable in VARIABLES.items()}
    return _template(template).render(values, style=_style(), colours=colours)
