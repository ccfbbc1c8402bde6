"""Parser that composes document nodes from YAML 1.2 text, using PyYAML's events.

Composing from events keeps the position of every key and value. Excessive depth, alias expansion, duplicate keys and
several documents are refused with their place instead of crashing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from windlass.config.document import MAX_DEPTH, MappingEntry, MappingNode, Node, ScalarNode, SequenceNode, has_surrogate
from windlass.config.yaml_reader.scalars import resolve_scalar
from windlass.config.yaml_reader.syntax_errors import YamlMark, explain_syntax
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem, SourcePlace, SpecError

if TYPE_CHECKING:
    import yaml

__all__ = ["MAX_TEXT", "compose", "decode_text", "too_large"]

MAX_TEXT = 4 << 20
_MAX_TREES = 200_000
_MAX_EXCERPT = 120
_LINE_END = re.compile("\r\n|[\n\r]")
# Characters that section 5.1 of the specification does not allow; and three characters that are plain text since
# YAML 1.2, but that the parser still treats as line breaks, which would silently change the value.
_UNPRINTABLE = "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\ufeff"
_ASCII_SPACES = dict.fromkeys(map(ord, "\t\n\r"))
_TAGS: dict[str, tuple[type, ...]] = {
    "tag:yaml.org,2002:str": (str,),
    "tag:yaml.org,2002:int": (int,),
    "tag:yaml.org,2002:float": (int, float),
    "tag:yaml.org,2002:bool": (bool,),
    "tag:yaml.org,2002:null": (type(None),),
}
_COLLECTION_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


def decode_text(content: bytes, *, source: str) -> str:
    """Decode the text of a file. Raises SpecError if it is not UTF-8."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        problem = Problem("the file is UTF-16, not UTF-8", "yaml-syntax", SourcePlace(source), "save it as UTF-8")
        raise SpecError([problem])
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        start = before.rfind(b"\n") + 1
        excerpt = content[start:].split(b"\n", 1)[0].decode("utf-8", "backslashreplace").strip()
        column = len(before[start:].decode("utf-8", "replace")) + 1
        message = f"the byte 0x{content[error.start]:02x} is not UTF-8"
        raise SpecError(
            [
                Problem(
                    message, "yaml-syntax", SourcePlace(source, line, column, _cut(excerpt)), "save the file as UTF-8"
                )
            ]
        ) from None


def too_large(place: SourcePlace, limit: int) -> Problem:
    """Return the problem for a file above the size limit."""
    return Problem(
        f"the file is larger than {limit >> 20} MiB", "yaml-limits", place, "check that it is the right file"
    )


def compose(
    text: str, *, source: str, place: SourcePlace | None = None, merges: bool = False
) -> tuple[Node | None, list[Problem]]:
    """Read a YAML document.

    Args:
        place: place of all nodes and problems, instead of line and column, which a command line does not have.
        merges: let `<<` merge other mappings, as in YAML 1.1, for files of other programs.

    Returns:
        The tree (None for an empty document or after a syntax error) and all problems.
    """
    composer = _Composer(text.removeprefix("\ufeff"), source, place, merges=merges)
    return composer.document(), composer.problems


class _Refused(Exception):
    """Raised if reading cannot continue; the problem is already recorded."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Node, with its depth and the number of nodes in it, counting expanded aliases."""

    node: Node
    size: int
    height: int


class _Composer:
    """Composer that reads one text in a single pass over its events."""

    def __init__(self, text: str, source: str, place: SourcePlace | None, *, merges: bool = False) -> None:
        self._text = text
        self._merges = merges
        self._lines = _LINE_END.split(text)
        self._source = source
        self._place = place
        self._anchors: dict[str, _Part] = {}
        self._open: set[str] = set()
        self._num_trees = 0
        self.problems: list[Problem] = []

    def document(self) -> Node | None:
        """Return the root node of the only document in the text."""
        import yaml  # lazy: PyYAML costs 25 ms

        try:
            self._check_characters()
            self._events = _events(self._text)
            return self._whole()
        except _Refused:
            return None
        except yaml.MarkedYAMLError as error:
            message, hint, mark = explain_syntax(error, self._lines)
            self.problems.append(Problem(message, "yaml-syntax", self._at(mark), hint))
        except yaml.YAMLError as error:
            message = " ".join(str(error).split())
            self.problems.append(Problem(f"not YAML: {message}", "yaml-syntax", self._at(None), ""))
        return None

    def _check_characters(self) -> None:
        if self._text.isascii() and self._text.translate(_ASCII_SPACES).isprintable():
            return  # true of most files; the pattern takes 3 ms to compile
        found = re.search(_UNPRINTABLE, self._text)
        if found is None:
            return
        before = _LINE_END.split(self._text[: found.start()])
        place = self._place or SourcePlace(
            self._source, len(before), len(before[-1]) + 1, self._excerpt(len(before) - 1, len(before[-1]))
        )
        message = f"the character U+{ord(found.group()):04X} is not allowed in YAML"
        self._refuse(
            message, "yaml-syntax", place, 'remove it, or write it with an escape inside double quotes: "\\u..."'
        )

    def _whole(self) -> Node | None:
        import yaml  # lazy: as in `document`

        next(self._events)
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return None
        node = self._part(next(self._events), 0).node
        next(self._events)
        following = next(self._events)
        if isinstance(following, yaml.DocumentStartEvent):
            self._refuse(
                "the file contains several documents",
                "yaml-syntax",
                self._at(following.start_mark),
                "keep one; remove the line `---`",
            )
        return node

    def _part(self, event: yaml.Event, depth: int) -> _Part:
        """Return the part that begins with `event`."""
        import yaml  # lazy: as in `document`

        place = self._at(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), place, depth)
        self._check_depth(depth, place)
        anchor = event.anchor if isinstance(event, yaml.NodeEvent) else None
        if anchor is not None:
            self._open.add(anchor)
            self._anchors.pop(anchor, None)
        if isinstance(event, yaml.ScalarEvent):
            found = _Part(self._leaf(event, place), 1, 0)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_collection_tag(event.tag, place)
            found = self._items(place, depth)
        else:
            self._check_collection_tag(getattr(event, "tag", None), place)
            found = self._branch(place, depth)
        if anchor is not None:
            self._open.discard(anchor)
            self._anchors[anchor] = found
        return found

    def _check_depth(self, depth: int, place: SourcePlace) -> None:
        if depth > MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} levels deep", "yaml-limits", place, "flatten it")

    def _alias(self, anchor: str, place: SourcePlace, depth: int) -> _Part:
        if anchor in self._open:
            self._refuse(f"the alias `*{anchor}` is inside its own anchor", "yaml-limits", place, "write the value out")
        if anchor not in self._anchors:
            close = ", ".join(f"`*{name}`" for name in self._anchors)
            hint = (
                f"the anchors so far are: {close}"
                if close
                else f"write `&{anchor}` before a value first, or quote the text"
            )
            self._refuse(f"unknown alias `*{anchor}`", "yaml-syntax", place, hint)
        part = self._anchors[anchor]
        self._check_depth(depth + part.height, place)
        self._count(part.size, place)
        return part

    def _count(self, size: int, place: SourcePlace) -> None:
        self._num_trees += size
        if self._num_trees > _MAX_TREES:
            self._refuse(
                f"the file expands to more than {_MAX_TREES} values", "yaml-limits", place, "use fewer aliases"
            )

    def _leaf(self, event: yaml.ScalarEvent, place: SourcePlace) -> ScalarNode:
        self._count(1, place)
        text: str = event.value
        if has_surrogate(text):
            # Only the pure parser accepts such an escape.
            self._refuse(
                "an escape sequence is half of a surrogate pair", "yaml-syntax", place, "write the character itself"
            )
        is_plain = event.style is None or event.style == ""
        tag = event.tag
        if tag is not None and tag != "!" and tag not in _TAGS:
            self._note(f"unknown tag `{_tag_text(tag)}`", "yaml-syntax", place, "remove it; tags have no meaning here")
            return ScalarNode(text, text, place)
        if tag in ("!", "tag:yaml.org,2002:str") or (tag is None and not is_plain):
            return ScalarNode(text, text, place)
        try:
            value = resolve_scalar(text)
        except ValueError as error:
            self._note(str(error), "invalid-value", place, "quote it if it is meant as text")
            return ScalarNode(text, text, place)
        if tag is not None and type(value) not in _TAGS[tag]:
            self._note(f"`{text}` does not fit its tag `{_tag_text(tag)}`", "yaml-syntax", place, "remove the tag")
        return ScalarNode(value, text, place)

    def _check_collection_tag(self, tag: str | None, place: SourcePlace) -> None:
        if tag is not None and tag != "!" and tag not in _COLLECTION_TAGS:
            self._note(f"unknown tag `{_tag_text(tag)}`", "yaml-syntax", place, "remove it; tags have no meaning here")

    def _items(self, place: SourcePlace, depth: int) -> _Part:
        import yaml  # lazy: as in `document`

        self._count(1, place)
        parts = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            parts.append(self._part(event, depth + 1))
        return _around(SequenceNode(tuple(part.node for part in parts), place), parts)

    def _branch(self, place: SourcePlace, depth: int) -> _Part:
        import yaml  # lazy: as in `document`

        self._count(1, place)
        entries: dict[str, MappingEntry] = {}
        merged: dict[str, MappingEntry] = {}
        parts = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_place = self._at(event.start_mark)
            is_plain = isinstance(event, yaml.ScalarEvent) and not event.style
            key_tree = self._part(event, depth + 1).node
            is_merge = self._merges and is_plain and isinstance(key_tree, ScalarNode) and key_tree.text == "<<"
            key = None if is_merge else self._key(key_tree, is_plain, key_place)
            part = self._part(next(self._events), depth + 1)
            parts.append(part)
            if is_merge:
                for entry in self._merged(part.node, key_place):
                    merged.setdefault(entry.key, entry)
            if key is None:
                continue
            if key in entries:
                first = entries[key].place
                hint = f"the first one is on line {first.line}" if first.line else "keep one"
                self._note(f"duplicate key `{key}`", "yaml-syntax", key_place, hint)
                continue
            entries[key] = MappingEntry(key, key_place, part.node)
        return _around(MappingNode(tuple((merged | entries).values()), place), parts)

    def _merged(self, node: Node, place: SourcePlace) -> Iterator[MappingEntry]:
        """Yield the entries merged by `<<: *a` or `<<: [*a, *b]`; if a key occurs twice, its first value counts."""
        sources = node.items if isinstance(node, SequenceNode) else (node,)
        for source in sources:
            if not isinstance(source, MappingNode):
                self._note("`<<` can only merge mappings", "yaml-syntax", place, "write `<<: *alias`")
                return
            yield from source.entries

    def _key(self, node: Node, is_plain: bool, place: SourcePlace) -> str | None:
        """Return the text of a key, or None after a problem."""
        if not isinstance(node, ScalarNode):
            self._note(
                "a key must be text, not a list or a mapping",
                "yaml-syntax",
                place,
                "quote it if it begins with `[` or `{`",
            )
        elif node.value is None:
            self._note("a key is missing before `:`", "yaml-syntax", place, "write `key: value`")
        elif node.text == "<<" and is_plain:
            hint = "write the keys out, or use `key: *alias` for a whole value"
            self._note("merging with `<<` is not part of YAML 1.2", "yaml-syntax", place, hint)
        else:
            return node.text
        return None

    def _at(self, mark: YamlMark | None) -> SourcePlace:
        if self._place is not None:
            return self._place
        if mark is None:
            return SourcePlace(self._source)
        return SourcePlace(self._source, mark.line + 1, mark.column + 1, self._excerpt(mark.line, mark.column))

    def _excerpt(self, line: int, column: int) -> str:
        text = self._lines[line] if line < len(self._lines) else ""
        # For a very long line, such as a JSON file, use the part around the column.
        return _cut(f"...{text[column - 40 :]}" if column >= _MAX_EXCERPT - 20 else text.strip())

    def _note(self, message: str, code: str, place: SourcePlace, hint: str) -> None:
        self.problems.append(Problem(message, code, place, hint))

    def _refuse(self, message: str, code: str, place: SourcePlace, hint: str) -> NoReturn:
        self._note(message, code, place, hint)
        raise _Refused


def _around(node: Node, parts: list[_Part]) -> _Part:
    """Return the part for a collection, given the parts of its items."""
    return _Part(node, 1 + sum(part.size for part in parts), 1 + max((part.height for part in parts), default=0))


def _events(text: str) -> Iterator[yaml.Event]:
    """Yield parse events, from libyaml if it is available, otherwise from the slower pure parser."""
    import yaml  # lazy: as in `document`

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    parse: Callable[..., Iterator[yaml.Event]] = yaml.parse
    return parse(text, Loader=loader)


def _tag_text(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_EXCERPT else text[: _MAX_EXCERPT - 3] + "..."
