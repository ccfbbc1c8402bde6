"""The recipes of mid-training and long context against the numbers of their published scripts."""

from __future__ import annotations

import pytest

from tests.train.narrow import data_of, decoder_of
from windlass.train.duration import Duration
from windlass.train.model.config import YarnScaling
from windlass.train.model.flops import count_parameters
from windlass.train.model.presets import preset
from windlass.train.model.rope import frequencies
from windlass.train.optim.config import AdamWConfig
from windlass.train.optim.schedule_config import LinearConfig
from windlass.train.optim.schedules import Rates, ScheduleStep, lr_factor
from windlass.train.parallel.config import BudgetCheckpointing, SelectiveCheckpointing
from windlass.train.plan.machine import MachineSpec
from windlass.train.plan.plan import plan_recipe
from windlass.train.recipe import Recipe
from windlass.train.resolve import resolve

STAGES = (
    "olmo2-7b-midtraining",
    "olmo3-7b-midtraining",
    "olmo3-7b-long-context",
    "olmo3-32b-midtraining",
    "olmo3-32b-long-context",
)
LONG = tuple(name for name in STAGES if name.endswith("long-context"))
RECIPES: dict[str, Recipe] = {name: resolve(name).recipe for name in STAGES}


@pytest.mark.parametrize(
    ("name", "parameters", "lr", "batch_tokens", "row", "at_once", "tokens", "warmup", "seeds"),
    [
        ("olmo2-7b-midtraining", 7_298_617_344, 0.000061499, 2**22, 4096, 8192, 50, 0, (42, 42)),
        ("olmo3-7b-midtraining", 7_298_617_344, 0.00020712352850360292, 2**21, 8192, 16_384, 100, 0, (1337, 1337)),
        (
            "olmo3-7b-long-context",
            7_298_617_344,
            0.00020712352850360292,
            2**22,
            65_536,
            65_536,
            50,
            200,
            (12_536, 34_521),
        ),
        ("olmo3-32b-midtraining", 32_234_279_936, 0.0002071235285, 2**22, 8192, 8192, 100, 0, (12_536, 42_069)),
        ("olmo3-32b-long-context", 32_234_279_936, 0.0002071235285, 2**23, 65_536, 65_536, 100, 200, (12_536, 34_521)),
    ],
)
def test_published_numbers(
    name: str,
    parameters: int,
    lr: float,
    batch_tokens: int,
    row: int,
    at_once: int,
    tokens: int,
    warmup: int,
    seeds: tuple[int, int],
) -> None:
    recipe, data = RECIPES[name], data_of(RECIPES[name])
    assert count_parameters(decoder_of(recipe)).total == parameters
    assert (data.batch_tokens, data.sequence_length, data.microbatch_tokens) == (batch_tokens, row, at_once)
    assert (recipe.duration, recipe.stop) == (Duration.tokens(tokens * 10**9), None)
    assert recipe.schedule == LinearConfig(warmup=Duration.steps(warmup), final=0.0)
    assert (recipe.seed, data.seed) == seeds
    assert recipe.loss.z_loss == 1e-5
    assert isinstance(recipe.optim, AdamWConfig)
    assert (recipe.optim.lr, recipe.optim.weight_decay, recipe.optim.betas) == (lr, 0.1, (0.9, 0.95))
    assert (recipe.optim.max_grad_norm, recipe.optim.groups[0].weight_decay) == (1.0, 0.0)
    assert (recipe.optim.skip is None) == (name == "olmo2-7b-midtraining")


@pytest.mark.parametrize("name", STAGES)
def test_the_rate_is_at_its_peak_when_the_schedule_says_so_and_ends_at_zero(name: str) -> None:
    recipe = RECIPES[name]
    schedule, batch = recipe.schedule, recipe.data.batch_tokens
    assert isinstance(schedule, LinearConfig)

    def factor(step: int) -> float:
        tokens = min(step * batch, recipe.duration.value)
        at = ScheduleStep(step=step, tokens=tokens, rates=Rates(batch_tokens=batch))
        return lr_factor(schedule, at, recipe.duration)

    warmup = schedule.warmup.value
    assert factor(warmup or 1) == pytest.approx(1.0, abs=1e-3)
    assert warmup == 0 or factor(warmup // 2) == pytest.approx(0.5)
    assert factor(1 + recipe.duration.value // batch) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", STAGES)
def test_each_begins_with_the_stage_before(name: str) -> None:
    load = RECIPES[name].checkpoint.load
    assert (load.strategy, load.trainer) == ("always", False)
    assert load.optim is (name != "olmo2-7b-midtraining")
    begins = {
        "olmo2-7b-midtraining": "step928646",
        "olmo3-7b-midtraining": "step1413814",
        "olmo3-7b-long-context": "step47684",
        "olmo3-32b-midtraining": "step656000",
        "olmo3-32b-long-context": "step23842",
    }
    assert begins[name] in load.path


@pytest.mark.parametrize("name", LONG)
def test_a_long_context_stretches_the_layers_without_a_window_only(name: str) -> None:
    recipe = RECIPES[name]
    model, data = decoder_of(recipe), data_of(recipe)
    stretched = [layer for layer in range(model.num_layers) if model.rope_of(layer) != preset("olmo3-7b").rope]
    assert stretched == list(range(3, model.num_layers, 4))
    assert [layer for layer in range(model.num_layers) if model.window_of(layer) is None] == stretched
    scaling = model.rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert (scaling.factor, scaling.old_length, scaling.beta_fast, scaling.beta_slow) == (8.0, 8192, 32.0, 1.0)
    assert frequencies(model.rope, model.head_dim)[1] == pytest.approx(1.2079441541679836)
    assert model.max_length == data.sequence_length == 65_536
    assert (data.layout, data.long_documents, data.mask_documents) == ("pack", "truncate", True)
    assert recipe.parallel.context == 8


def test_what_is_computed_again() -> None:
    found = {name: RECIPES[name].parallel.checkpointing for name in STAGES}
    assert found == {
        "olmo2-7b-midtraining": None,
        "olmo3-7b-midtraining": SelectiveCheckpointing(),
        "olmo3-7b-long-context": None,
        "olmo3-32b-midtraining": BudgetCheckpointing(share=0.5),
        "olmo3-32b-long-context": BudgetCheckpointing(share=0.3),
    }


@pytest.mark.parametrize("name", STAGES)
def test_the_plan_can_be_applied_to_a_small_model_of_the_same_kind(name: str) -> None:
    changes = (
        "model.d_model=64",
        "model.num_layers=4",
        "model.hidden=128",
        "model.vocab_size=512",
        "model.attention.num_heads=8",
        "model.attention.num_kv_heads=8",
        "data.sequence_length=512",
        "data.batch_tokens=16384",
        "data.microbatch_tokens=512",
        "parallel.compile=false",
        "~parallel.checkpointing",
    )
    plan = plan_recipe(resolve(name, changes).recipe, MachineSpec(world=16))
    assert plan.applied.note == ""
    assert plan.applied.facts["mesh"] == ({"dp_shard": 2, "cp": 8} if name in LONG else {"dp_shard": 16})
