"""Parser for Dockerfiles that finds the images from which they start; pure.

Source: Dockerfile reference, "Parser directives", "Understand how ARG and FROM interact", "Here-documents".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.names import nearest

__all__ = ["Dockerfile", "Stage", "parse_dockerfile"]

_VARIABLE = re.compile(r"\\(.)|\$(?:\{(\w+)(?:(:?[-+])([^}]*))?\}|(\w+))")
_HERE = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(.+?)\s*\Z")
_PREDEFINED = ("TARGETPLATFORM", "TARGETOS", "TARGETARCH", "BUILDPLATFORM", "BUILDOS", "BUILDARCH")
_SCRATCH = "scratch"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """Stage in a Dockerfile: a `FROM` and its instructions.

    Attributes:
        name: the name after `AS`; empty if there is none.
        base: its base with variables expanded: a stage's name, `scratch`, or an image.
        sources: other sources that it copies from or mounts, expanded: stage names and numbers, and images.
    """

    name: str
    base: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instruction:
    line: int
    word: str
    text: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    """Parsed Dockerfile, with the values of its arguments."""

    text: str
    stages: tuple[Stage, ...]
    target: str = ""
    args: Mapping[str, str]
    path: str

    def images(self) -> tuple[str, ...]:
        """Return the external images that the target needs, in file order; pure."""
        found: dict[str, None] = {}
        for stage in self._needed():
            for source in (stage.base, *stage.sources):
                if source != _SCRATCH and self._stage(source, stage) is None:
                    found[source] = None
        return tuple(found)

    def pinned(self, digests: Mapping[str, str]) -> str:
        """Return the text with each image replaced by its full reference in `digests`; pure."""
        lines = self.text.split("\n")
        scope: dict[str, str] = dict(self.args)
        names: set[str] = set()
        for each in _instructions(self.text):
            if each.word == "FROM":
                own = re.search(r"\sAS\s+(\S+)\s*\Z", each.text, re.IGNORECASE)
                written = _from_words(each.text)[0]
                _rewrite(lines, each, written, scope, {} if written.lower() in names else digests)
                if own:
                    names.add(own.group(1).lower())
            elif each.word in ("COPY", "RUN", "ADD"):
                for written in _from_options(each):
                    _rewrite(lines, each, written, scope, {} if written.lower() in names else digests)
        return "\n".join(lines)

    def _needed(self) -> list[Stage]:
        """Return the stages from which the target is built, including itself."""
        start = self.stages[-1] if not self.target else self._target()
        found, queue = [start], [start]
        while queue:
            stage = queue.pop()
            for source in (stage.base, *stage.sources):
                other = self._stage(source, stage)
                if other is not None and other not in found:
                    found.append(other)
                    queue.append(other)
        return [stage for stage in self.stages if stage in found]

    def _target(self) -> Stage:
        for stage in self.stages:
            if stage.name.lower() == self.target.lower():
                return stage
        if self.target.isdigit() and int(self.target) < len(self.stages):
            return self.stages[int(self.target)]
        names = [stage.name for stage in self.stages if stage.name]
        close = nearest(self.target, names)
        known = f"the stages are: {', '.join(names)}" if names else "name a stage: FROM ... AS NAME"
        raise PreconditionError(
            f"{self.path} has no stage `{self.target}`",
            hint=f"did you mean `{close}`?" if close else known,
            code="unknown-name",
        )

    def _stage(self, source: str, of: Stage) -> Stage | None:
        """Return the stage before `of` that a source names; None if it names an image."""
        before = self.stages[: self.stages.index(of)]
        for stage in reversed(before):
            if stage.name and stage.name.lower() == source.lower():
                return stage
        return before[int(source)] if source.isdigit() and int(source) < len(before) else None


def parse_dockerfile(
    text: str, *, path: str, args: Mapping[str, str], target: str = "", platform: str = ""
) -> Dockerfile:
    """Read a Dockerfile.

    Args:
        path: the file's name in errors.
        args: build arguments, which override the defaults of `ARG` lines.
        platform: value for the builder's predefined arguments, such as TARGETARCH.

    Raises:
        PreconditionError: it has no `FROM`, or an image's name is empty after its variables are expanded.
    """
    scope = _platform_args(platform) | {name: args[name] for name in args}
    stages: list[Stage] = []
    for each in _instructions(text):
        if each.word == "ARG" and not stages:
            _declare(each.text, scope, args)
        elif each.word == "FROM":
            stages.append(_stage(each, scope, path))
        elif stages and each.word in ("COPY", "ADD", "RUN"):
            found = tuple(_fill(written, scope) for written in _from_options(each))
            last = stages[-1]
            stages[-1] = Stage(name=last.name, base=last.base, sources=last.sources + found)
    if not stages:
        raise PreconditionError(
            f"{path} has no FROM line",
            hint="start with the base image: FROM python:3.12",
            code="invalid-file",
        )
    made = Dockerfile(text=text, stages=tuple(stages), target=target, args=scope, path=path)
    made.images()
    return made


def _stage(each: _Instruction, scope: Mapping[str, str], path: str) -> Stage:
    written, name = _from_words(each.text)
    base = _fill(written, scope)
    if not base:
        problem = f"`FROM {each.text}` names no image" + (f": `{written}` is empty" if written else "")
        raise PreconditionError(
            f"{path}:{each.line}: {problem}",
            hint="give the argument a default (ARG NAME=value, before the first FROM), or a value in `env.image.args`",
            code="invalid-file",
        )
    return Stage(name=name, base=base)


def _from_words(text: str) -> tuple[str, str]:
    """Return the image in a FROM line, and the stage's name."""
    words = [word for word in text.split() if not word.startswith("--")]
    name = words[2] if len(words) > 2 and words[1].upper() == "AS" else ""
    return (words[0] if words else ""), name


def _from_options(each: _Instruction) -> Iterator[str]:
    """Yield the sources of `COPY --from=` and `RUN --mount=...,from=`, as written."""
    for word in each.text.split():
        if not word.startswith("--"):
            return
        if word.startswith("--from="):
            yield word.removeprefix("--from=")
        elif word.startswith("--mount="):
            for part in word.removeprefix("--mount=").split(","):
                if part.startswith("from="):
                    yield part.removeprefix("from=")


def _rewrite(
    lines: list[str], each: _Instruction, written: str, scope: Mapping[str, str], digests: Mapping[str, str]
) -> None:
    reference = digests.get(_fill(written, scope))
    if reference is None:
        return
    pattern = re.compile(r"(?<![^\s=,])" + re.escape(written) + r"(?![^\s,])")
    for number in range(each.first, each.last + 1):
        lines[number], count = pattern.subn(lambda _: reference, lines[number], count=1)
        if count:
            return


def _instructions(text: str) -> Iterator[_Instruction]:
    """Yield the instructions, with continued lines joined, without comments and here-documents."""
    lines = text.split("\n")
    escape = _escape(lines)
    number = 0
    while number < len(lines):
        first = number
        parts: list[str] = []
        while number < len(lines):
            line = lines[number].strip()
            number += 1
            if line.startswith("#") or (parts and not line):
                continue
            is_continued = line.endswith(escape)
            parts.append(line[:-1] if is_continued else line)
            if not is_continued:
                break
        joined = " ".join(parts).strip()
        last = number - 1
        word, _, rest = joined.partition(" ")
        if word.upper() in ("RUN", "COPY", "ADD"):
            for mark in _HERE.findall(rest):
                while number < len(lines) and lines[number].strip() != mark[1]:
                    number += 1
                number += 1
        if joined:
            yield _Instruction(line=first + 1, word=word.upper(), text=rest.strip(), first=first, last=last)


def _escape(lines: Sequence[str]) -> str:
    for line in lines:
        found = _DIRECTIVE.match(line.strip())
        if found is None:
            break
        if found.group(1).lower() == "escape":
            return found.group(2)
    return "\\"


def _declare(text: str, scope: dict[str, str], args: Mapping[str, str]) -> None:
    for word in text.split():
        name, has_default, default = word.partition("=")
        if name not in args and has_default:
            scope[name] = _fill(default.strip("\"'"), scope)


def _fill(text: str, scope: Mapping[str, str]) -> str:
    """Expand variables, including `${x:-default}` and `${x:+other}`; unknown ones are empty."""

    def value(found: re.Match[str]) -> str:
        escaped, name, how, other, plain = found.groups()
        if escaped is not None:
            return str(escaped)
        known = scope.get(name or plain, "")
        if how in (":-", "-"):
            return known or _fill(other, scope)
        if how in (":+", "+"):
            return _fill(other, scope) if known else ""
        return known

    return _VARIABLE.sub(value, text.strip("\"'"))


def _platform_args(platform: str) -> dict[str, str]:
    system, _, arch = platform.partition("/")
    values = (platform, system, arch) * 2
    return dict(zip(_PREDEFINED, values, strict=True)) if platform else {}
