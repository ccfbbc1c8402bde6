"""Picture as a single HTML file, with an inline drawing, a small script for tooltips, and no network access."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping

__all__ = ["html_page"]

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
