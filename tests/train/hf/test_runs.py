"""A run from end to end: first weights from a folder of Hugging Face, training, and back into such a folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch

from tests.train.hf.models import MODELS
from tests.train.hf.test_convert_weights import decoder, logits, oracle
from windlass import train
from windlass.train.build import build_trainer
from windlass.train.compare.checkpoints import diff_checkpoints
from windlass.train.hf.convert_weights import export_model
from windlass.train.hf.import_export import export_hf
from windlass.train.hf.mapped import ModuleWeights
from windlass.train.hf.sources import open_model
from windlass.train.model.config import ModelConfig
from windlass.train.parallel.world import World


def recipe(folder: Path, model: ModelConfig, **changes: object) -> train.Recipe:
    (folder / "text.txt").write_text("words to learn from\n" * 60)
    return train.Recipe(
        name="tuned",
        model=model,
        data=train.DataConfig(
            sources=(train.SourceConfig(path=(str(folder / "text.txt"),)),),
            tokenizer=train.TokenizerConfig(path="bytes"),
            sequence_length=16,
            batch_tokens=64,
            cache=folder / "cache",
        ),
        device="cpu",
        **changes,  # type: ignore[arg-type]
    )


def test_tuning_a_model_of_hugging_face(tmp_path: Path) -> None:
    first = decoder(dataclasses.replace(MODELS["qwen3-tied"], vocab_size=258))
    source = export_model(first.config, ModuleWeights(first), tmp_path / "first")
    load = train.LoadConfig(path=f"hf:{source}", strategy="always")
    made = build_trainer(
        recipe(
            tmp_path,
            first.config,
            duration=train.Duration.steps(2),
            checkpoint=train.CheckpointerConfig(folder=str(tmp_path / "checkpoints"), load=load, at_start=True),
        ),
        World(device=torch.device("cpu")),
    )
    made.fit()
    begun = diff_checkpoints(str(tmp_path / "checkpoints" / "step-0"), str(source))
    assert begun.weights == ()
    assert begun.settings == ()

    folder = export_hf(str(tmp_path / "checkpoints"), tmp_path / "tuned", dtype="float32")
    written = json.loads((folder / "config.json").read_text())
    assert (written["eos_token_id"], written["bos_token_id"], written["pad_token_id"]) == (256, None, None)
    tokens_BT = torch.randint(0, 258, (2, 16))
    assert torch.allclose(logits(oracle(folder), tokens_BT), logits(made.module.model, tokens_BT), atol=1e-6)
    with open_model(str(tmp_path / "checkpoints")) as found:
        assert getattr(found, "step", None) == 2
    for path in (tmp_path / "checkpoints", folder):
        loaded = train.load_model(str(path))
        assert not loaded.training
        assert torch.equal(logits(loaded, tokens_BT), logits(made.module.model, tokens_BT))
    changed = diff_checkpoints(str(tmp_path / "checkpoints" / "step-0"), str(tmp_path / "checkpoints" / "step-2"))
    assert changed.first_block == "embed"
    assert {setting.path for setting in changed.trainer} >= {"step", "tokens"}
