"""Notebooks as pages of the site: their text, programs and stored outputs, which the tests of the notebooks compare."""

import json
from html import escape
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


def page(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown."""
    found = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            found.append(source)
        elif cell["cell_type"] == "code":
            found += [f"````python\n{source}\n````", *map(output, cell["outputs"])]
    return "\n\n".join(filter(None, found)) + "\n"


def output(shown: dict[str, Any]) -> str:
    """An output as Markdown: a picture, or else text."""
    data = shown.get("data", {})
    if "image/png" in data:
        png = "".join("".join(data["image/png"]).split())
        return _html(f'<p><img class="output" alt="Output of the cell above" src="data:image/png;base64,{png}"></p>')
    text = "".join(shown.get("text") or data.get("text/plain", "")).rstrip()
    return _html(f'<pre class="output">{escape(text)}</pre>') if text else ""


def _html(text: str) -> str:
    return f"`````{{raw}} html\n{text}\n`````"


class NotebookParser(MystParser):
    """Reads ``.ipynb``."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(page(json.loads(inputstring)), document)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
