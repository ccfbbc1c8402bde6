"""Models that are spread over processes: filled from a folder, exported, evaluated, as one process does it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.train.evaluate.test_loss import MODEL, held_out
from tests.train.hf.models import MODELS
from tests.train.hf.test_convert_weights import decoder
from windlass.testing import run_distributed_test
from windlass.train.evaluate.lm_eval import evaluate
from windlass.train.hf.convert_weights import export_model, load_hf
from windlass.train.hf.mapped import ModuleWeights, fill
from windlass.train.model.config import ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights
from windlass.train.modules.language import LanguageModule
from windlass.train.parallel.apply import parallelize
from windlass.train.parallel.config import ParallelConfig
from windlass.train.parallel.world import World

CONFIG = dataclasses.replace(MODELS["olmo3"], vocab_size=96)  # even, to be split in two


def spread(config: ModelConfig, parallel: ParallelConfig, world: World) -> Decoder:
    with torch.device("meta"):
        model = Decoder(config)
    parallelize(model, parallel, world)
    init_weights(model, 1, device=world.device)
    return model


def there_and_back(world: World, folder: Path) -> float:
    for name, parallel in (("fsdp", ParallelConfig(data="fsdp")), ("tp", ParallelConfig(tensor=2))):
        place = World(rank=world.rank, size=world.size, device=world.device)
        model = spread(CONFIG, parallel, place)
        load_hf(model, folder / "hf")
        whole = {key: ModuleWeights(model).tensor(key) for key in ModuleWeights(model).shapes()}
        for key, tensor in decoder(CONFIG).named_parameters():
            assert torch.equal(whole[key], tensor), (name, key)
    place = World(rank=world.rank, size=world.size, device=world.device)
    net = spread(MODEL, ParallelConfig(data="fsdp"), place)
    module = LanguageModule(net, torch.optim.SGD(net.parameters(), lr=0.1), world=place)
    rows = held_out(folder / f"rank-{world.rank}")
    found = evaluate(module, rows, place)
    assert found is not None
    return found.loss


@pytest.mark.system
def test_two_processes(tmp_path: Path) -> None:
    export_model(CONFIG, ModuleWeights(decoder(CONFIG)), tmp_path / "hf")
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}").mkdir()
    found = run_distributed_test(there_and_back, num_processes=2, args=(tmp_path,))
    alone = Decoder(MODEL)
    init_weights(alone, 1)
    (tmp_path / "alone").mkdir()
    rows = held_out(tmp_path / "alone")
    want = evaluate(
        LanguageModule(alone, torch.optim.SGD(alone.parameters(), lr=0.1)), rows, World(device=torch.device("cpu"))
    )
    assert want is not None
    assert found == [want.loss, want.loss]


def test_a_stage_of_a_pipeline_takes_its_part(tmp_path: Path) -> None:
    folder = export_model(CONFIG, ModuleWeights(decoder(CONFIG)), tmp_path / "hf")
    model = Decoder(CONFIG)
    model.embed = None
    for block in ("0", "1"):
        del model.blocks[block]
    load_hf(model, folder)
    want = dict(decoder(CONFIG).named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, want[name])
    with pytest.raises(Exception, match="the model has no "):
        fill(
            {name: want[name] for name in want if not name.startswith("blocks.3.")}, ModuleWeights(decoder(CONFIG)), "x"
        )
