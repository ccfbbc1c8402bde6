"""Plan of an ingestion: its inputs, its key and its units. Imports neither torch nor numpy."""

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
from windlass.train.data.tokenization.readers import Span, SpanKind, cut_spans, require
from windlass.train.data.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "IngestPlan",
    "Unit",
    "UnitResult",
    "WorkerSettings",
    "cache_folder",
    "dataset_files",
    "find_ingested",
    "identity_of",
]

_VERSION = 1
_UNIT_BYTES = (1 << 20, 1 << 25)
_FEW_UNITS = 64
_MAX_UNITS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Spans that are tokenized into one pair of files."""

    number: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult:
    """Files written by a unit, or None if it contained no text."""

    number: int
    file: TokenFile | None
    max_id: int

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> UnitResult:
        """Parse what `asdict` returns."""
        file = None if data["file"] is None else TokenFile(**data["file"])
        return cls(number=int(data["number"]), file=file, max_id=int(data["max_id"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings shared by all units of an ingestion."""

    folder: str
    dtype: DType
    text_field: str
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """Units of an ingestion, and the key of its result."""

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
            hint = "use text, JSONL, Parquet or a dataset"
            raise SpecError([Problem(f"{source.path[0]} has no text to tokenize", "data-too-small", hint=hint)])
        return cls(
            files=files, identity=identity_of(files), source=source, tokenizer=tokenizer, tokenizer_config=config
        )

    @property
    def key(self) -> str:
        """Digest of everything that determines the tokens."""
        parts = (_VERSION, self.identity, self.tokenizer.identity, _marks(self.tokenizer), self.source.text_field)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def units(self) -> list[Unit]:
        """Group the spans into units of similar size; deterministic."""
        total = sum(size for _, size, _ in self.identity)
        piece_bytes = max(_UNIT_BYTES[0], min(total // _FEW_UNITS, _UNIT_BYTES[1]), total // _MAX_UNITS)
        spans = (span for kind, path in self.files for span in cut_spans(kind, path, piece_bytes))
        return [Unit(number=number, spans=group) for number, group in enumerate(_groups(spans, piece_bytes))]


def cache_folder(stated: Path | None) -> Path:
    """Return the folder for tokenized text, by default below the user's cache folder."""
    if stated is not None:
        return stated.expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windlass" / "tokens"


def find_ingested(source: SourceConfig, tokenizer: TokenizerConfig, cache: Path | None = None) -> Path | None:
    """Return the folder that `ingest` creates, if it exists."""
    root = cache_folder(cache)
    folder = root / IngestPlan.make(source, tokenizer, root).key
    return folder if (folder / MANIFEST).is_file() else None


def _marks(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return those of the tokenizer's special ids that occur in token files."""
    return {"eos_id": tokenizer.ids.eos_id, "bos_id": tokenizer.ids.bos_id}


def _files(found: Input, source: SourceConfig, root: Path) -> list[tuple[SpanKind, str]]:
    if found.kind == "dataset":
        return dataset_files(found.path, source, root)
    return [(cast("SpanKind", found.kind), str(Path(found.path).absolute()))]


def identity_of(files: Sequence[tuple[SpanKind, str]]) -> tuple[tuple[str, int, int], ...]:
    """Return the path, size and modification time of each file."""
    found = [(path, os.stat(path)) for _, path in files]
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in found)


def _groups(spans: Iterable[Span], piece_bytes: int) -> Iterator[tuple[Span, ...]]:
    """Yield groups of neighbouring spans of about `piece_bytes`."""
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


_SAVED = ("dataset_dict.json", "state.json")


def dataset_files(name: str, source: SourceConfig, cache: Path) -> list[tuple[SpanKind, str]]:
    """Return the files of a dataset on the hub or in a folder, downloading and preparing them unless cached.

    A part of a split (`train[:1%]`) has no files, so it is written below `cache` once.

    Raises:
        SpecError: there is no such dataset (`file-not-found`).
        WindlassError: the library is missing (`extra-missing`).
    """
    try:
        import datasets  # lazy: 2 s, only for `hf:`
    except ImportError as error:
        raise require("datasets", f"hf:{name}") from error
    try:
        found = _load(datasets, name, source)
    except Exception as error:
        hint = "check its name, `split` and `subset`; set HF_TOKEN for a private one"
        raise SpecError([Problem(f"cannot read the dataset {name}: {error}", "file-not-found", hint=hint)]) from error
    paths = [entry["filename"] for entry in found.cache_files]
    if paths and found._indices is None and _num_rows(paths) == len(found):
        return [("arrow", path) for path in paths]
    return [("parquet", _written(found, cache))]


def _load(datasets: Any, name: str, source: SourceConfig) -> Any:
    place = Path(name).expanduser()
    if not any((place / mark).is_file() for mark in _SAVED):
        return datasets.load_dataset(str(place) if place.exists() else name, source.subset or None, split=source.split)
    found = datasets.load_from_disk(str(place))
    return found[source.split] if isinstance(found, datasets.DatasetDict) else found


def _num_rows(paths: list[str]) -> int:
    import pyarrow as pa  # lazy: installed with `datasets`

    count = 0
    for path in paths:
        with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
            count += sum(batch.num_rows for batch in reader)
    return count


def _written(found: Any, cache: Path) -> str:
    """Write a Parquet file with exactly these rows, named after their fingerprint in `datasets`."""
    path = cache / "datasets" / f"{found._fingerprint}.parquet"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        found.to_parquet(str(hidden))
        os.replace(hidden, path)
    return str(path)
