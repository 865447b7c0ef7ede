"""Reports of which only some pictures are drawn: drawing takes seconds."""

from collections.abc import Callable

import pytest

from millrace.pipeline.report import write
from millrace.pipeline.report.canvas import Picture
from millrace.pipeline.report.canvas import draw as drawn


def draw_only(patch: pytest.MonkeyPatch, *begins: str) -> None:
    """Draw pictures whose names begin so (one of several ways), and leave the others empty."""

    def draw(name: str, caption: str, on: Callable[..., None], colours: dict[str, str]) -> Picture:
        wanted = name.startswith(begins)
        return drawn(name, caption, on, colours) if wanted else Picture(name, caption, "", "", b"")

    patch.setattr(write, "draw", draw)
