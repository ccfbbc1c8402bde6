"""Files that accompany a model's weights: its tokenizer, generation_config.json and special ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError, Problem, SpecError
from windlass.core.json_text import decode_object
from windlass.train.data.tokenizer import SpecialIds

__all__ = [
    "KEPT_BELOW",
    "Companions",
    "byte_tokenizer_files",
    "companions_in",
    "files_in",
    "is_companion",
    "kept",
    "kept_files",
    "tokenizer_companions",
    "with_template",
]

KEPT_BELOW = "hf/"
"""Folder of the companion files in a checkpoint that was imported, or that post-training wrote."""
_GENERATION = "generation_config.json"
_CONFIG = "config.json"
_SETTINGS = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id")
_TOKENIZER_FILES = (
    "tokenizer.json",
    _SETTINGS,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    _TEMPLATE,
    "chat_template.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """Companion files by name, as bytes, and the special ids for config.json."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    ids: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_tokenizer(self) -> bool:
        """Return whether the files include a tokenizer."""
        return any(name in _TOKENIZER_FILES for name in self.files)


def is_companion(name: str) -> bool:
    """Return whether a file with this name accompanies a model."""
    return name in _TOKENIZER_FILES or name == _GENERATION


def companions_in(folder: Path) -> Companions:
    """Return the companion files found in a Hugging Face folder, with the ids of its config.json."""
    return _with_ids(files_in(folder), (folder / _CONFIG).read_bytes(), str(folder / _CONFIG))


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the companion files in a folder by name."""
    names = [*_TOKENIZER_FILES, _GENERATION]
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def kept(small: Mapping[str, bytes]) -> Companions:
    """Return the companion files that a checkpoint has stored; the keys of `small` are file names."""
    files = {name: content for name, content in small.items() if is_companion(name)}
    return _with_ids(files, small.get(_CONFIG, b"{}"), KEPT_BELOW + _CONFIG)


def kept_files(companions: Companions) -> Mapping[str, bytes]:
    """Return companions as small files for a checkpoint; `kept` reads them."""
    ids = {_CONFIG: json.dumps(dict(companions.ids), indent=1).encode() + b"\n"} if companions.ids else {}
    return {KEPT_BELOW + name: content for name, content in {**companions.files, **ids}.items()}


def with_template(companions: Companions, text: str) -> Companions:
    """Return companions with this chat template, in both places where programs look for one."""
    if not companions.has_tokenizer:
        return companions
    settings = decode_object(companions.files.get(_SETTINGS, b"{}"))
    beside = companions.files.get(_TEMPLATE)
    if text == (settings.get("chat_template") if beside is None else beside.decode()):
        return companions
    files = {name: content for name, content in companions.files.items() if name != "chat_template.json"}
    files[_TEMPLATE] = text.encode()
    if _SETTINGS in files:
        files[_SETTINGS] = _json({**settings, "chat_template": text})
    return replace(companions, files=files)


def _with_ids(files: Mapping[str, bytes], config: bytes, source: str) -> Companions:
    try:
        stated = decode_object(config)
    except ValueError as error:
        problem = Problem(f"cannot read {source}: {error}", "foreign-checkpoint", hint="copy it again")
        raise SpecError([problem]) from error
    return Companions(files=files, ids={name: stated[name] for name in _IDS if name in stated})


def tokenizer_companions(path: str | Path, ids: SpecialIds | None, *, max_length: int) -> Companions:
    """Return the files that make up a tokenizer.

    Args:
        path: a `tokenizer.json`, a folder with a tokenizer's files, or `bytes`.
        ids: special ids for config.json; None if unknown.
        max_length: maximum sequence length of the model.

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
            f"{source} has no tokenizer", hint="pass a tokenizer.json or a folder with one", code="tokenizer-missing"
        )
    return Companions(files=files, ids=stated)


_MARKS = {256: "<|endoftext|>", 257: "<|padding|>"}


def byte_tokenizer_files(ids: SpecialIds, max_length: int) -> Mapping[str, bytes]:
    """Return `tokenizer.json` and `tokenizer_config.json`.

    They recognize special tokens in the text of a prompt.
    """
    names = {**_names_of_bytes(), **_MARKS}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": content, **added} for number, content in _MARKS.items()],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {name: number for number, name in names.items() if number not in _MARKS},
            "merges": [],
        },
    }
    wanted = {"eos_token": ids.eos_id, "pad_token": ids.pad_id, "bos_token": ids.bos_id}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        **{name: names[number] for name, number in wanted.items() if number is not None and number in names},
    }
    return {"tokenizer.json": _json(tokenizer), "tokenizer_config.json": _json(settings)}


def _names_of_bytes() -> dict[int, str]:
    """Return a printable character for each byte. Source: GPT-2's `bytes_to_unicode`."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {number: chr(number) for number in plain}
    rest = [number for number in range(256) if number not in names]
    return {**names, **{number: chr(256 + place) for place, number in enumerate(rest)}}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=True).encode("ascii") + b"\n"
