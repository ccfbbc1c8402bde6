"""All output of the command line: data on standard output, everything else on standard error.

Colour only on a terminal, and never with NO_COLOR (https://no-color.org); every text is readable without it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

__all__ = [
    "emit",
    "emit_json",
    "emit_page",
    "fold",
    "is_coloured",
    "page_width",
    "paint",
    "printable",
    "table",
    "tell",
    "write_raw",
]

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_LABEL = re.compile(r" *\S+(?: \S+){0,2}?:?  +|hint: |error: |more: |note: ")
_WORD = re.compile(r" *[^ ]+ *?(?= |\Z)|\A +\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def is_coloured(stream: TextIO) -> bool:
    """Return whether the stream is a terminal with colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """Return `text` with styles such as `bold` or `red`, or unchanged where there are no colours.

    The default stream is standard output.
    """
    if not text or not is_coloured(stream if stream is not None else sys.stdout):
        return text
    return "".join(f"\x1b[{_CODES[style]}m" for style in styles) + text + "\x1b[0m"


def printable(text: str) -> str:
    """Return text with control characters escaped, except tab and newline, so that it cannot control the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def emit(text: str = "") -> None:
    """Print a line of data."""
    sys.stdout.write(text + "\n")


def emit_page(text: str = "") -> None:
    """Print a line of a page; on a terminal it is folded between words."""
    sys.stdout.write(fold(text, page_width()) + "\n")


def tell(text: str = "", *, folds: bool = True) -> None:
    """Print a line to standard error: progress, hints, verdicts.

    Args:
        folds: fold between words on a terminal; not for the output of processes.
    """
    sys.stdout.flush()
    sys.stderr.write((fold(text, _width(sys.stderr)) if folds else text) + "\n")
    sys.stderr.flush()


def page_width() -> int:
    """Return the number of columns of the terminal, or 0 without a terminal, which disables folding."""
    return _width(sys.stdout)


def _width(stream: TextIO) -> int:
    """Return the number of columns of a stream's terminal, or 0 without one."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):  # no file descriptor, or closed
        return 0


def fold(text: str, width: int) -> str:
    """Fold lines to at most `width` columns between words, indented below their label.

    A wider word stays whole, so that paths can be copied. A width of 0 changes nothing.
    """
    return "\n".join(_folded(line, width) for line in text.split("\n")) if width else text


def _folded(line: str, width: int) -> str:
    if _num_columns(line) <= width:
        return line
    label = _LABEL.match(line)
    indent = len(label.group()) if label is not None and len(label.group()) <= width // 2 else _indent_of(line) + 2
    rows, row = [], ""
    for piece in _WORD.findall(line):
        if row.strip() and _num_columns(row) + _num_columns(piece.rstrip()) > width:
            rows.append(row.rstrip())
            row = " " * indent + piece.lstrip()
        else:
            row += piece
    return "\n".join([*rows, row.rstrip()])


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _num_columns(text: str) -> int:
    return len(_STYLE.sub("", text))


def emit_json(schema: str, content: Mapping[str, object]) -> None:
    """Print one JSON object whose first key is its schema (`windlass.ps/1`)."""
    sys.stdout.write(json.dumps({"schema": schema, **content}, indent=2, ensure_ascii=False) + "\n")


def write_raw(content: bytes) -> None:
    """Write raw bytes, such as a log."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(content.decode(errors="replace"))
        return
    buffer.write(content)
    buffer.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> list[str]:
    """Return the lines of a table with a header in capitals; all columns except the last are padded."""
    cells = [[name.upper() for name in header], *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
