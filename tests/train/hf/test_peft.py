"""Adapters in PEFT's format: what PEFT wrote is read with equal logits, and written again as PEFT wrote it.

`make_peft.py` made the stored adapter with PEFT, and checked that PEFT loads what windlass writes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.train.hf.models import MODELS
from tests.train.hf.test_runs import recipe
from windlass import train
from windlass.core.errors import UsageError
from windlass.train.build import build_trainer
from windlass.train.errors import CheckpointError
from windlass.train.hf.convert_weights import export_model
from windlass.train.hf.import_export import export_hf
from windlass.train.hf.mapped import ModuleWeights
from windlass.train.hf.maps import adapted_layers
from windlass.train.hf.peft import read_peft, write_peft
from windlass.train.hf.sources import load_model, open_model
from windlass.train.model.config import AttentionConfig, LoRAConfig, ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.parallel.world import World

STORED = Path(__file__).with_name("peft")
MODEL = ModelConfig(
    d_model=16,
    num_layers=2,
    vocab_size=32,
    hidden=24,
    attention=AttentionConfig(num_heads=4, num_kv_heads=2),
    max_length=32,
    family="llama",
)
TOKENS_BT = torch.arange(12).reshape(2, 6) * 5 % 32


def waves(model: nn.Module, only: str = "") -> None:
    """Set parameters to values that are the same with every version of torch."""
    with torch.no_grad():
        for place, (name, parameter) in enumerate(sorted(model.named_parameters())):
            if only in name and "norm" not in name:
                steps = torch.arange(parameter.numel(), dtype=torch.float64) * (0.7 + 0.01 * place)
                parameter.copy_((torch.sin(steps) / math.sqrt(16)).reshape(parameter.shape))


def base(folder: Path, config: ModelConfig = MODEL) -> Path:
    """Write the base model of the stored adapter."""
    model = Decoder(config)
    waves(model)
    return export_model(config, ModuleWeights(model), folder)


def stored(folder: Path, **changes: object) -> Path:
    """A copy of the stored adapter beside its base, with other settings."""
    target = folder / "adapter"
    shutil.copytree(STORED, target)
    data = json.loads((target / "adapter_config.json").read_text())
    data |= {"base_model_name_or_path": str(folder / "base"), **changes}
    (target / "adapter_config.json").write_text(json.dumps(data))
    return target


def last_logits(model: Decoder) -> Tensor:
    with torch.no_grad():
        found = model(TOKENS_BT)
    assert isinstance(found, Tensor)
    return found[:, -1]


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_an_adapter_of_peft_computes_the_same_logits(tmp_path: Path, prefix: str) -> None:
    base(tmp_path / "base")
    wanted = torch.tensor(json.loads((STORED / "logits.json").read_text()))
    found = last_logits(load_model(f"{prefix}{stored(tmp_path)}"))
    assert torch.allclose(found, wanted, atol=2e-6)
    assert not torch.allclose(last_logits(load_model(str(tmp_path / "base"))), wanted, atol=1e-2)


def test_an_adapter_is_written_as_peft_writes_it(tmp_path: Path) -> None:
    written = write_peft(MODEL, read_peft(STORED, MODEL), tmp_path / "again")
    theirs, ours = (load_file(folder / "adapter_model.safetensors") for folder in (STORED, written))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    wanted, found = (json.loads((folder / "adapter_config.json").read_text()) for folder in (STORED, written))
    assert found.pop("lora_dropout") == 0.0  # an adapter that is read is not trained
    assert sorted(found.pop("target_modules")) == sorted(wanted["target_modules"])
    assert found.items() <= wanted.items()


def test_layers_that_have_no_common_name_are_listed(tmp_path: Path) -> None:
    adapter = read_peft(STORED, MODEL)
    own = LoRAConfig(rank=4, alpha=6, rslora=True, targets=("blocks.1.attention.*",))
    weights = {f"blocks.1.attention.{x}.lora_{m}": torch.zeros(1) for x in "qkvo" for m in "ab"}
    shapes = {"a": dict.fromkeys("qkvo", (4, 16)), "b": {"q": (16, 4), "k": (8, 4), "v": (8, 4), "o": (16, 4)}}
    weights = {name: torch.ones(shapes[name[-1]][name.split(".")[3]]) for name in weights}
    made = type(adapter)(config=own, weights=weights, base="x", source="y")
    folder = write_peft(MODEL, made, tmp_path / "made")
    targets = json.loads((folder / "adapter_config.json").read_text())["target_modules"]
    assert targets == [f"model.layers.1.self_attn.{x}_proj" for x in "koqv"]
    assert read_peft(folder, MODEL).config.targets == tuple(f"blocks.1.attention.{x}" for x in "qkvo")


def test_a_merged_export_is_a_plain_model(tmp_path: Path) -> None:
    base(tmp_path / "base")
    adapter = stored(tmp_path)
    merged = export_hf(str(adapter), tmp_path / "merged", dtype="float32")
    wanted = torch.tensor(json.loads((STORED / "logits.json").read_text()))
    assert torch.allclose(last_logits(load_model(str(merged))), wanted, atol=2e-6)
    assert not (merged / "adapter_config.json").exists()
    with pytest.raises(UsageError, match="has no adapter to merge"):
        export_hf(str(merged), tmp_path / "again", merge=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"use_dora": True}, "no adapters with use_dora=True"),
        ({"bias": "all"}, "no adapters with bias='all'"),
        ({"peft_type": "IA3"}, "no adapters with peft_type='IA3'"),
        ({"init_lora_weights": "pissa"}, "no adapters with init_lora_weights='pissa'"),
        ({"rank_pattern": {"q_proj": 8}}, "no adapters with rank_pattern"),
        ({"r": 8}, r"lora_a has shape \[4, 16\], not \[8, 16\]"),
        ({"r": None}, "cannot read it"),
        ({"base_model_name_or_path": None}, "names no base model"),
        ({"base_model_name_or_path": "/nowhere"}, "the base model of adapter"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    base(tmp_path / "base")
    with pytest.raises(CheckpointError, match=why):
        load_model(str(stored(tmp_path, **changes)))


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    base(tmp_path / "base")
    folder = stored(tmp_path)
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file(
        {**tensors, "base_model.model.lm_head.lora_A.weight": torch.zeros(1)}, folder / "adapter_model.safetensors"
    )
    with pytest.raises(CheckpointError, match=r"no place for base_model\.model\.lm_head\.lora_A\.weight"):
        open_model(str(folder))


def test_a_training_run_adapts_the_model_that_it_loads(tmp_path: Path) -> None:
    plain = recipe(tmp_path, MODELS["llama"], duration=train.Duration.steps(2))
    plain = dataclasses.replace(plain, model=dataclasses.replace(MODELS["llama"], vocab_size=258))
    first = dataclasses.replace(plain, checkpoint=train.CheckpointerConfig(folder=str(tmp_path / "first")))
    build_trainer(first, World(device=torch.device("cpu"))).fit()
    load = train.LoadConfig(path=str(tmp_path / "first"), strategy="always")
    second = dataclasses.replace(
        plain,
        adapter=LoRAConfig(rank=2),
        checkpoint=train.CheckpointerConfig(folder=str(tmp_path / "second"), load=load),
        stop=train.Duration.steps(1),
    )
    made = build_trainer(second, World(device=torch.device("cpu")))
    made.fit()
    again = build_trainer(dataclasses.replace(second, stop=None), World(device=torch.device("cpu")))
    again.fit()
    assert again.step == 2
    base, state = load_model(str(tmp_path / "first")).state_dict(), again.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in base.items())
    merged = load_model(str(tmp_path / "second")).state_dict()
    changed = {name for name, value in base.items() if not torch.equal(value, merged[name])}
    assert changed == {f"{name}.weight" for name in adapted_layers(first.model, LoRAConfig())}  # type: ignore[arg-type]
