"""Provenance of a run, as an SVG picture drawn in layers for light and dark pages.

Source: Sugiyama, Tagawa, Toda 1981, "Methods for visual understanding of hierarchical system structures": layers by the
longest path, long edges through placeholders, fewer crossings by barycentres.
"""

from __future__ import annotations

from dataclasses import field
from xml.sax.saxutils import escape

from windlass.core.dataclass import dataclass
from windlass.runs.provenance.graph import ProvenanceGraph, ProvenanceNode

__all__ = ["svg"]

_CHAR_W, _LINE_H, _PAD, _GAP_X, _GAP_Y = 6.7, 16.0, 10.0, 56.0, 16.0
_MARGIN = 16.0
_HOLDER_H = 6.0
_MAX_CHARS = 44
_DIGEST_LETTERS = 12
_SWEEPS = 8
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z"/></marker></defs>'
)
_STYLE = """
text { font: 11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; }
text.kind { font-size: 10px; fill: #57606a; }
text.title { font-weight: 600; }
rect { fill: #f6f8fa; stroke: #57606a; }
path { fill: none; stroke: #7d858d; stroke-width: 1.2; }
marker path { fill: #7d858d; stroke: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } text.kind { fill: #9aa4ae; } rect { fill: #161b22; stroke: #7d858d; }
}"""


@dataclass(slots=True)
class _Box:
    """Node in the picture, or a placeholder for a long edge if `node` is None."""

    layer: int
    node: ProvenanceNode | None = None
    lines: tuple[tuple[str, str], ...] = ()
    x: float = 0.0
    y: float = 0.0
    before: list[_Box] = field(default_factory=list)
    after: list[_Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max((len(text) for _, text in self.lines), default=0) * _CHAR_W + 2 * _PAD if self.node else 0.0

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE_H + 2 * _PAD if self.node else _HOLDER_H

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def svg(chain: ProvenanceGraph) -> str:
    """Return an SVG document with title, description and escaped text."""
    layers = _layers(chain)
    _order(layers)
    _place(layers)
    boxes = [box for layer in layers for box in layer]
    width = max((box.x + box.width for box in boxes), default=0.0) + _MARGIN
    height = max((box.y + box.height for box in boxes), default=0.0) + _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title about" {size}>',
        f'<title id="title">{_clean(f"Provenance of {chain.run}")}</title>',
        f'<desc id="about">{_clean(_description(chain))}</desc>',
        f"<style>{_STYLE}</style>",
        _TIP,
        *(_curve(box, other) for box in boxes if box.node for other in box.after),
        *(_drawn(box) for box in boxes if box.node),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _layers(chain: ProvenanceGraph) -> list[list[_Box]]:
    """Return the boxes in layers by longest path, with a placeholder in each layer that an edge crosses."""
    before: dict[str, list[str]] = {node.id: [] for node in chain.nodes}
    for edge in chain.edges:
        before[edge.after].append(edge.before)
    ranks: dict[str, int] = {}

    def rank(node: str) -> int:
        if node not in ranks:
            ranks[node] = 1 + max((rank(other) for other in before[node]), default=-1)
        return ranks[node]

    boxes = {node.id: _Box(layer=rank(node.id), node=node, lines=_lines(node)) for node in chain.nodes}
    layers: list[list[_Box]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for box in boxes.values():
        layers[box.layer].append(box)
    for edge in chain.edges:
        _connect(boxes[edge.before], boxes[edge.after], layers)
    return layers


def _connect(start: _Box, end: _Box, layers: list[list[_Box]]) -> None:
    last = start
    for layer in range(start.layer + 1, end.layer):
        holder = _Box(layer=layer)
        layers[layer].append(holder)
        _join(last, holder)
        last = holder
    _join(last, end)


def _join(before: _Box, after: _Box) -> None:
    before.after.append(after)
    after.before.append(before)


def _order(layers: list[list[_Box]]) -> None:
    """Sort each layer by the mean position of its boxes' neighbours, in both directions, to reduce crossings."""
    for sweep in range(_SWEEPS):
        is_forth = sweep % 2 == 0
        for layer in layers if is_forth else reversed(layers):
            place = {id(box): at for around in layers for at, box in enumerate(around)}
            near = {id(box): box.before if is_forth else box.after for box in layer}
            layer.sort(
                key=lambda box: (
                    sum(place[id(other)] for other in near[id(box)]) / len(near[id(box)])
                    if near[id(box)]
                    else place[id(box)]
                )
            )


def _place(layers: list[list[_Box]]) -> None:
    """Place the layers as columns, each as wide as its widest box and centred on the tallest column."""
    tallest = max((_column_height(layer) for layer in layers), default=0.0)
    x = _MARGIN
    for layer in layers:
        y = _MARGIN + (tallest - _column_height(layer)) / 2
        for box in layer:
            box.x, box.y = x, y
            y += box.height + _GAP_Y
        x += max(box.width for box in layer) + _GAP_X


def _column_height(layer: list[_Box]) -> float:
    return sum(box.height for box in layer) + _GAP_Y * (len(layer) - 1)


def _curve(start: _Box, after: _Box) -> str:
    """Return the SVG path from a box through placeholders to the next box."""
    x, y = start.x + start.width, start.middle
    path, box = f"M{x:.1f} {y:.1f}", after
    while True:
        half = max((box.x - x) / 2, 8.0)
        path += f" C{x + half:.1f} {y:.1f} {box.x - half:.1f} {box.middle:.1f} {box.x:.1f} {box.middle:.1f}"
        x, y = box.x, box.middle
        if box.node:
            return f'<path d="{path}" marker-end="url(#tip)"/>'
        box = box.after[0]


def _drawn(box: _Box) -> str:
    texts = [
        f'<text class="{style}" x="{box.x + _PAD:.1f}" y="{box.y + _PAD + (row + 0.75) * _LINE_H:.1f}">'
        f"{_clean(text)}</text>"
        for row, (style, text) in enumerate(box.lines)
    ]
    node = box.node
    assert node is not None  # placeholders are not drawn
    whole = "\n".join(line for line in (f"{node.kind}: {node.title}", node.digest, *node.details) if line)
    rect = f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6"/>'
    return f"<g><title>{_clean(whole)}</title>{rect}{''.join(texts)}</g>"


def _lines(node: ProvenanceNode) -> tuple[tuple[str, str], ...]:
    what, _, content = node.digest.partition(":")
    digest = [("digest", f"{what}:{content[:_DIGEST_LETTERS]}")] if content else []
    found = [("kind", str(node.kind)), ("title", node.title), *digest, *(("more", text) for text in node.details)]
    return tuple((style, text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 3] + "...") for style, text in found)


def _description(chain: ProvenanceGraph) -> str:
    titles = {node.id: f"{node.kind} {node.title}" for node in chain.nodes}
    return "; ".join(f"{titles[edge.before]} leads to {titles[edge.after]}" for edge in chain.edges)


def _clean(text: str) -> str:
    """Escape text for XML and replace characters that XML 1.0 (section 2.2) forbids."""
    return escape("".join(char if char in "\t\n" or _is_char(ord(char)) else "?" for char in text), {'"': "&quot;"})


def _is_char(code: int) -> bool:
    is_surrogate = 0xD800 <= code <= 0xDFFF
    return code >= 0x20 and not is_surrogate and not 0x7F <= code <= 0x9F and code not in (0xFFFE, 0xFFFF)
