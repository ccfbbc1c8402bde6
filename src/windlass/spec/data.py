"""Where data comes from, and how derived data is built once before GPUs are taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from windlass.config import Doc, Finding, Key
from windlass.core.names import nearest
from windlass.spec.command import Command

__all__ = ["DATA_SCHEMES", "DataSource"]

DATA_SCHEMES = ("file", "s3", "gs", "hf", "beaker", "run", "http", "https")
_FORMS = ", ".join(f"{scheme}:" for scheme in DATA_SCHEMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """A named input: a `source`, or something built from another one; pinned by digest either way."""

    source: Annotated[str, Doc("Where it lies: `file:PATH`, `s3://...`, `hf:NAME`, `run:RUN/PATH`, ...")] = ""
    from_: Annotated[str, Key("from"), Doc("Name of another data entry, or a source, that `build` reads.")] = ""
    build: Annotated[Command | None, Doc("Command that writes the data to ${out}; cached by content.")] = None

    @classmethod
    def from_shorthand(cls, value: str) -> DataSource:
        """The short form `file:data/prompts.jsonl`."""
        return cls(source=value)

    def to_shorthand(self) -> str | None:
        """The short form, where there is one."""
        return self.source if self.source and not self.from_ and self.build is None else None

    @property
    def scheme(self) -> str:
        """`file`, `s3`, ... of a plain source; empty for built data."""
        return self.source.partition(":")[0]

    def check(self) -> Iterator[Finding]:
        """What no single field can see."""
        if self.source and (self.from_ or self.build is not None):
            hint = "write the source as `from`, next to `build`" if self.build is not None else "keep one of them"
            yield "source", "data has both `source` and `from` or `build`", "data-conflict", hint
        elif self.from_ and self.build is None:
            yield (
                "from",
                "data has `from` but no `build`",
                "data-conflict",
                "add `build: COMMAND`, or write the source alone",
            )
        elif not self.source and self.build is None:
            yield "", "data has no source", "data-conflict", "write `file:PATH`, or `{from: NAME, build: COMMAND}`"
        if self.source:
            yield from check_source("source", self.source)
        if ":" in self.from_:
            yield from check_source("from", self.from_)


def check_source(key: str, source: str) -> Iterator[Finding]:
    """Findings about a source text: its scheme and that something follows it."""
    scheme, colon, rest = source.partition(":")
    if not colon:
        yield (
            key,
            f"`{source}` is no data source",
            "data-scheme",
            f"did you mean `file:{source}`? a source begins with one of {_FORMS}",
        )
    elif scheme not in DATA_SCHEMES:
        close = nearest(scheme, DATA_SCHEMES)
        hint = f"did you mean `{close}:`?" if close else f"a source begins with one of {_FORMS}"
        yield key, f"unknown scheme `{scheme}:` in the data source `{source}`", "data-scheme", hint
    elif not rest.strip("/"):
        yield key, f"nothing follows `{source}`", "data-scheme", f"write where the data lies, such as `{scheme}:PATH`"
