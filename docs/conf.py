"""Sphinx configuration of the site: `make docs`, or `python -m sphinx -W -E docs docs/_build`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for `reference` and `mathml`

import millrace

project = "Millrace"
author = "the Millrace authors"
copyright = author
version = release = millrace.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "reference",
    "mathml",
    "notebooks_on_site",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Millrace {release}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath", "attrs_inline"]
myst_heading_anchors = 3

# Docstrings say `code` where reStructuredText would want ``code``.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
maximum_signature_line_length = 100


def _whole(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    # Of "Seeds: of every choice" below a field Napoleon would take the first word for a type. A comment before it keeps
    # it from that.
    if what in ("attribute", "property") and lines:
        lines[:0] = ["..", ""]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _whole, priority=400)  # before Napoleon
