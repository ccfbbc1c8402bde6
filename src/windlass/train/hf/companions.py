"""What goes with a model's weights: the files of its tokenizer, generation_config.json and special ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError, Problem, SpecError
from windlass.core.json_text import decode_object
from windlass.train.data.tokenizer import SpecialIds
from windlass.train.hf.byte_tokenizer import byte_tokenizer_files

__all__ = ["KEPT_BELOW", "Companions", "companions_in", "is_companion", "kept", "tokenizer_companions"]

KEPT_BELOW = "hf/"
"""Where a checkpoint made by an import keeps them, among its small files."""
_GENERATION = "generation_config.json"
_CONFIG = "config.json"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """Files by name, byte for byte, and special ids as config.json states them."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    ids: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer is among them."""
        return any(name in _TOKENIZER_FILES for name in self.files)


def is_companion(name: str) -> bool:
    """Whether a file of that name goes with a model."""
    return name in _TOKENIZER_FILES or name == _GENERATION


def companions_in(folder: Path) -> Companions:
    """Those in a folder of Hugging Face."""
    names = [*_TOKENIZER_FILES, _GENERATION]
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    return _with_ids(files, (folder / _CONFIG).read_bytes(), str(folder / _CONFIG))


def kept(small: Mapping[str, bytes]) -> Companions:
    """Those that an import kept; the keys are names of files."""
    files = {name: content for name, content in small.items() if is_companion(name)}
    return _with_ids(files, small.get(_CONFIG, b"{}"), KEPT_BELOW + _CONFIG)


def _with_ids(files: Mapping[str, bytes], config: bytes, source: str) -> Companions:
    try:
        stated = decode_object(config)
    except ValueError as error:
        problem = Problem(f"{source} cannot be read: {error}", "hf-files", hint="copy it again")
        raise SpecError([problem]) from error
    return Companions(files=files, ids={name: stated[name] for name in _IDS if name in stated})


def tokenizer_companions(path: str | Path, ids: SpecialIds | None, *, max_length: int) -> Companions:
    """The files of a tokenizer.

    Args:
        path: a `tokenizer.json`, a folder with the files of a tokenizer, or `bytes`.
        ids: those for config.json; None: as if nobody knew.
        max_length: longest sequence of the model.

    Raises:
        PreconditionError: there is no tokenizer.
    """
    stated = {} if ids is None else {"bos_token_id": ids.bos_id, "eos_token_id": ids.eos_id}
    if str(path) == "bytes":
        return Companions(files=byte_tokenizer_files(ids or SpecialIds(), max_length), ids=stated)
    source = Path(path).expanduser()
    folder = source.parent if source.name == "tokenizer.json" else source
    files = {name: (folder / name).read_bytes() for name in _TOKENIZER_FILES if (folder / name).is_file()}
    if source.is_file() and source.name != "tokenizer.json":
        files = {"tokenizer.json": source.read_bytes()}
    if not files:
        raise PreconditionError(
            f"{source} has no tokenizer", hint="give a tokenizer.json or a folder with one", code="tokenizer-missing"
        )
    return Companions(files=files, ids=stated)
