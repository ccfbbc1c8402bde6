"""Small corpora for the tests of data: documents whose tokens say where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from windlass.train.data.config import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.data.corpus import Corpus, CorpusPart
from windlass.train.data.tokenization.writing import write_tokens

EOS = 0
VOCAB = 60_000
PAD = 59_999


def make_documents(lengths: Sequence[int], first: int = 1) -> list[list[int]]:
    """Documents of rising tokens; the last token of each is EOS, so every other token names its place."""
    documents: list[list[int]] = []
    for length in lengths:
        documents.append([*range(first, first + length - 1), EOS])
        first += length - 1
    return documents


def make_folder(folder: Path, lengths: Sequence[int], *, first: int = 1, file_tokens: int = 1 << 20) -> Path:
    documents = make_documents(lengths, first)
    write_tokens(folder, documents, vocab_size=VOCAB, eos_id=EOS, pad_id=EOS, file_tokens=file_tokens)
    return folder


def make_corpus(lengths: Sequence[int], *, num_parts: int = 1, mask: bool = False) -> Corpus:
    documents = make_documents(lengths)
    parts: list[CorpusPart] = []
    for number in range(num_parts):
        mine = documents[number::num_parts] if num_parts > 1 else documents
        tokens_T = np.array([token for document in mine for token in document], dtype=np.uint16)
        ends_D = np.cumsum([len(document) for document in mine], dtype=np.int64)
        mask_T = tokens_T % 3 != 1 if mask else None
        parts.append(CorpusPart(name=f"part {number}", tokens_T=tokens_T, find_ends=lambda e=ends_D: e, mask_T=mask_T))  # type: ignore[misc]
    return Corpus("corpus", parts, digest="d")


def make_config(*folders: Path, **settings: object) -> DataConfig:
    defaults: dict[str, object] = {"sequence_length": 8, "batch_tokens": 64, "prefetch": 0}
    sources = settings.pop("sources", None) or tuple(SourceConfig(path=(str(folder),)) for folder in folders)
    return DataConfig(sources=sources, tokenizer=TokenizerConfig(eos_id=EOS, pad_id=PAD), **{**defaults, **settings})  # type: ignore[arg-type]
