"""Pages about the public Python names, read from the source without importing it (griffe), as directives of Sphinx.

A page is a package. A name that several packages offer is described on the page of the shortest path; the others say so.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import griffe

from scripts.website.command_reference import plain

__all__ = ["pages"]

# `a, b: text` describes two arguments at once, and types are in the signature.
_OPTIONS = griffe.GoogleOptions(
    warn_unknown_params=False, warn_missing_types=False, returns_multiple_items=False, returns_named_value=False
)
_TITLES = {
    griffe.DocstringSectionKind.parameters: "Arguments",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
    griffe.DocstringSectionKind.raises: "Raises",
}
_MAX_VALUE = 80  # characters of a constant's value; a longer one is left out


def pages(names: Sequence[str], source: Path) -> tuple[dict[str, str], list[str]]:
    """Return a page for each package, under the empty name the list of packages, and what is wrong with docstrings.

    Args:
        names: public names, `package.name`.
        source: folder that holds the packages.
    """
    reference = _Reference(names, source)
    packages = sorted({name.rpartition(".")[0] for name in names})
    found = {"": "\n".join(reference.overview(packages))}
    for path in packages:
        own = [name for name in sorted(names) if name.rpartition(".")[0] == path]
        found[path] = "\n".join(reference.page(path, own))
    return found, reference.problems


class _Reference:
    """The source as griffe reads it, and where each public name is described."""

    def __init__(self, names: Sequence[str], source: Path) -> None:
        top = names[0].partition(".")[0]
        self._tree = griffe.ModulesCollection()
        self._tree[top] = griffe.load(
            top, search_paths=[source], docstring_parser="google", docstring_options=_OPTIONS, allow_inspection=False
        )
        self._homes: dict[str, str] = {}
        for name in sorted(names, key=lambda name: (name.count("."), name)):
            self._homes.setdefault(self._target(name).path, name)
        self._known = {name.rpartition(".")[2] for name in self._homes.values()}
        self.problems: list[str] = []

    def _target(self, path: str) -> griffe.Object:
        found = self._tree[path]
        return found.final_target if isinstance(found, griffe.Alias) else found

    def overview(self, packages: Sequence[str]) -> Iterator[str]:
        """Yield the table of packages."""
        yield from ("", "| package | what it is |", "|---|---|")
        for path in packages:
            docstring = self._tree[path].docstring
            yield f"| [`{path}`](python/{path}.md) | {plain(docstring.value.splitlines()[0] if docstring else '')} |"
        yield ""

    def page(self, path: str, names: Sequence[str]) -> Iterator[str]:
        """Yield the page of a package: its docstring and its names."""
        yield from (f"# `{path}`", "", f"```{{py:module}} {path}", "```", "")
        yield from self._docstring(self._target(path))
        for name in names:
            found, short = self._target(name), name.rpartition(".")[2]
            home = self._homes[found.path]
            if home == name:
                yield from self._object(short, found, fence=":::::")
            else:
                yield from (f"* `{short}`: the same as {{py:obj}}`{home}`", "")

    def _object(self, name: str, found: griffe.Object, *, fence: str) -> Iterator[str]:
        """Yield the description of a name: a directive, the docstring in it and, of a class, its public members."""
        if isinstance(found, griffe.Module):
            yield from (f"**`{name}`** (module)", "")
            yield from self._docstring(found)
        elif isinstance(found, griffe.Class):
            yield from self._class(name, found, fence=fence)
        elif isinstance(found, griffe.Function):
            kind = "method" if isinstance(found.parent, griffe.Class) else "function"
            yield f"{fence}{{py:{kind}}} {self._signature(name, found)}"
            yield from (f":{label}:" for label in ("classmethod", "staticmethod", "async") if label in found.labels)
            yield from ("", *self._docstring(found), fence, "")
        elif isinstance(found, griffe.Attribute):
            yield from self._attribute(name, found, fence=fence)

    def _class(self, name: str, found: griffe.Class, *, fence: str) -> Iterator[str]:
        is_dataclass = any(decorator.callable_path.endswith(".dataclass") for decorator in found.decorators)
        init = found.members.get("__init__")
        signature = self._signature(name, init) if isinstance(init, griffe.Function) and not is_dataclass else name
        yield from (f"{fence}{{py:class}} {signature}", "")
        bases = [self._type(base) for base in found.bases]
        if bases:
            yield from (f"Bases: {', '.join(f'`{base}`' for base in bases)}.", "")
        described = _described_attributes(found)
        yield from self._docstring(found, leaves_out=griffe.DocstringSectionKind.attributes)
        for member, thing in found.members.items():
            if member.startswith("_") or isinstance(thing, griffe.Alias):
                continue
            if isinstance(thing, griffe.Attribute) and member in described and not thing.docstring:
                thing.docstring = griffe.Docstring(described.pop(member))
            is_field = is_dataclass or (isinstance(thing, griffe.Attribute) and _is_for_readers(thing))
            if isinstance(thing, griffe.Function) or (isinstance(thing, griffe.Attribute) and is_field):
                yield from self._object(member, thing, fence=fence[:-1])
        yield from (fence, "")

    def _attribute(self, name: str, found: griffe.Attribute, *, fence: str) -> Iterator[str]:
        """Yield a field, a property or a constant; `Annotated[T, Doc("...")]` is the type T with a docstring."""
        is_member = isinstance(found.parent, griffe.Class)
        kind = "property" if "property" in found.labels else "attribute" if is_member else "data"
        annotation, doc = _without_doc(found.annotation)
        value = _flat(str(found.value)) if found.value is not None and kind != "property" else ""
        yield f"{fence}{{py:{kind}}} {name}"
        if annotation:
            yield f":type: {_flat(self._type(annotation))}"
        if value and len(value) <= _MAX_VALUE and not value.startswith("field("):
            yield f":value: {value}"
        yield from ("", *([plain(doc), ""] if doc else self._docstring(found)), fence, "")

    def _signature(self, name: str, found: griffe.Function) -> str:
        """Return a signature whose public types have the names under which they are described."""
        for parameter in found.parameters:
            if parameter.annotation is not None:
                parameter.annotation = self._type(parameter.annotation)
        if found.returns is not None:
            found.returns = self._type(found.returns)
        return _flat(found.signature(name=name, return_type=found.name != "__init__"))

    def _type(self, expression: str | griffe.Expr) -> str:
        """Return a type as text; where a private type is named like a public one, its whole path."""
        if isinstance(expression, str):
            return expression
        if not isinstance(expression, griffe.ExprName | griffe.ExprAttribute):
            return "".join(self._type(part) for part in expression.iterate(flat=False))
        try:
            path = self._target(expression.canonical_path).path
        except (KeyError, griffe.GriffeError):
            path = expression.canonical_path  # of another package
        is_taken = str(expression).rpartition(".")[2] in self._known
        return self._homes.get(path) or (path if is_taken else str(expression))

    def _docstring(self, found: griffe.Object, leaves_out: griffe.DocstringSectionKind | None = None) -> Iterator[str]:
        """Yield a docstring as Markdown, its sections as lists."""
        kinds = griffe.DocstringSectionKind
        for section in found.docstring.parsed if found.docstring else []:
            if section.kind is leaves_out:
                continue
            if section.kind is kinds.text:
                yield from (plain(section.value), "")
            elif section.kind is kinds.admonition:
                yield from (f"**{section.title}**", "", plain(section.value.description), "")
            elif section.kind in _TITLES:
                yield from (f"**{_TITLES[section.kind]}**", "")
                yield from (_item(_words(section.kind, item, found), item.description) for item in section.value)
                yield ""
            else:
                self.problems.append(f"{found.path}: a docstring with a section of kind {section.kind.value!r}")


def _described_attributes(found: griffe.Class) -> dict[str, str]:
    """Return the descriptions that a class's docstring gives of its attributes."""
    sections = found.docstring.parsed if found.docstring else []
    items = [item for each in sections if each.kind is griffe.DocstringSectionKind.attributes for item in each.value]
    return {name: item.description for item in items for name in _names(item)}


def _names(item: griffe.DocstringParameter | griffe.DocstringAttribute) -> list[str]:
    """Return the names that `a, b: text` describes; of attributes griffe takes the second one for a type."""
    text = f"{item.name}{item.annotation}" if item.name.endswith(",") else item.name
    return [name.strip() for name in text.split(",")]


def _is_for_readers(thing: griffe.Attribute) -> bool:
    """Return whether an attribute of a class is described, a property, or a member of an enum."""
    return thing.docstring is not None or "property" in thing.labels or thing.name.isupper()


def _without_doc(annotation: str | griffe.Expr | None) -> tuple[str | griffe.Expr, str]:
    """Return the type and the description of `Annotated[T, ..., Doc("...")]`; any other annotation as it is."""
    if not isinstance(annotation, griffe.ExprSubscript) or str(annotation.left) != "Annotated":
        return annotation or "", ""
    parts = annotation.slice.elements if isinstance(annotation.slice, griffe.ExprTuple) else [annotation.slice]
    docs = [part for part in parts if isinstance(part, griffe.ExprCall) and str(part.function) == "Doc"]
    return parts[0], "".join(ast.literal_eval(str(doc.arguments[0])) for doc in docs)


def _words(kind: griffe.DocstringSectionKind, item: griffe.DocstringElement, found: griffe.Object) -> str:
    """Return what comes before the description in a list: `a`, `b` of arguments, an error, the begin of a result."""
    if kind is griffe.DocstringSectionKind.raises:
        return f"`{item.annotation}`: "
    if isinstance(item, griffe.DocstringParameter | griffe.DocstringAttribute):
        return ", ".join(f"`{name}`" for name in _names(item)) + ": "
    # griffe takes the words before a colon for a type.
    is_type = item.annotation is None or str(item.annotation) == str(getattr(found, "returns", ""))
    return "" if is_type else f"{plain(str(item.annotation))}: "


def _item(words: str, description: str) -> str:
    return f"* {words}{textwrap.indent(plain(description.strip()), '  ').lstrip()}"


def _flat(text: str) -> str:
    return " ".join(text.split())
