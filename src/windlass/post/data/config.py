"""Settings of post-training data; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from windlass.config.annotations import Diagnostic, Doc, Range
from windlass.core.errors import Problem, SpecError
from windlass.train.data.config import TokenizerConfig

__all__ = ["MixSource", "MixtureConfig", "RowKind", "from_mixer_list"]

RowKind = Literal["chat", "pair", "prompt"]
"""Kind of rows: a chat to learn from, a chosen and a rejected answer, or a prompt with what answers are checked by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSource:
    """A source of rows, and how many of them to take."""

    FOREIGN_KEYS: ClassVar[Mapping[str, str]] = {"path": "source", "ratio": "fraction", "amount": "count"}

    source: Annotated[str, Doc("JSON Lines or Parquet file, folder, glob, or `hf:NAME`.")]
    fraction: Annotated[
        float | None, Range(above=0), Doc("Share of the rows: 0.5 is half, 2.0 each row twice; null: see `count`.")
    ] = None
    count: Annotated[int | None, Range(min=1), Doc("Number of rows; null with `fraction` null: all rows.")] = None
    split: Annotated[str, Doc("Split of a Hugging Face dataset, such as `train[:1%]`.")] = "train"
    subset: Annotated[str, Doc("Subset (configuration) of a Hugging Face dataset; empty: its only one.")] = ""
    seed: Annotated[int, Range(min=0), Doc("Seed that selects the rows, if not all are taken.")] = 0
    transforms: Annotated[tuple[str, ...], Doc("Transforms of this source's rows, before those of the data.")] = ()

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        if not self.source:
            yield "source", "a source has an empty `source`", "invalid-value", "set it to a file, a folder or `hf:NAME`"
        if self.fraction is not None and self.count is not None:
            yield "count", "both `fraction` and `count` are set", "conflicting-options", "keep one of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig:
    """Rows of chats or preferences: sources, rendering, batches."""

    mix: Annotated[tuple[MixSource, ...], Doc("Sources of the mixture.")]
    transforms: Annotated[tuple[str, ...], Doc("Named transforms of every row, or `module:function` of your own.")] = ()
    template: Annotated[
        str, Doc("Chat template: `auto` (the model's own, else chatml), a name, or a file of Jinja.")
    ] = "auto"
    tokenizer: Annotated[
        TokenizerConfig, Doc("Tokenizer; if its path is empty, the one in the model's folder is used.")
    ] = TokenizerConfig()
    max_length: Annotated[int, Range(min=2), Doc("Most tokens of a sequence.")] = 1024
    long_sequences: Annotated[
        Literal["drop", "truncate"], Doc("Handling of longer ones; a truncated pair keeps both its answers.")
    ] = "drop"
    batch_rows: Annotated[int, Range(min=1), Doc("Rows per optimiser step, over all processes.")] = 32
    microbatch_tokens: Annotated[
        int, Range(min=1), Doc("Most tokens of a microbatch of one process, padding included.")
    ] = 8192
    is_shuffled: Annotated[bool, Doc("Shuffle rows in each epoch.")] = True
    seed: Annotated[int | None, Range(min=0), Doc("Seed for shuffling; null: the recipe's seed.")] = None
    prefetch: Annotated[int, Range(min=0), Doc("Batches that a thread prefetches; 0: none.")] = 2
    cache: Annotated[Path | None, Doc("Folder for prepared data; null: in the user's cache.")] = None
    allow_changes: Annotated[
        bool, Doc("Allow resuming from a checkpoint that was trained on different data, at the same row number.")
    ] = False

    @property
    def sequence_length(self) -> int:
        """Most tokens of a sequence, under the name that plans use."""
        return self.max_length

    @property
    def batch_tokens(self) -> int:
        """Upper bound of the tokens of a batch; rows are shorter."""
        return self.batch_rows * self.max_length

    @property
    def target(self) -> str:
        """Name of the data in plans."""
        return "the prepared mixture"

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        if not self.mix:
            yield "mix", "no data source", "missing-key", "add `mix: [{source: FILE}]`"
        if self.microbatch_tokens < self.max_length:
            message = (
                f"a microbatch of {self.microbatch_tokens} tokens is smaller than one sequence of {self.max_length}"
            )
            yield "microbatch_tokens", message, "shape-conflict", f"write at least {self.max_length}"


def from_mixer_list(words: Sequence[str], *, splits: Sequence[str] = ("train",)) -> tuple[MixSource, ...]:
    """Return the sources of open-instruct's `--dataset_mixer_list NAME AMOUNT NAME AMOUNT ...`.

    An amount with a point is a share of the rows ("1.0" is all of them), one without is a number of rows ("1" is a
    single row). Source: open-instruct, docs on dataset mixing, as read on 2026-08-20.

    Args:
        splits: one for each source, or one for all.

    Raises:
        SpecError: an amount is missing or is not a number, or the number of splits does not fit.
    """
    if len(words) % 2:
        raise _wrong(f"{words[-1]!r} has no amount", "write NAME AMOUNT pairs, such as `data.jsonl 1.0`")
    names, amounts = words[::2], words[1::2]
    if len(splits) not in (1, len(names)):
        raise _wrong(f"{len(splits)} splits for {len(names)} sources", "give one split, or one for each source")
    every = list(splits) * len(names) if len(splits) == 1 else list(splits)
    return tuple(_source(name, amount, split) for name, amount, split in zip(names, amounts, every, strict=True))


def _source(name: str, amount: str, split: str) -> MixSource:
    is_file = Path(name).suffix in (".json", ".jsonl", ".parquet") or Path(name).exists()
    source = name if is_file else f"hf:{name}"
    try:
        if "." in amount:
            return MixSource(source=source, fraction=_positive(float(amount)), split=split)
        return MixSource(source=source, count=int(_positive(int(amount))), split=split)
    except ValueError:
        hint = "write a share such as 0.5 or 1.0 (all rows), or a number of rows such as 500"
        raise _wrong(f"invalid amount {amount!r} of {name}", hint) from None


def _positive(value: float) -> float:
    if not 0 < value < float("inf"):
        raise ValueError(value)
    return value


def _wrong(message: str, hint: str) -> SpecError:
    return SpecError([Problem(message, "invalid-value", hint=hint)])
