"""Checkpoints of OLMo-core become models of ours; broken and hostile ones do nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tests.train.hf.test_convert_weights import decoder
from tests.train.olmo_core.written import model_data, state_of, write
from windlass.core.errors import SpecError
from windlass.train.errors import CheckpointError
from windlass.train.hf.import_export import export_hf, import_model
from windlass.train.hf.warm_start import warm_start
from windlass.train.model.config import ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.modules.state import training_state
from windlass.train.olmo_core.checkpoint import open_olmo_core
from windlass.train.olmo_core.config import from_olmo_core

CONFIG = from_olmo_core(model_data())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("olmo") / "step1000"
    return write(root, state_of(decoder(CONFIG), CONFIG), {"model": model_data()})


def test_weights_come_under_our_names(folder: Path) -> None:
    with open_olmo_core(str(folder)) as found:
        assert found.config == CONFIG
        assert found.step == 1000
        assert set(found.shapes()) == {name for name, _ in decoder(CONFIG).named_parameters()}
        for name, tensor in decoder(CONFIG).named_parameters():
            assert torch.equal(found.tensor(name), tensor), name


def test_the_folder_inside_and_the_folder_of_all_work_too(folder: Path) -> None:
    assert open_olmo_core(str(folder / "model_and_optim")).config == CONFIG
    assert open_olmo_core(str(folder.parent)).source == str(folder)


def test_special_ids_go_on_to_hugging_face(tmp_path: Path) -> None:
    ids = {"bos_token_id": None, "eos_token_id": 3, "pad_token_id": 4, "identifier": "of/somebody", "vocab_size": 97}
    config = {"model": model_data(), "dataset": {"tokenizer": ids}}
    source = write(tmp_path / "step5", state_of(decoder(CONFIG), CONFIG), config)
    checkpoint = import_model(str(source), str(tmp_path / "checkpoints"))
    for path in (str(source), checkpoint):
        written = json.loads((export_hf(path, tmp_path / "hf", overwrite=True) / "config.json").read_text())
        assert [written[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [None, 3, 4]


def test_the_optimiser_comes_with_it(folder: Path) -> None:
    model = Decoder(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters())
    state = training_state(model, optimizer)
    assert warm_start(state, str(folder)) == (str(folder), 1000)
    want = decoder(CONFIG)
    for name, parameter in want.named_parameters():
        assert torch.equal(state["model"][name], parameter)
        assert torch.equal(state["optim"][f"{name}.exp_avg"], parameter * 0.5)
        assert torch.equal(state["optim"][f"{name}.exp_avg_sq"], parameter**2)
        assert float(state["optim"][f"{name}.step"]) == 3


def test_the_optimiser_stays_away_where_it_is_not_asked_for(folder: Path) -> None:
    model = Decoder(CONFIG)
    state = training_state(model, torch.optim.AdamW(model.parameters()))
    warm_start(state, str(folder), optim=False)
    assert float(state["optim"]["norm.weight.exp_avg"].abs().sum()) == 0


def test_an_optimiser_of_another_kind_is_left_out_or_refused(folder: Path) -> None:
    model = Decoder(CONFIG)
    state = training_state(model, torch.optim.SGD(model.parameters(), momentum=0.9))
    warm_start(state, str(folder))
    with pytest.raises(CheckpointError, match="momentum_buffer is missing"):
        warm_start(state, str(folder), optim=True)


def test_another_model_is_refused_by_the_names_of_its_weights(folder: Path) -> None:
    other = {field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(CONFIG)}
    with pytest.raises(CheckpointError) as raised:
        open_olmo_core(str(folder), ModelConfig(**{**other, "hidden": 64}))
    assert "blocks.0.feed_forward.w1.weight has shape [48, 32], not [64, 32]" in raised.value.message


def test_without_a_config_somebody_must_say_what_it_is(tmp_path: Path) -> None:
    bare = write(tmp_path / "step7", state_of(decoder(CONFIG), CONFIG), None)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        open_olmo_core(str(bare))
    assert open_olmo_core(str(bare), CONFIG).step == 7


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    broken = write(tmp_path / "step7", state_of(decoder(CONFIG), CONFIG), None)
    (broken / "config.json").write_text("{")
    with pytest.raises(SpecError, match="cannot read"):
        open_olmo_core(str(broken))
    (broken / "config.json").write_text(json.dumps({"model": {"d_model": 3}}))
    with pytest.raises(SpecError, match="does not describe an OLMo-core model: KeyError"):
        open_olmo_core(str(broken))
