"""Data sources, and builds that prepare data once, before GPUs are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from windlass.config.annotations import Diagnostic, Doc, Key, OneOrMany, Range, SizeText
from windlass.core.dataclass import dataclass
from windlass.core.names import nearest
from windlass.spec.command import Command

__all__ = ["DATA_SCHEMES", "DataSource"]

DATA_SCHEMES = ("file", "store", "s3", "gs", "hf", "beaker", "run", "http", "https")
_FORMS = ", ".join(f"{scheme}:" for scheme in DATA_SCHEMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Named input data: a `source`, or data built from another source; pinned by digest."""

    source: Annotated[str, Doc("Location: `file:PATH`, `s3://...`, `hf:NAME`, `run:RUN/PATH`, ...")] = ""
    from_: Annotated[str, Key("from"), Doc("Name of another data entry, or a source, that `build` reads.")] = ""
    build: Annotated[Command | None, Doc("Command that writes the data to ${out}; cached by content.")] = None
    code: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc("Files and folders of the code that `build` uses; changes to other files do not rebuild the data."),
    ] = ()
    cpus: Annotated[float | None, Range(above=0), Doc("CPU cores for the build.")] = None
    memory: Annotated[int | None, SizeText(), Range(min=1), Doc("Memory for the build.")] = None
    adapter: Annotated[
        Literal["none", "cache-dataset-only"],
        Doc("Makes `build` from the command of a task that supports this convention."),
    ] = "none"
    task: Annotated[str, Doc("Task whose command `adapter` uses; empty: the only task.")] = ""
    drop: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Flags of that command that do not affect the data, such as `--lr`.")
    ] = ()

    @classmethod
    def from_shorthand(cls, value: str) -> DataSource:
        """Read the short form, such as `file:data/prompts.jsonl`."""
        return cls(source=value)

    def to_shorthand(self) -> str | None:
        """Return the short form, or None if there is none."""
        return self.source if self == DataSource(source=self.source) and self.source else None

    @property
    def is_built(self) -> bool:
        """Return whether the data is built by a command."""
        return self.build is not None or self.adapter != "none"

    @property
    def scheme(self) -> str:
        """Return the scheme (`file`, `s3`, ...) of a source; empty for built data."""
        return self.source.partition(":")[0]

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        yield from self._conflicts()
        if self.source:
            yield from check_source("source", self.source)
        if ":" in self.from_:
            yield from check_source("from", self.from_)

    def _conflicts(self) -> Iterator[Diagnostic]:
        if self.source and (self.from_ or self.is_built):
            hint = "write the source as `from`, next to `build`" if self.build is not None else "keep one of them"
            yield "source", "data has both `source` and `from` or `build`", "conflicting-options", hint
        elif self.adapter != "none" and (self.build is not None or self.from_):
            message = "`adapter` makes the command itself, so `build` and `from` cannot be set"
            yield "adapter", message, "conflicting-options", "keep `adapter`, or `build`"
        elif self.from_ and self.build is None:
            hint = "add `build: COMMAND`, or write the source alone"
            yield "from", "data has `from` but no `build`", "conflicting-options", hint
        elif not self.source and not self.is_built:
            yield (
                "",
                "data has no source",
                "conflicting-options",
                "write `file:PATH`, or `{from: NAME, build: COMMAND}`",
            )
        if self.build is not None and not self.build:
            yield "build", "`build` is empty", "invalid-value", "write the command, such as `python tokenise.py ${out}`"
        for key, is_used in _USED_BY_BUILDS.items():
            if getattr(self, key) and not (self.adapter != "none" if is_used == "adapter" else self.is_built):
                hint = f"remove it, or add `{is_used}`"
                yield key, f"`{key}` has no effect without `{is_used}`", "setting-unused", hint


_USED_BY_BUILDS = {"code": "build", "cpus": "build", "memory": "build", "task": "adapter", "drop": "adapter"}


def check_source(key: str, source: str) -> Iterator[Diagnostic]:
    """Check that a source has a known scheme and a path."""
    scheme, colon, rest = source.partition(":")
    if not colon:
        yield (
            key,
            f"invalid data source `{source}`",
            "unsupported-source",
            f"did you mean `file:{source}`? a source begins with one of {_FORMS}",
        )
    elif scheme not in DATA_SCHEMES:
        close = nearest(scheme, DATA_SCHEMES)
        hint = f"did you mean `{close}:`?" if close else f"a source begins with one of {_FORMS}"
        yield key, f"unknown scheme `{scheme}:` in the data source `{source}`", "unsupported-source", hint
    elif not rest.strip("/"):
        yield (
            key,
            f"the data source `{source}` has no path",
            "unsupported-source",
            f"write the path, such as `{scheme}:PATH`",
        )
