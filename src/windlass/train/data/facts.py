"""Size of the configured data before it is read, for plans and the first log lines. No torch, no numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.core.errors import Problem, SpecError
from windlass.train.data.config import AnySource, DataConfig, SourceConfig, SourceTarget, TokenizerConfig
from windlass.train.data.inputs import Input, find_inputs, source_name
from windlass.train.data.manifest import item_bytes, raw_token_dtype, read_manifest
from windlass.train.data.mixture import rows_of_epoch
from windlass.train.data.tokenization.own_source import find_own
from windlass.train.data.tokenization.readers import text_bytes
from windlass.train.data.tokenization.units import find_ingested
from windlass.train.errors import TrainingError

__all__ = ["DataFacts", "SourceFacts", "describe"]

_BYTES_PER_TOKEN = 4
"""Estimated bytes per token, for English text and usual vocabularies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Size of a source.

    Attributes:
        name: name in errors.
        tokens: number of tokens; estimated from its size if `is_exact` is false.
        documents: number of documents; None if unknown.
        text_bytes: bytes of text that must be tokenised first; 0 if there is none.
        rows: number of rows.
        rows_per_epoch: rows that it contributes to an epoch.
        share: share of the epoch's rows.
        repeats: average number of times that each row occurs in an epoch.
        max_id: largest token id, if a manifest states it.
        is_exact: whether the numbers are exact counts.
    """

    name: str
    tokens: int
    documents: int | None
    text_bytes: int
    rows: int
    rows_per_epoch: int
    share: float
    repeats: float
    max_id: int | None
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """Size of the mixture; `is_exact` is false if the size of any source is an estimate."""

    sources: tuple[SourceFacts, ...]
    rows_per_epoch: int
    tokens_per_epoch: int
    batches_per_epoch: int
    is_exact: bool

    @property
    def tokens(self) -> int:
        """Number of tokens in all sources, each counted once."""
        return sum(source.tokens for source in self.sources)

    @property
    def text_bytes(self) -> int:
        """Number of bytes of text that must be tokenized before the first step."""
        return sum(source.text_bytes for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    tokens: int
    documents: int | None = None
    text_bytes: int = 0
    max_id: int | None = None
    is_exact: bool = True


def describe(config: DataConfig, *, vocab_size: int) -> DataFacts:
    """Return the size of the configured data, from manifests and file sizes. Takes milliseconds.

    Cached tokenised text is counted exactly; other text and Hugging Face datasets are estimated.

    Args:
        vocab_size: the model's vocabulary size; determines the type of token files without a manifest.

    Raises:
        SpecError: data is missing, or the mixture is impossible.
        TrainingError: a manifest is invalid, or a file's size is not a multiple of a token's.
    """
    counts = [_count(source, config, vocab_size) for source in config.sources]
    names = [source_name(source) for source in config.sources]
    rows = [_rows(count, config) for count in counts]
    length = config.sequence_length
    of_epoch = rows_of_epoch(
        rows,
        [source.ratio for source in config.sources],
        [source.max_repeats for source in config.sources],
        names=names,
        total=None if config.epoch_tokens is None else max(1, config.epoch_tokens // length),
    )
    total = sum(of_epoch)
    is_exact = config.layout == "chunk" and all(count.is_exact for count in counts)
    return DataFacts(
        sources=tuple(_facts(*entry, total) for entry in zip(names, counts, rows, of_epoch, strict=True)),
        rows_per_epoch=total,
        tokens_per_epoch=total * length,
        batches_per_epoch=max(1, total // max(1, config.batch_tokens // length)),
        is_exact=is_exact,
    )


def _facts(name: str, count: _Count, rows: int, of_epoch: int, total: int) -> SourceFacts:
    return SourceFacts(
        name=name,
        tokens=count.tokens,
        documents=count.documents,
        text_bytes=count.text_bytes,
        rows=rows,
        rows_per_epoch=of_epoch,
        share=of_epoch / total,
        repeats=of_epoch / rows,
        max_id=count.max_id,
        is_exact=count.is_exact,
    )


def _rows(count: _Count, config: DataConfig) -> int:
    """Return the number of rows from a source, which is exact for chunks of a known number of tokens."""
    rows = count.tokens // config.sequence_length
    if config.layout in ("pad", "bucket"):
        rows = max(rows, count.documents or 0)
    return rows if count.is_exact and config.layout == "chunk" else max(1, rows)


def _count(source: AnySource, config: DataConfig, vocab_size: int) -> _Count:
    if isinstance(source, SourceTarget):
        made = find_own(source, config.tokenizer, config.cache)
        if made is None:
            message = f"{source.target} has not been tokenized yet"
            raise SpecError([Problem(message, "file-not-found", hint="the first run tokenizes it")])
        return _of_folder(made)
    inputs = find_inputs(source)
    counts = [_of_folder(Path(found.path)) for found in inputs if found.kind == "folder"]
    counts += [_of_raw_tokens(found, source, vocab_size) for found in inputs if found.kind == "raw"]
    if text := [found for found in inputs if not found.is_tokens]:
        counts.append(_of_text(text, source, config.tokenizer, config.cache))
    documents = [count.documents for count in counts if count.documents is not None]
    return _Count(
        tokens=sum(count.tokens for count in counts),
        documents=sum(documents) if len(documents) == len(counts) else None,
        text_bytes=sum(count.text_bytes for count in counts),
        max_id=max((count.max_id for count in counts if count.max_id is not None), default=None),
        is_exact=all(count.is_exact for count in counts),
    )


def _of_folder(folder: Path) -> _Count:
    manifest = read_manifest(folder)
    return _Count(tokens=manifest.num_tokens, documents=manifest.num_documents, max_id=manifest.max_id)


def _of_raw_tokens(found: Input, source: SourceConfig, vocab_size: int) -> _Count:
    dtype = raw_token_dtype(vocab_size) if source.dtype == "auto" else source.dtype
    size, item = Path(found.path).stat().st_size, item_bytes(dtype)
    if size % item:
        message = f"{found.path} has {size} bytes, not a multiple of a {dtype} token"
        hint = "it is truncated, or has another type: set `dtype` of the source"
        raise TrainingError(message, hint=hint, code="tokens-broken")
    return _Count(tokens=size // item)


def _of_text(inputs: Sequence[Input], source: SourceConfig, tokenizer: TokenizerConfig, cache: Path | None) -> _Count:
    is_local = all(found.kind != "dataset" for found in inputs)
    made = find_ingested(source, tokenizer, cache) if is_local else None  # opening a dataset takes seconds
    if made is not None:
        return _of_folder(made)
    size = sum(text_bytes(found.path) for found in inputs if found.kind != "dataset")
    per_token = 1 if tokenizer.path == "bytes" else _BYTES_PER_TOKEN
    return _Count(tokens=size // per_token, text_bytes=size, is_exact=False)
