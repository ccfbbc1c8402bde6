"""Token files without a manifest: OLMo-core's (bare ids, whatever the suffix) and real `.npy` files.

Legend: T tokens, D documents.
Source: olmo_core.data.numpy_dataset and olmo_core.data.utils of ai2-olmo-core 3.0.0; numpy.lib.format.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from pathlib import Path

import numpy as np

from windlass.core.phrases import count as counted
from windlass.train.data.corpus import Corpus, CorpusPart
from windlass.train.data.manifest import raw_token_dtype
from windlass.train.data.tokenizer import SpecialIds
from windlass.train.errors import TrainingError

__all__ = ["open_raw_tokens"]

_MAGIC = b"\x93NUMPY"
_BLOCK = 1 << 24
_SCANS = 64
_SCAN_TOKENS = 1 << 16


def open_raw_tokens(
    name: str, paths: list[Path], *, dtype: str, vocab_size: int, ids: SpecialIds, masks: list[Path] | None = None
) -> Corpus:
    """Open raw token files as a corpus, mapped into memory.

    Checks a bounded sample of each file for ids outside the vocabulary; others are found when their batch is built.

    Args:
        dtype: type of the ids; `auto`: the smallest that holds the vocabulary, as OLMo-core chooses it.
        masks: one file of booleans for each token file, in the same order.

    Raises:
        TrainingError: a file is missing, truncated, or of another type or vocabulary (`tokens-broken`,
            `tokenizer-mismatch`); the message names it.
    """
    if masks and len(masks) != len(paths):
        message = f"{name} has {counted(len(paths), 'token file')} and {counted(len(masks), 'label mask')}"
        raise TrainingError(message, hint="set one file of `label_mask` for each token file", code="tokens-broken")
    kind = np.dtype(raw_token_dtype(vocab_size) if dtype == "auto" else dtype).newbyteorder("<")
    digest = hashlib.sha256()
    parts, max_id = list[CorpusPart](), 0
    for number, path in enumerate(paths):
        tokens_T = _map(path, kind)
        sample_T = _sample(tokens_T)
        max_id = max(max_id, _check_ids(path, sample_T, vocab_size))
        mask_T = _mask(masks[number], path, len(tokens_T)) if masks else None
        parts.append(CorpusPart(name=str(path), tokens_T=tokens_T, find_ends=_Ends(path, tokens_T, ids), mask_T=mask_T))
        digest.update(f"{path.name} {tokens_T.dtype} {len(tokens_T)}\n".encode() + sample_T.tobytes())
        if mask_T is not None:
            digest.update(_sample(mask_T).tobytes())
    return Corpus(name, parts, digest=digest.hexdigest(), max_id=max_id)


class _Ends:
    """Finder of document ends, in the `.csv.gz` beside the file or else after each end token."""

    def __init__(self, path: Path, tokens_T: np.ndarray, ids: SpecialIds) -> None:
        self._path, self._tokens_T, self._ids = path, tokens_T, ids

    def __call__(self) -> np.ndarray:
        beside = self._path.with_suffix(".csv.gz")
        ends_D: np.ndarray = self._read(beside) if beside.is_file() else self._scan()
        if not len(ends_D) or ends_D[-1] < len(self._tokens_T):
            ends_D = np.concatenate(
                (ends_D, [len(self._tokens_T)])
            )  # tokens after the last end token are a document too
        return ends_D

    def _read(self, beside: Path) -> np.ndarray:
        try:
            with gzip.open(beside, "rt", encoding="utf-8") as file:
                ends_D: np.ndarray = np.array([int(row[1]) for row in csv.reader(file)], dtype=np.int64)
        except (OSError, EOFError, ValueError, IndexError) as error:
            hint = "remove it to find documents by their end tokens"
            raise TrainingError(f"cannot read {beside}: {error}", hint=hint, code="tokens-broken") from error
        if len(ends_D) and (ends_D[-1] > len(self._tokens_T) or (np.diff(ends_D) < 0).any()):
            message = f"{beside} has documents outside the {counted(len(self._tokens_T), 'token')} of {self._path.name}"
            raise TrainingError(
                message, hint="it belongs to another file, or a file is truncated", code="tokens-broken"
            )
        return ends_D

    def _scan(self) -> np.ndarray:
        if self._ids.eos_id is None:
            hint = "set `data.tokenizer.eos_id`, or add a `.csv.gz` of documents beside the file"
            raise TrainingError(f"unknown ends of documents in {self._path}", hint=hint, code="tokens-broken")
        found: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
        for start in range(0, len(self._tokens_T), _BLOCK):
            block_T = self._tokens_T[start : start + _BLOCK + 1]  # one more, to see a begin token
            is_end_T = block_T[:_BLOCK] == self._ids.eos_id
            if self._ids.bos_id is not None:
                follows_T = block_T[1 : _BLOCK + 1] == self._ids.bos_id
                is_end_T[: len(follows_T)] &= follows_T
            found.append(np.flatnonzero(is_end_T) + start + 1)
        ends_D: np.ndarray = np.concatenate(found)
        return ends_D


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    """Map the ids in a file without reading them."""
    size = _size(path)
    with open(path, "rb") as file:
        has_header = file.read(len(_MAGIC)) == _MAGIC
    if has_header:
        try:
            tokens_T: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            message = f"cannot read {path}: {error}"
            raise TrainingError(message, hint="the file is truncated, or not an array", code="tokens-broken") from error
        if tokens_T.ndim != 1 or tokens_T.dtype.kind not in "ui":
            message = f"{path} has {tokens_T.ndim} dimensions of {tokens_T.dtype}, not one dimension of integers"
            raise TrainingError(message, hint="save the ids as a flat array of integers", code="tokens-broken")
        return tokens_T.view(np.ndarray)
    if size == 0 or size % dtype.itemsize:
        message = f"{path} has {size} bytes, not a multiple of a {dtype.name} token"
        hint = "it is truncated, or has another type: set `dtype` of the source"
        raise TrainingError(message, hint=hint, code="tokens-broken")
    mapped_T: np.ndarray = np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
    return mapped_T


def _mask(path: Path, of: Path, count: int) -> np.ndarray:
    size = _size(path)
    if size != count:
        message = f"{path} has {counted(size, 'boolean')} for the {counted(count, 'token')} of {of}"
        raise TrainingError(message, hint="write one byte for each token", code="tokens-broken")
    mask_T: np.ndarray = np.memmap(path, dtype=np.bool_, mode="r").view(np.ndarray)
    return mask_T


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise TrainingError(f"{path} is missing", hint="check `data.sources`", code="tokens-broken") from None


def _sample(array_T: np.ndarray) -> np.ndarray:
    """Return evenly spaced windows, which include the first and last tokens, or all tokens of a small file."""
    if len(array_T) <= _SCANS * _SCAN_TOKENS:
        return array_T.copy()
    starts = np.linspace(0, len(array_T) - _SCAN_TOKENS, _SCANS).astype(np.int64)
    sample_T: np.ndarray = np.concatenate([array_T[start : start + _SCAN_TOKENS] for start in starts])
    return sample_T


def _check_ids(path: Path, sample_T: np.ndarray, vocab_size: int) -> int:
    """Check the ids in a sample, and return the largest one."""
    lowest, highest = (int(sample_T.min()), int(sample_T.max())) if len(sample_T) else (0, 0)
    if lowest < 0 or highest >= vocab_size:
        message = f"{path} has token {lowest if lowest < 0 else highest}; the vocabulary has {vocab_size}"
        hint = "use the tokenizer and dtype of the file, or raise `model.vocab_size`"
        raise TrainingError(message, hint=hint, code="tokenizer-mismatch")
    return highest
