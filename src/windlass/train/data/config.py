"""Data settings: sources of tokens, and how to cut them into rows; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias

from windlass.config.annotations import Diagnostic, Doc, OneOrMany, Range
from windlass.train.targets.config import TargetConfig

__all__ = ["AnyData", "AnySource", "DataConfig", "LoaderTarget", "SourceConfig", "SourceTarget", "TokenizerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """Tokenizer that created the tokens, or is to create them."""

    path: Annotated[str, Doc("A `tokenizer.json`, a folder with one, `bytes`, or a name on the Hugging Face hub.")] = ""
    eos_id: Annotated[
        int | None, Range(min=0), Doc("Id of the token that ends a document; if null, the tokenizer's.")
    ] = None
    pad_id: Annotated[
        int | None, Range(min=0), Doc("Id of the padding token; if null, the tokenizer's or else `eos_id`.")
    ] = None
    bos_id: Annotated[
        int | None, Range(min=0), Doc("Id of the token that begins a document; if null, there is none.")
    ] = None


_Ratio: TypeAlias = Annotated[
    float | None,
    Range(above=0),
    Doc("Weight in the mixture, relative to the other sources; if null for all, their sizes."),
]
_Repeats: TypeAlias = Annotated[
    float, Range(above=0, is_endless=True), Doc("Maximum number of times that a token is repeated in an epoch.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Source of text or tokens, and its weight in the mixture."""

    IS_ASSUMED: ClassVar[bool] = True

    kind: Literal["files"] = "files"
    path: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc(
            "Token files or folders; text, JSONL or Parquet files (or globs of these); or `hf:NAME`. The suffix selects the format."
        ),
    ]
    ratio: _Ratio = None
    max_repeats: _Repeats = 4.0
    text_field: Annotated[str, Doc("Field that contains the text in JSONL, Parquet and datasets.")] = "text"
    split: Annotated[str, Doc("Split of a Hugging Face dataset, such as `train[:1%]`.")] = "train"
    subset: Annotated[
        str, Doc("Subset (configuration) of a Hugging Face dataset; may be empty if the dataset has only one.")
    ] = ""
    dtype: Annotated[
        Literal["auto", "uint8", "uint16", "uint32", "uint64"],
        Doc("Integer type of raw token files; `auto` derives it from the vocabulary size."),
    ] = "auto"
    label_mask: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc(
            "Files of booleans (one byte each) for the token files, in the same order: whether a token counts in the loss."
        ),
    ] = ()

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        if not all(self.path) or not self.path:
            yield (
                "path",
                "a data source has an empty `path`",
                "invalid-value",
                "set it to files, a folder, a glob or `hf:NAME`",
            )
        yield from _endless(self.ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTarget(TargetConfig):
    """Documents from your own code, as texts or lists of token ids; converted to token files once."""

    ratio: _Ratio = None
    max_repeats: _Repeats = 4.0

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        yield from _endless(self.ratio)


def _endless(ratio: float | None) -> Iterator[Diagnostic]:
    if ratio is not None and isinf(ratio):
        yield "ratio", "`ratio` is infinite", "invalid-value", "write a number, such as 1"


AnySource: TypeAlias = SourceConfig | SourceTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Mixture of sources, and the rows that are cut from it."""

    IS_ASSUMED: ClassVar[bool] = True

    kind: Literal["tokens"] = "tokens"
    sources: Annotated[tuple[AnySource, ...], Doc("Sources that make up the mixture.")]
    tokenizer: Annotated[TokenizerConfig, Doc("Tokenizer, required for text and to find the ends of documents.")] = (
        TokenizerConfig()
    )
    sequence_length: Annotated[int, Range(min=2), Doc("Tokens per row.")] = 1024
    layout: Annotated[
        Literal["chunk", "pack", "pad", "bucket"],
        Doc(
            "`chunk` joins documents end to end and cuts anywhere; `pack` fits whole documents into rows; `pad` puts one "
            "document in each row; `bucket` does too, and cuts the rows of a batch to the next power of two."
        ),
    ] = "chunk"
    long_documents: Annotated[
        Literal["split", "truncate", "drop"],
        Doc("How to handle documents longer than a row, in every layout but chunk."),
    ] = "split"
    mask_documents: Annotated[bool, Doc("Limit attention to a token's own document.")] = False
    batch_tokens: Annotated[int, Range(min=1), Doc("Tokens per optimiser step over all processes, including padding.")]
    microbatch_tokens: Annotated[
        int | None,
        Range(min=1),
        Doc("Tokens per process in a microbatch; if null, the process's whole part of the batch."),
    ] = None
    epoch_tokens: Annotated[
        int | None, Range(min=1), Doc("Tokens per epoch of the mixture, including padding; if null, all tokens.")
    ] = None
    is_shuffled: Annotated[bool, Doc("Shuffle rows in each epoch.")] = True
    seed: Annotated[int | None, Range(min=0), Doc("Seed for shuffling; if null, the recipe's seed.")] = None
    prefetch: Annotated[
        int, Range(min=0), Doc("Number of batches that a thread prefetches; 0 disables prefetching.")
    ] = 2
    cache: Annotated[Path | None, Doc("Folder for tokenized text; if null, a folder in the user's cache.")] = None
    num_workers: Annotated[
        int | None, Range(min=1), Doc("Number of processes that tokenize text; if null, one per CPU.")
    ] = None
    allow_changes: Annotated[
        bool, Doc("Allow resuming, at the same row number, from a checkpoint that was trained on different data.")
    ] = False

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
            yield "sources", "no data source", "missing-key", "add `sources: [{path: FILE}]`"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTarget(TargetConfig):
    """Your own loader, which returns the batches, and replaces sources, tokenizer and rows."""

    batch_tokens: Annotated[
        int, Range(min=1), Doc("Tokens (or samples) per step over all processes; used to convert lengths.")
    ]
    sequence_length: Annotated[int, Range(min=1), Doc("Tokens per row; 1 for samples.")] = 1
    microbatch_tokens: Annotated[
        int | None,
        Range(min=1),
        Doc("Tokens per process in a microbatch; if null, the process's whole part of the batch."),
    ] = None


AnyData: TypeAlias = DataConfig | LoaderTarget
