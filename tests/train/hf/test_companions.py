"""Tokenizers and special ids on their way: from Hugging Face into a checkpoint and back, and out of a `bytes` recipe."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoTokenizer

from tests.train.hf.models import MODELS
from tests.train.hf.test_convert_weights import decoder
from tests.train.hf.test_runs import recipe
from windlass import train
from windlass.train.build import build_trainer
from windlass.train.data.tokenizer import ByteTokenizer
from windlass.train.generation.continuation import continue_texts
from windlass.train.hf.convert_weights import export_model
from windlass.train.hf.import_export import export_hf, import_model
from windlass.train.hf.mapped import ModuleWeights
from windlass.train.parallel.world import World

CARRIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
TEXTS = ("hello\n", "na\u00efve \U0001f642\tx", "\x00\x7f", " two  spaces ")


def published(folder: Path) -> Path:
    """A model with all that lies beside one on the hub."""
    model = decoder(MODELS["qwen3"])
    export_model(model.config, ModuleWeights(model), folder)
    words = ["<s>", "<end>", "<pad>", "a", "b", "c", "[UNK]"]
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(["<s>", "<end>", "<pad>"])
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token":   "<end>"}')
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<end>"}\n\n')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2], "temperature": 0.6}')
    data = json.loads((folder / "config.json").read_text())
    data |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def test_a_model_comes_back_with_its_tokenizer_and_its_special_ids(tmp_path: Path) -> None:
    first = published(tmp_path / "first")
    checkpoint = import_model(f"hf:{first}", str(tmp_path / "checkpoints"))
    for source in (checkpoint, str(first)):
        second = export_hf(source, tmp_path / "again", dtype="float32", overwrite=True)
        for name in (*CARRIED, "generation_config.json"):
            assert (second / name).read_bytes() == (first / name).read_bytes(), name
        written = AutoConfig.from_pretrained(second)
        assert (written.bos_token_id, written.eos_token_id, written.pad_token_id) == (0, 1, 2)
    said = [
        continue_texts(path, ["a b"], max_new_tokens=8) for path in (str(first), checkpoint, str(tmp_path / "again"))
    ]
    assert said[0] == said[1] == said[2]


def test_another_tokenizer_may_be_asked_for(tmp_path: Path) -> None:
    first = published(tmp_path / "first")
    again = export_hf(str(first), tmp_path / "again", tokenizer="bytes")
    assert len(AutoTokenizer.from_pretrained(again)) == 258
    assert not (again / "generation_config.json").exists()


def train_on_bytes(tmp_path: Path) -> Path:
    """The folder of checkpoints of a run of two steps."""
    config = dataclasses.replace(MODELS["llama"], vocab_size=258)
    settings = train.CheckpointerConfig(folder=str(tmp_path / "checkpoints"))
    made = build_trainer(
        recipe(tmp_path, config, duration=train.Duration.steps(2), checkpoint=settings),
        World(device=torch.device("cpu")),
    )
    made.fit()
    return tmp_path / "checkpoints"


def test_a_recipe_of_bytes_exports_a_tokenizer(tmp_path: Path) -> None:
    trained = train_on_bytes(tmp_path)
    folder = export_hf(str(trained), tmp_path / "out", dtype="float32")
    theirs, ours = AutoTokenizer.from_pretrained(folder), ByteTokenizer()
    for text in (*TEXTS, *(chr(number) for number in range(256))):
        assert theirs.encode(text, add_special_tokens=False) == list(ours.encode(text))
        assert theirs.decode(ours.encode(text)) == text
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.bos_token_id, len(theirs)) == (256, 257, None, 258)
    assert continue_texts(str(folder), ["words"], max_new_tokens=8) == continue_texts(
        str(trained), ["words"], max_new_tokens=8
    )
