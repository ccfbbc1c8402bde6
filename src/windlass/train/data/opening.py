"""Opening of sources of any kind as corpora."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from windlass.core.errors import Problem, SpecError
from windlass.train.data.config import AnySource, SourceConfig, SourceTarget, TokenizerConfig
from windlass.train.data.corpus import Corpus, CorpusPart
from windlass.train.data.inputs import find_inputs, source_name
from windlass.train.data.manifest import TokenFile, TokenManifest, check_files, item_bytes, read_manifest
from windlass.train.data.raw_tokens import open_raw_tokens
from windlass.train.data.tokenization.ingestion import Progress, ingest
from windlass.train.data.tokenization.own_source import make_own
from windlass.train.data.tokenizer import SpecialIds, load_tokenizer
from windlass.train.errors import TrainingError

__all__ = ["manifests_of", "open_corpora", "open_corpus", "special_ids"]


def open_corpora(
    sources: Sequence[AnySource],
    tokenizer: TokenizerConfig,
    *,
    vocab_size: int,
    cache: Path | None = None,
    num_workers: int | None = None,
    on_progress: Progress | None = None,
) -> list[Corpus]:
    """Open all sources, and report the problems of all of them together.

    Args:
        vocab_size: the model's vocabulary size; larger ids are rejected.

    Raises:
        SpecError, TrainingError: see `open_corpus`.
    """
    corpora: list[Corpus] = []
    problems: list[SpecError] = []
    for source in sources:
        try:
            corpora.append(
                open_corpus(
                    source,
                    tokenizer,
                    vocab_size=vocab_size,
                    cache=cache,
                    num_workers=num_workers,
                    on_progress=on_progress,
                )
            )
        except SpecError as error:
            problems.append(error)
    if problems:
        raise SpecError(problem for error in problems for problem in error.problems)
    return corpora


def open_corpus(
    source: AnySource,
    tokenizer: TokenizerConfig,
    *,
    vocab_size: int,
    cache: Path | None = None,
    num_workers: int | None = None,
    on_progress: Progress | None = None,
) -> Corpus:
    """Open a source, mapped into memory; text that is not cached is tokenized first.

    Raises:
        SpecError: there is no data, or no tokenizer.
        TrainingError: a file is invalid, or of another vocabulary or tokenizer; the message names it.
    """
    if isinstance(source, SourceTarget):
        if tokenizer.path:
            _check_vocabulary(tokenizer, vocab_size)
        made = make_own(source, tokenizer, vocab_size=vocab_size, cache=cache)
        found = _open_folder(made, tokenizer, vocab_size)
        return Corpus(source_name(source), found.parts, digest=found.digest, max_id=found.max_id)
    inputs = find_inputs(source)
    folders = [Path(found.path) for found in inputs if found.kind == "folder"]
    if any(not found.is_tokens for found in inputs):
        _check_vocabulary(tokenizer, vocab_size)
        made = ingest(source, tokenizer, cache=cache, num_workers=num_workers, on_progress=on_progress)
        folders.append(made)
    corpora = [_open_folder(folder, tokenizer, vocab_size) for folder in folders]
    raw = [Path(found.path) for found in inputs if found.kind == "raw"]
    name = source_name(source)
    if raw:
        masks = [Path(path).expanduser() for path in source.label_mask]
        ids = special_ids(tokenizer, [])
        found = open_raw_tokens(name, raw, dtype=source.dtype, vocab_size=vocab_size, ids=ids, masks=masks or None)
        _check_tokenizer(name, tokenizer, max_id=found.max_id)
        corpora.append(found)
    digest = hashlib.sha256("\n".join(corpus.digest for corpus in corpora).encode()).hexdigest()
    return Corpus(name, [part for corpus in corpora for part in corpus.parts], digest=digest)


def special_ids(tokenizer: TokenizerConfig, manifests: Sequence[TokenManifest]) -> SpecialIds:
    """Return the end, padding and begin ids from the config, else the tokenizer, else the token manifests."""
    if tokenizer.path:
        return load_tokenizer(tokenizer).ids
    eos_ids = [manifest.eos_id for manifest in manifests if manifest.eos_id is not None]
    pad_ids = [manifest.pad_id for manifest in manifests if manifest.pad_id is not None]
    eos_id = next(iter(eos_ids), None) if tokenizer.eos_id is None else tokenizer.eos_id
    pad_id = next(iter(pad_ids), eos_id or 0) if tokenizer.pad_id is None else tokenizer.pad_id
    return SpecialIds(eos_id=eos_id, pad_id=pad_id, bos_id=tokenizer.bos_id)


def _check_vocabulary(tokenizer: TokenizerConfig, vocab_size: int) -> None:
    """Reject a tokenizer too large for the model, before spending hours on tokenizing."""
    size = load_tokenizer(tokenizer).vocab_size
    if size > vocab_size:
        message = f"the tokenizer {tokenizer.path} has {size} ids; the model's vocabulary has {vocab_size}"
        raise SpecError([Problem(message, "tokenizer-mismatch", hint=f"set `model.vocab_size` to at least {size}")])


def _open_folder(folder: Path, tokenizer: TokenizerConfig, vocab_size: int) -> Corpus:
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    if manifest.max_id >= vocab_size:
        message = f"{folder} has token {manifest.max_id}; the vocabulary has {vocab_size}"
        hint = "use a model for its tokenizer, or raise `model.vocab_size`"
        raise TrainingError(message, hint=hint, code="tokenizer-mismatch")
    if tokenizer.path and manifest.tokenizer and load_tokenizer(tokenizer).identity != manifest.tokenizer:
        message = f"{folder} was made with a different tokenizer than {tokenizer.path}"
        hint = "set the tokenizer that it was made with, or tokenize the text again"
        raise TrainingError(message, hint=hint, code="tokenizer-mismatch")
    if not manifest.tokenizer:
        _check_tokenizer(str(folder), tokenizer, max_id=manifest.max_id, eos_id=manifest.eos_id)
    parts = [_part(folder, file, manifest) for file in manifest.files]
    return Corpus(str(folder), parts, digest=manifest.digest, max_id=manifest.max_id)


def _check_tokenizer(name: str, tokenizer: TokenizerConfig, *, max_id: int | None, eos_id: int | None = None) -> None:
    """Reject tokens of unknown origin if they do not match the configured tokenizer."""
    if not tokenizer.path:
        return
    found = load_tokenizer(tokenizer)
    if max_id is not None and max_id >= found.vocab_size:
        problem = f"has token {max_id}; the tokenizer {tokenizer.path} ends at {found.vocab_size - 1}"
    elif eos_id is not None and eos_id != found.ids.eos_id:
        problem = f"ends documents with token {eos_id}; the tokenizer {tokenizer.path} with {found.ids.eos_id}"
    else:
        return
    hint = "set `data.tokenizer.path` to the tokenizer that made it, or to '' with `data.tokenizer.eos_id`"
    raise TrainingError(f"{name} {problem}", hint=hint, code="tokenizer-mismatch")


def _part(folder: Path, file: TokenFile, manifest: TokenManifest) -> CorpusPart:
    tokens_T: np.ndarray = np.memmap(folder / file.name, dtype=f"<u{item_bytes(manifest.dtype)}", mode="r")

    def find_ends() -> np.ndarray:
        ends_D: np.ndarray = np.fromfile(folder / file.ends_name, dtype=f"<u{file.ends_bytes}").astype(np.int64)
        return ends_D

    return CorpusPart(name=str(folder / file.name), tokens_T=tokens_T.view(np.ndarray), find_ends=find_ends)


def manifests_of(sources: Sequence[AnySource]) -> list[TokenManifest]:
    """Return the manifests of those sources that are token folders."""
    inputs = [found for source in sources if isinstance(source, SourceConfig) for found in find_inputs(source)]
    return [read_manifest(Path(found.path)) for found in inputs if found.kind == "folder"]
