"""The tokenizer `bytes` as files of Hugging Face: byte-level BPE without a merge, so that an id is a byte."""

from __future__ import annotations

import json
from collections.abc import Mapping

from windlass.train.data.tokenizer import SpecialIds

__all__ = ["byte_tokenizer_files"]

_MARKS = {256: "<|endoftext|>", 257: "<|padding|>"}


def byte_tokenizer_files(ids: SpecialIds, max_length: int) -> Mapping[str, bytes]:
    """`tokenizer.json` and `tokenizer_config.json`; the text of a mark in a prompt becomes the mark."""
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
    """The printable character that stands for each byte. Source: GPT-2's `bytes_to_unicode`."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {number: chr(number) for number in plain}
    rest = [number for number in range(256) if number not in names]
    return {**names, **{number: chr(256 + place) for place, number in enumerate(rest)}}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=True).encode("ascii") + b"\n"
