"""Code shared by all pictures: colours, sizes, and reproducible writing of figures.

This is the only module that imports matplotlib, and only its figure classes, so no window is opened and no global state
is changed.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.errors import UsageError
from windlass.core.extras import require
from windlass.core.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox
    from matplotlib.typing import RcKeyType

__all__ = [
    "COLORS",
    "INK",
    "MUTED",
    "PAPER",
    "Picture",
    "add_legend",
    "axes_of",
    "html_page",
    "new_picture",
    "pick_evenly",
    "score_colors",
    "write",
]

PAPER, INK, MUTED, GRID = "#ffffff", "#1c1c1c", "#767676", "#d9d9d9"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c6d1f")
"""Okabe and Ito's colours, which are distinct for any colour vision; darkest and strongest first."""

_MARGIN = 0.1
"""Padding in inches around a picture that is larger than planned."""
FORMATS = (".png", ".svg", ".html")
_STYLE: dict[RcKeyType, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "figure.facecolor": PAPER,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "windlass",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(slots=True)
class Picture:
    """Figure with tooltips; `tips` maps an artist's gid to lines of text."""

    figure: Figure
    title: str
    tips: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Apply windlass's matplotlib settings within the block.

    Raises:
        PreconditionError: matplotlib is not installed (`extra-missing`).
    """
    message = "pictures need matplotlib, which is not installed"
    mpl = require("matplotlib", message, hint="pip install 'windlass[tune]'")  # lazy: 0.4 s
    with mpl.rc_context():
        mpl.rcdefaults()  # ignore the user's matplotlibrc
        mpl.rcParams.update(_STYLE)
        yield


def new_picture(title: str, *, width: float = 8.0, height: float = 4.8) -> Picture:
    """Create an empty picture, with its size in inches."""
    from matplotlib.figure import Figure  # lazy: as above

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    return Picture(figure, title)


def axes_of(picture: Picture, x: str, y: str) -> Axes:
    """Add the axes of a picture with their labels, and return them."""
    axes = picture.figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def add_legend(axes: Axes) -> None:
    """Add a legend above the axes, where it does not cover data."""
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, labelcolor=INK, borderaxespad=0.0, fontsize=9)


def score_colors(values: Sequence[float], *, is_max: bool) -> list[Any]:
    """Return a colour for each value by rank: the best is yellow, the worst blue (viridis without its ends)."""
    import matplotlib as mpl  # lazy: as above

    shades = mpl.colormaps["viridis"]
    order = sorted(range(len(values)), key=lambda place: values[place], reverse=not is_max)
    shade = {place: 0.15 + 0.75 * rank / max(len(values) - 1, 1) for rank, place in enumerate(order)}
    return [shades(shade[place]) for place in range(len(values))]


def pick_evenly(items: Sequence[Any], limit: int) -> list[Any]:
    """Return at most `limit` evenly spaced items, including the first."""
    if len(items) <= limit:
        return list(items)
    return [items[place * len(items) // limit] for place in range(limit)]


def write(picture: Picture, path: Path | str) -> Path:
    """Write a picture as `.png`, `.svg` or `.html`, depending on the suffix.

    Equal pictures give equal bytes.

    Raises:
        UsageError: unknown suffix (`file-suffix`).
    """
    target = Path(path)
    if target.suffix not in FORMATS:
        raise UsageError(
            f"{target.name!r} does not end in {', '.join(FORMATS)}",
            hint="use for example curves.png",
            code="file-suffix",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".png":
        content = _saved(picture, "png", {"Software": None}, dpi=144)
    else:
        content = _saved(picture, "svg", {"Date": None, "Creator": None}, dpi=72, is_clear=target.suffix == ".html")
    if target.suffix == ".html":
        inks = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}
        content = html_page(picture.title, content.decode(), picture.tips, inks).encode()
    write_atomic(target, content, is_durable=False)
    return target


def _saved(picture: Picture, kind: str, metadata: Mapping[str, None], *, dpi: int, is_clear: bool = False) -> bytes:
    content = io.BytesIO()
    picture.figure.savefig(
        content,
        format=kind,
        metadata=dict(metadata),
        dpi=dpi,
        transparent=is_clear,
        bbox_inches=_whole(picture.figure),
    )
    return content.getvalue()


def _whole(figure: Figure) -> Bbox:
    """Return the bounding box that includes labels beyond the edge, so that long names are not cut off."""
    from matplotlib.transforms import Bbox  # lazy: as above

    figure.draw_without_rendering()
    tight = figure.get_tightbbox()
    own = figure.bbox_inches
    return own if _is_within(tight, own) else Bbox.union([own, tight.padded(_MARGIN)])


def _is_within(inner: Bbox, outer: Bbox) -> bool:
    return bool(inner.x0 >= outer.x0 and inner.x1 <= outer.x1 and inner.y0 >= outer.y0 and inner.y1 <= outer.y1)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ --paper: #ffffff; --ink: #1c1c1c; --muted: #767676; --grid: #d9d9d9; color-scheme: light dark; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: #1b1d21; --ink: #ececec; --muted: #9a9a9a; --grid: #3a3d42; }}
}}
body {{ background: var(--paper); color: var(--ink); font: 14px sans-serif; margin: 1rem; }}
svg {{ max-width: 100%; height: auto; }}
svg text {{ font-family: sans-serif !important; }}
.is-on path, .is-on use {{ stroke-width: 3.5px !important; stroke-opacity: 1 !important; opacity: 1 !important; }}
#tip {{ position: fixed; display: none; pointer-events: none; white-space: pre; padding: .4em .6em; border-radius: 4px;
  background: var(--ink); color: var(--paper); font: 12px monospace; max-width: 60ch; z-index: 1; }}
</style>
</head>
<body>
{svg}
<div id="tip" role="status"></div>
<script>
const tips = {tips};
const tip = document.getElementById("tip");
for (const [id, text] of Object.entries(tips)) {{
  const part = document.getElementById(id);
  if (!part) continue;
  part.style.pointerEvents = "all";
  part.addEventListener("pointerenter", () => {{
    part.classList.add("is-on"); tip.textContent = text; tip.style.display = "block";
  }});
  part.addEventListener("pointermove", (event) => {{
    const left = event.clientX + 14, width = tip.offsetWidth;
    tip.style.left = (left + width > window.innerWidth ? event.clientX - width - 14 : left) + "px";
    tip.style.top = (event.clientY + 14) + "px";
  }});
  part.addEventListener("pointerleave", () => {{ part.classList.remove("is-on"); tip.style.display = "none"; }});
}}
</script>
</body>
</html>
"""


def html_page(title: str, svg: str, tips: Mapping[str, str], inks: Mapping[str, str]) -> str:
    """Return a self-contained HTML page.

    Args:
        svg: SVG text from matplotlib.
        tips: id of an element to its tooltip.
        inks: colours of the drawing to colours of the page, which follow the light or dark setting.
    """
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    for color, ink in inks.items():
        drawing = re.sub(rf"(stroke|fill|color): {color}", rf"\1: {ink}", drawing)
    drawing = re.sub(r'(<text\b(?![^>]*fill)[^>]*style=")', r"\1fill: var(--ink); ", drawing)
    data = json.dumps(dict(tips), sort_keys=True).replace("</", "<\\/")
    return _PAGE.format(title=html.escape(title), svg=drawing, tips=data)
