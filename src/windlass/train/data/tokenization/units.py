"""What an ingestion does: its inputs, its key, its units. Imports neither torch nor numpy."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from windlass.core.errors import Problem, SpecError
from windlass.train.data.config import SourceConfig, TokenizerConfig
from windlass.train.data.inputs import Input, find_inputs
from windlass.train.data.manifest import MANIFEST, DType, TokenFile
from windlass.train.data.tokenization.datasets_library import dataset_files
from windlass.train.data.tokenization.readers import Span, SpanKind, cut_spans
from windlass.train.data.tokenizer import Tokenizer, load_tokenizer

__all__ = ["IngestPlan", "Unit", "UnitResult", "WorkerSettings", "cache_folder", "find_ingested", "identity_of"]

_VERSION = 1
_UNIT_BYTES = (1 << 20, 1 << 25)
_FEW_UNITS = 64
_MAX_UNITS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Spans that make one pair of files."""

    number: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult:
    """What a unit made; None where it held no text."""

    number: int
    file: TokenFile | None
    max_id: int

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> UnitResult:
        """From the JSON of `asdict`."""
        file = None if data["file"] is None else TokenFile(**data["file"])
        return cls(number=int(data["number"]), file=file, max_id=int(data["max_id"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What all units of an ingestion share."""

    folder: str
    dtype: DType
    text_field: str
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """What shall be made of what."""

    files: tuple[tuple[SpanKind, str], ...]
    identity: tuple[tuple[str, int, int], ...]
    source: SourceConfig
    tokenizer: Tokenizer
    tokenizer_config: TokenizerConfig

    @classmethod
    def make(cls, source: SourceConfig, config: TokenizerConfig, root: Path) -> IngestPlan:
        tokenizer = load_tokenizer(config)
        inputs = [found for found in find_inputs(source) if not found.is_tokens]
        files = tuple(file for found in inputs for file in _files(found, source, root))
        if not files:
            hint = "give text, JSONL, Parquet or a dataset"
            raise SpecError([Problem(f"{source.path[0]} has no text to make tokens from", "data-missing", hint=hint)])
        return cls(
            files=files, identity=identity_of(files), source=source, tokenizer=tokenizer, tokenizer_config=config
        )

    @property
    def key(self) -> str:
        """Of all that decides which tokens come out."""
        parts = (_VERSION, self.identity, self.tokenizer.identity, _marks(self.tokenizer), self.source.text_field)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def units(self) -> list[Unit]:
        """Spans in groups of about the same size; the same at every call."""
        total = sum(size for _, size, _ in self.identity)
        piece_bytes = max(_UNIT_BYTES[0], min(total // _FEW_UNITS, _UNIT_BYTES[1]), total // _MAX_UNITS)
        spans = (span for kind, path in self.files for span in cut_spans(kind, path, piece_bytes))
        return [Unit(number=number, spans=group) for number, group in enumerate(_groups(spans, piece_bytes))]


def cache_folder(stated: Path | None) -> Path:
    """The folder for tokens made from text; None: below the user's cache."""
    if stated is not None:
        return stated.expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windlass" / "tokens"


def find_ingested(source: SourceConfig, tokenizer: TokenizerConfig, cache: Path | None = None) -> Path | None:
    """The folder that `ingest` would return, if it is there already."""
    root = cache_folder(cache)
    folder = root / IngestPlan.make(source, tokenizer, root).key
    return folder if (folder / MANIFEST).is_file() else None


def _marks(tokenizer: Tokenizer) -> dict[str, int | None]:
    """The marks of a tokenizer that end up in token files."""
    return {"eos_id": tokenizer.ids.eos_id, "bos_id": tokenizer.ids.bos_id}


def _files(found: Input, source: SourceConfig, root: Path) -> list[tuple[SpanKind, str]]:
    if found.kind == "dataset":
        return dataset_files(found.path, source, root)
    return [(cast("SpanKind", found.kind), str(Path(found.path).absolute()))]


def identity_of(files: Sequence[tuple[SpanKind, str]]) -> tuple[tuple[str, int, int], ...]:
    """Path, size and time of change of each file."""
    found = [(path, os.stat(path)) for _, path in files]
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in found)


def _groups(spans: Iterable[Span], piece_bytes: int) -> Iterator[tuple[Span, ...]]:
    """Neighbouring spans joined up to about `piece_bytes`."""
    group: list[Span] = []
    size = 0
    for span in spans:
        if group and size + span.num_bytes > piece_bytes:
            yield tuple(group)
            group, size = [], 0
        group.append(span)
        size += span.num_bytes
    if group:
        yield tuple(group)
