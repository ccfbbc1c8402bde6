"""Settings of data: sources of tokens and how they are cut into rows; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias

from windlass.config import Diagnostic, Doc, OneOrMany, Range
from windlass.train.targets.config import TargetConfig

__all__ = ["AnyData", "AnySource", "DataConfig", "LoaderTarget", "SourceConfig", "SourceTarget", "TokenizerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer that made the tokens, or shall make them."""

    path: Annotated[str, Doc("A `tokenizer.json`, a folder with one, `bytes`, or a name on the Hugging Face hub.")] = ""
    eos_id: Annotated[int | None, Range(min=0), Doc("Ends a document; null: as the tokenizer says.")] = None
    pad_id: Annotated[int | None, Range(min=0), Doc("Fills rows; null: as the tokenizer says, else `eos_id`.")] = None
    bos_id: Annotated[int | None, Range(min=0), Doc("Begins a document; null: none.")] = None


_Ratio: TypeAlias = Annotated[
    float | None, Range(above=0), Doc("Share of the mixture, relative to the others; null for all: by size.")
]
_Repeats: TypeAlias = Annotated[
    float, Range(above=0, is_endless=True), Doc("Maximum repetitions of a token in an epoch.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """A source of text or tokens, and its share of the mixture."""

    IS_ASSUMED: ClassVar[bool] = True

    kind: Literal["files"] = "files"
    path: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc("Token files or folders, text, JSONL, Parquet (globs work), or `hf:NAME`; the ending says which."),
    ]
    ratio: _Ratio = None
    max_repeats: _Repeats = 4.0
    text_field: Annotated[str, Doc("Field of JSONL, Parquet and datasets that holds the text.")] = "text"
    split: Annotated[str, Doc("Split of a dataset of the hub, such as `train[:1%]`.")] = "train"
    subset: Annotated[str, Doc("Subset (configuration) of a dataset of the hub; empty: its only one.")] = ""
    dtype: Annotated[
        Literal["auto", "uint8", "uint16", "uint32", "uint64"], Doc("Type of raw token files; auto: by the vocabulary.")
    ] = "auto"
    label_mask: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc("Files of booleans (a byte each) for token files, in the same order: where a token counts in the loss."),
    ] = ()

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges do not express."""
        if not all(self.path) or not self.path:
            yield (
                "path",
                "a data source has an empty `path`",
                "data-missing",
                "set it to files, a folder, a glob or `hf:NAME`",
            )
        yield from _endless(self.ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTarget(TargetConfig):
    """Documents that code of your own gives: texts, or lists of token ids. Made into token files once."""

    ratio: _Ratio = None
    max_repeats: _Repeats = 4.0

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges do not express."""
        yield from _endless(self.ratio)


def _endless(ratio: float | None) -> Iterator[Diagnostic]:
    if ratio is not None and isinf(ratio):
        yield "ratio", "`ratio` is infinite", "out-of-range", "write a number, such as 1"


AnySource: TypeAlias = SourceConfig | SourceTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The mixture, and the rows made from it."""

    IS_ASSUMED: ClassVar[bool] = True

    kind: Literal["tokens"] = "tokens"
    sources: Annotated[tuple[AnySource, ...], Doc("Sources of the mixture.")]
    tokenizer: Annotated[TokenizerConfig, Doc("Needed for text, and to find the ends of documents.")] = (
        TokenizerConfig()
    )
    sequence_length: Annotated[int, Range(min=2), Doc("Tokens per row.")] = 1024
    layout: Annotated[
        Literal["chunk", "pack", "pad", "bucket"],
        Doc(
            "chunk: documents end to end, cut anywhere; pack: whole documents, best fit; pad: one document a row; "
            "bucket: one document a row, rows of a batch cut to the next power of two."
        ),
    ] = "chunk"
    long_documents: Annotated[
        Literal["split", "truncate", "drop"], Doc("Handling of documents longer than a row, in every layout but chunk.")
    ] = "split"
    mask_documents: Annotated[bool, Doc("Limit attention to a token's own document.")] = False
    batch_tokens: Annotated[int, Range(min=1), Doc("Tokens per optimiser step over all processes, padding included.")]
    microbatch_tokens: Annotated[
        int | None, Range(min=1), Doc("Tokens per process in a microbatch; null: its whole share of the batch.")
    ] = None
    epoch_tokens: Annotated[
        int | None, Range(min=1), Doc("Tokens per epoch of the mixture, padding included; null: as many as there are.")
    ] = None
    is_shuffled: Annotated[bool, Doc("Shuffle rows in each epoch.")] = True
    seed: Annotated[int | None, Range(min=0), Doc("Seed of the order; null: the recipe's.")] = None
    prefetch: Annotated[int, Range(min=0), Doc("Batches prefetched by a thread; 0: none.")] = 2
    cache: Annotated[Path | None, Doc("Folder for tokens made from text; null: in the user's cache.")] = None
    num_workers: Annotated[int | None, Range(min=1), Doc("Processes that tokenize text; null: one per CPU.")] = None
    allow_changes: Annotated[bool, Doc("Allow resuming from a checkpoint of other data, at the same row number.")] = (
        False
    )

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        for name, tokens in (("batch_tokens", self.batch_tokens), ("microbatch_tokens", self.microbatch_tokens)):
            if tokens is not None and tokens % self.sequence_length:
                message = f"{name} {tokens} is not a multiple of sequence_length {self.sequence_length}"
                yield (
                    name,
                    message,
                    "shape-conflict",
                    f"try {max(1, round(tokens / self.sequence_length)) * self.sequence_length}",
                )
        if self.microbatch_tokens and self.batch_tokens % self.microbatch_tokens:
            message = (
                f"batch_tokens {self.batch_tokens} is not a multiple of microbatch_tokens {self.microbatch_tokens}"
            )
            more = max(1, round(self.batch_tokens / self.microbatch_tokens)) * self.microbatch_tokens
            yield "batch_tokens", message, "shape-conflict", f"try {more}"
        with_ratio = [source.ratio is not None for source in self.sources]
        if any(with_ratio) and not all(with_ratio):
            message = f"source {with_ratio.index(False)} has no `ratio`, others have one"
            yield "sources", message, "shape-conflict", "set a ratio for all of them, or for none"
        if not self.sources:
            yield "sources", "no data source", "data-missing", "add `sources: [{path: FILE}]`"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTarget(TargetConfig):
    """A loader of your own: it gives the batches, in place of sources, tokenizer and rows."""

    batch_tokens: Annotated[
        int, Range(min=1), Doc("Tokens (or samples) per step over all processes; converts lengths.")
    ]
    sequence_length: Annotated[int, Range(min=1), Doc("Tokens per row; 1 for samples.")] = 1
    microbatch_tokens: Annotated[
        int | None, Range(min=1), Doc("Tokens per process in a microbatch; null: its whole share of the batch.")
    ] = None


AnyData: TypeAlias = DataConfig | LoaderTarget
