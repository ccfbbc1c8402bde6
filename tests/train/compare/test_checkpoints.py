"""What two checkpoints differ in: settings with their origins, weights and where they begin, the trainer's state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.train.hf.models import MODELS
from tests.train.hf.test_convert_weights import decoder
from windlass.config.encode import to_data
from windlass.train.checkpoint.store import open_store
from windlass.train.compare.checkpoints import diff_checkpoints
from windlass.train.hf.import_export import export_hf
from windlass.train.model.decoder import Decoder
from windlass.train.parallel.world import World

CONFIG = MODELS["olmo2"]


def save(folder: Path, model: Decoder, *, step: int = 3, lr: float = 1e-3, **trainer: Any) -> str:
    store = open_store(str(folder), World(device=torch.device("cpu")))
    record = {
        "schema": "windlass.recipe/1",
        "recipe": {"model": to_data(model.config, keep_defaults=True), "optim": {"lr": lr}},
        "origins": {"optim.lr": f"recipe.py:{step}"},
    }
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    pending = store.save(
        {"model": weights},
        {"step": step, **trainer},
        step=step,
        tokens=step,
        config=record,
        is_permanent=True,
        is_async=False,
    )
    return pending.wait().path


def test_equal_checkpoints(tmp_path: Path) -> None:
    a, b = (save(tmp_path / name, decoder(CONFIG)) for name in ("a", "b"))
    found = diff_checkpoints(a, b)
    assert found.is_equal
    assert (found.num_equal, found.first_block) == (25, "")
    assert str(found) == f"{a} and {b} are equal in all they share: 25 weights, and settings"


def test_settings_trainer_and_weights(tmp_path: Path) -> None:
    model = decoder(CONFIG)
    a = save(tmp_path / "a", model, loader={"epoch": 0, "index": 7})
    with torch.no_grad():
        model.get_parameter("blocks.1.ffn.up.weight")[0, 0] += 0.5
        model.get_parameter("norm.weight").fill_(float("nan"))
    b = save(tmp_path / "b", model, step=4, lr=3e-4, loader={"epoch": 0, "index": 9})
    found = diff_checkpoints(a, b)
    assert str(found).splitlines() == [
        f"- {a}",
        f"+ {b}",
        "settings",
        "  ~ optim.lr: 0.001 (recipe.py:3) -> 0.0003 (recipe.py:4)",
        "trainer",
        "  ~ step: 3 -> 4",
        "  ~ loader.index: 7 -> 9",
        "weights: 2 of 25 differ, first in blocks.1",
        f"  ~ blocks.1.ffn.up.weight: by 0.5 (largest value {found.weights[0].scale:.3g})",
        f"  ~ norm.weight: by inf (largest value {found.weights[1].scale:.3g})",
    ]
    data = json.loads(json.dumps(found.to_data(), allow_nan=False))
    assert data["first_block"] == "blocks.1"
    assert data["weights"][1]["difference"] == "inf"
    assert diff_checkpoints(b, b).is_equal  # a NaN equals itself


def test_models_of_other_sizes(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", decoder(CONFIG)), save(tmp_path / "b", decoder(MODELS["llama-tied"]))
    found = diff_checkpoints(a, b)
    assert "- blocks.0.attention.k_norm.weight [32]" in {str(weight) for weight in found.weights}
    assert "~ blocks.0.attention.k.weight: [32, 32] -> [16, 32]" in {str(weight) for weight in found.weights}
    paths = {setting.path for setting in found.settings}
    assert {"model.is_tied", "model.attention.num_kv_heads", "model.norm"} <= paths


def test_against_its_own_export(tmp_path: Path) -> None:
    a = save(tmp_path / "a", decoder(CONFIG))
    same = export_hf(a, tmp_path / "same", dtype="float32")
    assert diff_checkpoints(a, str(same)).is_equal
    rounded = diff_checkpoints(a, f"hf:{export_hf(a, tmp_path / 'rounded', dtype='bfloat16')}")
    assert rounded.first_block == "embed"
    assert all(weight.difference is not None and weight.difference < 4e-3 for weight in rounded.weights)


def test_blocks_come_by_number(tmp_path: Path) -> None:
    config = MODELS["olmo3"]
    model = decoder(config)
    a = save(tmp_path / "a", model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    found = diff_checkpoints(a, save(tmp_path / "b", model))
    parts = [weight.name.split(".")[1] for weight in found.weights if weight.name.startswith("blocks.")]
    assert parts == sorted(parts, key=int)
    assert (found.weights[0].name, found.weights[-1].name) == ("embed.weight", "norm.weight")
    assert "and 35 more" in str(found)
