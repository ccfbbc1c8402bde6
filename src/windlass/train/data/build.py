"""Construction of a loader from a data config."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.train.data.collate import Collator
from windlass.train.data.config import DataConfig
from windlass.train.data.corpus import Corpus
from windlass.train.data.loader import BatchShape, TokenLoader
from windlass.train.data.mixture import rows_of_epoch
from windlass.train.data.opening import manifests_of, open_corpora, special_ids
from windlass.train.data.order import BucketOrder, RowOrder
from windlass.train.data.protocol import Share
from windlass.train.data.rows import RowTable, cut_rows
from windlass.train.data.tokenization.ingestion import Progress

__all__ = ["build_loader"]


def build_loader(
    config: DataConfig,
    *,
    seed: int,
    share: Share,
    vocab_size: int,
    is_pinned: bool = False,
    on_progress: Progress | None = None,
) -> TokenLoader:
    """Build the loader for a config.

    Text that is not cached is tokenized first, which can take long.

    Call it on every process: one per machine tokenizes while the others wait for it.

    Args:
        seed: shuffling seed, if the config has none.
        share: the part of each batch that this process takes.
        vocab_size: the model's vocabulary size; larger ids are rejected.
        is_pinned: whether to put batches into page-locked memory.
        on_progress: called with bytes of text tokenized so far, and in total.

    Raises:
        SpecError: settings conflict with each other or with the data; reports all problems.
        TrainingError: broken files.
    """
    corpora = open_corpora(
        config.sources,
        config.tokenizer,
        vocab_size=vocab_size,
        cache=config.cache,
        num_workers=config.num_workers,
        on_progress=on_progress,
    )
    length = config.sequence_length
    tables = [
        cut_rows(corpus, length, layout=config.layout, long_documents=config.long_documents) for corpus in corpora
    ]
    counts = rows_of_epoch(
        [table.num_rows for table in tables],
        [source.ratio for source in config.sources],
        [source.max_repeats for source in config.sources],
        names=[corpus.name for corpus in corpora],
        total=None if config.epoch_tokens is None else max(1, config.epoch_tokens // length),
    )
    collator = Collator(
        corpora=corpora,
        tables=tables,
        length=length,
        pad_id=special_ids(config.tokenizer, manifests_of(config.sources)).pad_id,
        has_documents=config.mask_documents,
        vocab_size=vocab_size,
    )
    return TokenLoader(
        collator,
        _order(config, tables, counts, seed if config.seed is None else config.seed),
        BatchShape(
            tokens=config.batch_tokens,
            length=length,
            full_length=length,
            microbatch_tokens=config.microbatch_tokens,
            is_trimmed=config.layout == "bucket",
        ),
        share=share,
        fingerprint=_fingerprint(config, corpora, counts),
        labels={f"data.sources.{number}": corpus.name for number, corpus in enumerate(corpora)},
        prefetch=config.prefetch,
        is_lenient=config.allow_changes,
        is_pinned=is_pinned,
    )


def _order(config: DataConfig, tables: Sequence[RowTable], counts: Sequence[int], seed: int) -> RowOrder:
    sizes = [table.num_rows for table in tables]
    if config.layout == "bucket" and config.is_shuffled:
        return BucketOrder(
            sizes, counts, seed=seed, tables=tables, group=max(1, config.batch_tokens // config.sequence_length)
        )
    return RowOrder(sizes, counts, seed=seed, is_shuffled=config.is_shuffled)


def _fingerprint(config: DataConfig, corpora: Sequence[Corpus], counts: Sequence[int]) -> dict[str, str]:
    """Return the settings that determine which tokens are in the run's row N."""
    names = ["layout", "sequence_length", "is_shuffled"]
    names += [] if config.layout == "chunk" else ["long_documents"]
    names += ["batch_tokens"] if config.layout == "bucket" else []
    found = {f"data.{name}": str(getattr(config, name)) for name in names}
    for number, (corpus, count) in enumerate(zip(corpora, counts, strict=True)):
        found[f"data.sources.{number}"] = f"{count} rows an epoch of {corpus.digest[:16]}"
    return found
