"""Writer for short YAML 1.2 that loads as the same value.

PyYAML is not used because it quotes by YAML 1.1 rules: the text `1e-6` would be read back as a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from windlass.config.document import text_of
from windlass.config.encode import to_data
from windlass.config.yaml_reader.scalars import resolve_scalar

__all__ = ["to_yaml", "yaml_of_data"]

_WIDTH = 100
# The scanner looks for the `:` of a key within 1024 characters.
_MAX_SIMPLE_KEY = 1000
_PLAIN_START = re.compile(r"[^\W_]|[_./$(+<^]")
_NOT_PLAIN = re.compile(r"[\\\t]|: |:\Z| #| \Z")
_FLOW_MARKS = re.compile(r"[,?\[\]{}]|:")  # a `?` within a list ends a word for one of PyYAML's two parsers
# Text here, but not for YAML 1.1 readers; quoted for them.
_OLD_WORDS = re.compile(r"(?:yes|no|on|off)\Z|[-+]?[0-9][0-9_:.,]*\Z|=\Z|<<\Z", re.IGNORECASE)
_NAMED_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def to_yaml(value: object) -> str:
    """Return the shortest YAML for a dataclass value, without defaults.

    Loading the text gives an equal value.
    """
    return yaml_of_data(to_data(value))


def yaml_of_data(data: Mapping[str, object]) -> str:
    """Return YAML 1.2 for plain dicts, lists and scalars."""
    return "".join(f"{line}\n" for line in _mapping(data, 0)) if data else "{}\n"


def _mapping(data: Mapping[str, object], indent: int) -> list[str]:
    pad = " " * indent
    lines = []
    for key, value in data.items():
        head = f"{pad}{_text(key, is_flow=True)}:"
        if len(head) > _MAX_SIMPLE_KEY:
            lines.append(f"{pad}? {_text(key, is_flow=True)}")
            head = f"{pad}:"
        lines.extend(_member(head, value, indent))
    return lines


def _member(head: str, value: object, indent: int) -> list[str]:
    """Return the lines for a value that follows `key:`."""
    if isinstance(value, str) and _is_literal(value):
        marker = "|" if value.endswith("\n") else "|-"
        body = [f"{' ' * (indent + 2)}{line}" if line else "" for line in value.removesuffix("\n").split("\n")]
        return [f"{head} {marker}", *body]
    if isinstance(value, Mapping) and value:
        return [head, *_mapping(value, indent + 2)]
    if isinstance(value, list | tuple) and value:
        flow = _flow_list(value)
        if flow is None or len(head) + len(flow) >= _WIDTH:
            return [head, *_list(value, indent + 2)]
        return [f"{head} {flow}"]
    return [f"{head} {_scalar(value)}"]


def _list(items: Sequence[object], indent: int) -> list[str]:
    pad = " " * indent
    lines = []
    for item in items:
        if isinstance(item, Mapping) and item:
            inner = _mapping(item, indent + 2)
        elif isinstance(item, list | tuple) and item:
            inner = _list(item, indent + 2)
        elif isinstance(item, str) and _is_literal(item):
            inner = _member("", item, indent)
        else:
            inner = [_scalar(item)]
        lines.append(f"{pad}- {inner[0].lstrip(' ')}")
        lines.extend(inner[1:])
    return lines


def _flow_list(items: Sequence[object]) -> str | None:
    """Return `[a, b]` for a list of scalars; None if the list needs its own lines."""
    if any(
        (isinstance(item, Mapping | list | tuple) and item) or (isinstance(item, str) and "\n" in item)
        for item in items
    ):
        return None
    return f"[{', '.join(_scalar(item, is_flow=True) for item in items)}]"


def _scalar(value: object, *, is_flow: bool = False) -> str:
    if isinstance(value, str):
        return _text(value, is_flow=is_flow)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    if isinstance(value, bool | int | float) or value is None:
        return text_of(value)
    raise TypeError(f"a {type(value).__qualname__} cannot be written to a file")


def _text(text: str, *, is_flow: bool) -> str:
    return text if _is_plain(text, is_flow) else f'"{"".join(_escaped(character) for character in text)}"'


def _is_plain(text: str, is_flow: bool) -> bool:
    if not text.isprintable() or _PLAIN_START.match(text) is None or text.startswith("...") or _NOT_PLAIN.search(text):
        return False
    if _OLD_WORDS.match(text) or (is_flow and _FLOW_MARKS.search(text)):
        return False
    try:
        return isinstance(resolve_scalar(text), str)
    except ValueError:
        return False


def _escaped(character: str) -> str:
    if character in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _is_literal(text: str) -> bool:
    """Return whether a literal block is exact and more readable than escapes."""
    lines = text.removesuffix("\n").split("\n")
    return (
        "\n" in text
        and all(line.isprintable() and (not line or bool(line.strip())) for line in lines)
        and bool(lines[0])
        and not lines[0].startswith(" ")
        and bool(lines[-1])
    )
