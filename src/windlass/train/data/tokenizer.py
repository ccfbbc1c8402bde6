"""Tokenizers that convert between text and ids: a `tokenizer.json`, or raw bytes. Imports neither torch nor numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.core.json_text import decode_json, read_json
from windlass.train.data.config import TokenizerConfig

if TYPE_CHECKING:
    import tokenizers

__all__ = ["ByteTokenizer", "FileTokenizer", "SpecialIds", "Tokenizer", "load_tokenizer"]

_END_MARKS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|endofdoc|>", "[SEP]")
_FILES = "`tokenizer.json`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of the special tokens.

    Attributes:
        eos_id: ends a document; None if there is none.
        pad_id: pads rows.
        bos_id: begins a document; None if there is none.
    """

    eos_id: int | None = None
    pad_id: int = 0
    bos_id: int | None = None


class Tokenizer(Protocol):
    """Interface for converting text to ids and back."""

    @property
    def identity(self) -> str:
        """Identity, which is equal for tokenizers that encode equal text to equal ids."""

    @property
    def vocab_size(self) -> int:
        """Upper bound on the ids, exclusive."""

    @property
    def ids(self) -> SpecialIds:
        """Special ids that begin and end documents."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of a text, without begin and end tokens."""

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Return the ids of many texts, in order; faster than encoding them one by one."""

    def encode_spans(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """Return the ids of a text and, for each, the characters that it stands for (start, end)."""

    def special_text(self, number: int) -> str | None:
        """Return the text that `encode` turns into this special id; None if no text does."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text for a sequence of ids, without special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteTokenizer:
    """Tokenizer whose ids are UTF-8 bytes; 256 ends a document, and 257 is padding."""

    ids: SpecialIds = SpecialIds(eos_id=256, pad_id=257)
    identity: str = "bytes"
    vocab_size: int = 258

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of a text."""
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Return the ids of many texts."""
        return [self.encode(text) for text in texts]

    def encode_spans(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """Return the bytes of a text, each with its character."""
        spans = [(at, at + 1) for at, character in enumerate(text) for _ in character.encode()]
        return self.encode(text), spans

    def special_text(self, number: int) -> str | None:
        """Return None: text has no special tokens."""
        del number
        return None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text for a sequence of ids; invalid UTF-8 becomes a replacement character."""
        return bytes(number for number in ids if number < 256).decode(errors="replace")


class FileTokenizer:
    """Tokenizer that uses the `tokenizers` library."""

    def __init__(self, inner: tokenizers.Tokenizer, ids: SpecialIds) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner, self.ids = inner, ids
        self.identity = hashlib.sha256(inner.to_str().encode()).hexdigest()
        numbers = inner.get_vocab(with_added_tokens=True).values()
        self.vocab_size = 1 + max(numbers, default=-1)

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of a text."""
        found: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return found

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Return the ids of many texts, without computing offsets, which takes time."""
        return [found.ids for found in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_spans(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """Return the ids of a text and the characters of each."""
        found = self._inner.encode(text, add_special_tokens=False)
        return found.ids, found.offsets

    def special_text(self, number: int) -> str | None:
        """Return the text of a special token."""
        text: str | None = self._inner.id_to_token(number)
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text for a sequence of ids."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=True)
        return text


def load_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Load the configured tokenizer; ids in the configuration override the tokenizer's own.

    Raises:
        SpecError: none is set (`tokenizer-missing`), or it cannot be read or lacks an id (`tokenizer-broken`).
    """
    if not config.path:
        hint = "set `data.tokenizer.path` to a file, a folder, a name on the Hugging Face hub, or `bytes`"
        raise SpecError([Problem("text needs a tokenizer", "tokenizer-missing", hint=hint)])
    if config.path == "bytes":
        return ByteTokenizer(ids=_merge(config, SpecialIds(eos_id=256, pad_id=257)))
    inner, settings = _load(config.path)
    found = FileTokenizer(inner, _merge(config, _stated_ids(inner, settings)))
    for name, number in (("eos_id", found.ids.eos_id), ("bos_id", found.ids.bos_id), ("pad_id", found.ids.pad_id)):
        if number is not None and number >= found.vocab_size:
            message = f"{name} {number} is outside the vocabulary of {found.vocab_size} of {config.path}"
            raise SpecError([Problem(message, "tokenizer-broken", hint=f"look at `data.tokenizer.{name}`")])
    return found


def _merge(config: TokenizerConfig, found: SpecialIds) -> SpecialIds:
    eos_id = found.eos_id if config.eos_id is None else config.eos_id
    return SpecialIds(
        eos_id=eos_id,
        pad_id=found.pad_id if config.pad_id is None else config.pad_id,
        bos_id=config.bos_id,
    )


def _load(path: str) -> tuple[tokenizers.Tokenizer, Mapping[str, Any]]:
    """Load a tokenizer and its settings (tokenizer_config.json) from a file, a folder or the hub."""
    try:
        import tokenizers  # lazy: 0.1 s, and token files do not need it
    except ImportError as error:
        hint = "`pip install 'windlass[train]'`, or use `data.tokenizer.path=bytes`"
        raise WindlassError(f"{path} needs the package tokenizers", hint=hint, code="extra-missing") from error
    place = Path(path).expanduser()
    file = place / "tokenizer.json" if place.is_dir() else place
    try:
        if file.is_file():
            beside = file.with_name("tokenizer_config.json")
            settings = read_json(beside) if beside.is_file() else {}
            return tokenizers.Tokenizer.from_file(str(file)), settings
        if place.exists() or path.endswith(".json") or path.startswith((".", "/", "~")):
            raise FileNotFoundError(f"no file {file}")
        return tokenizers.Tokenizer.from_pretrained(path), _hub_settings(path)
    except Exception as error:
        hint = f"use a {_FILES}, a folder with one, a name on the Hugging Face hub, or `bytes`"
        message = f"cannot read the tokenizer {path}: {error}"
        raise SpecError([Problem(message, "tokenizer-broken", hint=hint)]) from error


def _hub_settings(name: str) -> Mapping[str, Any]:
    """Return the settings of a tokenizer on the hub, downloaded if needed."""
    from huggingface_hub import hf_hub_download  # lazy: 0.3 s, only for hub names
    from huggingface_hub.errors import EntryNotFoundError

    try:
        settings: Mapping[str, Any] = decode_json(Path(hf_hub_download(name, "tokenizer_config.json")).read_text())
        return settings
    except EntryNotFoundError:
        return {}


def _stated_ids(inner: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> SpecialIds:
    """Return the special ids from the tokenizer's settings, else by the common names of end tokens."""
    eos_id = _id_of(inner, settings.get("eos_token"))
    if eos_id is None:
        known = [inner.token_to_id(mark) for mark in _END_MARKS]
        eos_id = next((number for number in known if number is not None), None)
    pad_id = _id_of(inner, settings.get("pad_token"))
    return SpecialIds(eos_id=eos_id, pad_id=pad_id if pad_id is not None else eos_id or 0)


def _id_of(inner: tokenizers.Tokenizer, token: object) -> int | None:
    text = token.get("content") if isinstance(token, Mapping) else token
    number: int | None = inner.token_to_id(text) if isinstance(text, str) else None
    return number
