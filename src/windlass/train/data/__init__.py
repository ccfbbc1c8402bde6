"""Tokens on disk, mixtures of sources, and rows in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.train.data.tokenization.ingestion import ingest
    from windlass.train.data.tokenization.writing import write_tokens
    from windlass.train.data.tokenizer import Tokenizer, load_tokenizer
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.train.data.tokenization.ingestion": ("ingest",),
            "windlass.train.data.tokenizer": (
                "Tokenizer",
                "load_tokenizer",
            ),
            "windlass.train.data.tokenization.writing": ("write_tokens",),
        },
    )

__all__ = ["Tokenizer", "ingest", "load_tokenizer", "write_tokens"]
