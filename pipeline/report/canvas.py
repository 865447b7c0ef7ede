"""Pictures in two widths, for light and dark pages and for paper, each drawn from one description."""

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...storage.errors import InputError, install
from ..telemetry.palette import FAINT, INK
from ..telemetry.printable import printable

WIDE_IN, NARROW_IN = 10.5, 4.3
PNG_DPI = 110
ROOM_IN = 0.5
"""Height in inches above and below the axes."""


@dataclass(frozen=True)
class Picture:
    """A drawn picture."""

    name: str
    caption: str
    wide: str
    """SVG for use inside a page, in the page's own colours."""
    narrow: str
    """SVG for a narrow page."""
    png: bytes
    """PNG on white."""


class Sheet:
    """An empty picture of one width, on which axes are placed."""

    def __init__(self, figure: Any, narrow: bool) -> None:
        self.figure, self.narrow = figure, narrow

    def rows(self, heights_in: list[float], **options: Any) -> list[Any]:
        """Axes one above the other with a shared x axis."""
        self.figure.set_size_inches(self._width, sum(heights_in) + ROOM_IN)
        axes = self.figure.subplots(len(heights_in), 1, squeeze=False, sharex=True, height_ratios=heights_in, **options)
        return [self._plain(ax) for ax in axes[:, 0]]

    def grid(self, count: int, height_in: float, columns: int, **options: Any) -> list[Any]:
        """`count` axes side by side, `columns` in a row if there is room, else one."""
        columns = 1 if self.narrow else min(columns, count)
        rows = -(-count // columns)
        self.figure.set_size_inches(self._width, rows * height_in + ROOM_IN)
        axes = self.figure.subplots(rows, columns, squeeze=False, **options).ravel()
        for ax in axes[count:]:
            ax.remove()
        return [self._plain(ax) for ax in axes[:count]]

    @property
    def _width(self) -> float:
        return NARROW_IN if self.narrow else WIDE_IN

    @staticmethod
    def _plain(ax: Any) -> Any:
        ax.spines[["top", "right"]].set_visible(False)
        return ax

    def legend(self, handles: list[Any], labels: list[str]) -> None:
        """One legend for all axes, above them."""
        if handles:
            form = {"ncols": min(len(handles), 3 if self.narrow else 8), "handlelength": 1.2, "columnspacing": 1.2}
            self.figure.legend(handles, labels, loc="outside upper left", frameon=False, **form)


def draw(name: str, caption: str, on: Callable[[Sheet], None], colours: dict[str, str]) -> Picture:
    """Draw a picture.

    Args:
        name: name of its file, without suffix.
        caption: caption of the picture.
        on: draws on a sheet.
        colours: CSS variables for colours in the SVG.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        why = "a report draws with matplotlib, which is not installed; install the extra"
        raise InputError(f"{why}: {install('report')}") from None
    settings: Any = {
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
        "axes.titlesize": "medium",
        "axes.titlelocation": "left",
        "grid.color": FAINT,
        "legend.fontsize": "medium",
        "font.size": 9.5,
        # Text from a run's folder is text, never a formula.
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": name,
    }
    made: dict[bool, str] = {}
    png = io.BytesIO()
    with mpl.rc_context(), warnings.catch_warnings():
        # Names may have characters missing from the font for measuring; the page's own font has them.
        warnings.simplefilter("ignore")
        mpl.rcParams.update(mpl.rcParamsDefault)
        mpl.rcParams.update(settings)
        for narrow in (False, True):
            figure = Figure()
            on(Sheet(figure, narrow))
            # Laid out once, for both files. A figure that has an engine is drawn twice for each file.
            ConstrainedLayoutEngine().execute(figure)
            svg = io.StringIO()
            figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
            made[narrow] = _for_page(svg.getvalue(), f"{name}-{'narrow' if narrow else 'wide'}-", caption, colours)
            if not narrow:
                figure.savefig(png, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return Picture(name, caption, made[False], made[True], png.getvalue())


def _for_page(svg: str, prefix: str, caption: str, colours: dict[str, str]) -> str:
    """An SVG file as part of an HTML page: the drawing only, with unique ids, and the page's colours and fonts."""
    from html import escape

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None, "matplotlib gives its SVG a viewBox"
    svg = re.sub(r"<svg[^>]*>", f'<svg {view[0]} role="img" aria-label="{escape(caption)}">', svg, count=1)
    svg = re.sub(r' d="[^"]*"', lambda d: re.sub(r"\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", d[0]), svg)
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = svg.replace("xlink:href", "href").replace('href="#', f'href="#{prefix}').replace("url(#", f"url(#{prefix}")
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = re.sub("#[0-9a-f]{6}\\b", lambda m: f"var({colours[m[0]]})" if m[0] in colours else m[0], svg)
    return printable(svg).strip()
