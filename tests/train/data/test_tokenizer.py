from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import SpecError
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import SpecialIds, load_tokenizer

WORDS = ["[UNK]", "one", "two", "three", "</s>", "<pad>"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner: Any = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["</s>", "<pad>"])
    inner.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 4)])
    inner.enable_truncation(2)
    inner.enable_padding(length=9)
    inner.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_file_or_its_folder(folder: Path) -> None:
    found = load_tokenizer(TokenizerConfig(path=str(folder)))
    assert found.encode("three one two") == [3, 1, 2]  # no marks, no truncation, no padding
    assert list(found.encode_batch(["one", "two three"])) == [[1], [2, 3]]
    assert found.decode([3, 1, 4, 5]) == "three one"
    assert found.vocab_size == 6
    assert found.ids == SpecialIds(eos_id=4, pad_id=4)
    assert load_tokenizer(TokenizerConfig(path=str(folder / "tokenizer.json"))).identity == found.identity


def test_settings_beside_it_name_the_marks_and_the_config_wins(folder: Path) -> None:
    settings = {"eos_token": {"content": "three"}, "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(TokenizerConfig(path=str(folder))).ids == SpecialIds(eos_id=3, pad_id=5)
    stated = TokenizerConfig(path=str(folder), eos_id=1, pad_id=2, bos_id=0)
    assert load_tokenizer(stated).ids == SpecialIds(eos_id=1, pad_id=2, bos_id=0)


def test_what_cannot_be_is_refused(folder: Path) -> None:
    (folder / "broken.json").write_text("{")
    for config, code, words in (
        (TokenizerConfig(), "tokenizer-missing", "text needs a tokenizer"),
        (
            TokenizerConfig(path=str(folder / "no.json")),
            "tokenizer-broken",
            f"cannot read the tokenizer {folder}/no.json: no file",
        ),
        (
            TokenizerConfig(path=str(folder / "broken.json")),
            "tokenizer-broken",
            f"cannot read the tokenizer {folder}/broken.json: ",
        ),
        (TokenizerConfig(path=str(folder), eos_id=6), "tokenizer-broken", "eos_id 6 is outside the vocabulary of 6"),
    ):
        with pytest.raises(SpecError) as caught:
            load_tokenizer(config)
        assert caught.value.code == code
        assert words in caught.value.message


@given(st.text())
def test_bytes_come_back(text: str) -> None:
    found = load_tokenizer(TokenizerConfig(path="bytes"))
    ids = found.encode(text)
    assert found.decode([*ids, 256, 257]) == text
    assert all(number < 256 for number in ids)
    assert (found.vocab_size, found.ids) == (258, SpecialIds(eos_id=256, pad_id=257))
