"""Losses and gradients against stored ones of TRL and open-instruct: 1e-9 in float64, 1e-5 in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from tests.post.objectives.references import CASES, INPUTS, TOLERANCES, assert_equal, graded, rows
from windlass.post.objectives.advantage import advantages_of
from windlass.post.objectives.config import (
    AdvantageConfig,
    CorrectionConfig,
    KLConfig,
    PolicyConfig,
    PreferenceConfig,
    PreferenceLoss,
    RewardConfig,
    SupervisedConfig,
)
from windlass.post.objectives.policy import PolicyObjective
from windlass.post.objectives.preference import PreferenceObjective
from windlass.post.objectives.presets import PRESETS, preset
from windlass.post.objectives.reward import RewardObjective
from windlass.post.objectives.supervised import SupervisedObjective

DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=["float64", "float32"])
PENALTIES = {
    "plain": KLConfig(),
    "kl": KLConfig(coefficient=0.05),
    "kl_times_ratio": KLConfig(coefficient=0.05, times_ratio=True),
}


def of_preset(name: str, kl: KLConfig) -> PolicyConfig:
    own = preset(name).policy
    return replace(own, kl=kl, length=7 if own.denominator == "constant" else None)


@DTYPES
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "rloo"])
def test_presets_are_those_of_trl(name: str, penalty: str, dtype: torch.dtype) -> None:
    objective = PolicyObjective(config=of_preset(name, PENALTIES[penalty]))
    assert_equal(objective, rows(dtype), f"policy/{name}/{penalty}", dtype)


@DTYPES
def test_rloo_is_that_of_trl(dtype: torch.dtype) -> None:
    value, grad = graded(PolicyObjective(config=preset("rloo").policy), rows(dtype), "logp", dtype)
    bound, case = TOLERANCES[dtype], CASES["policy/rloo/plain"]
    constant = float(INPUTS["advantage"][4]) / 8  # TRL counts an answer without tokens as ratio 1
    torch.testing.assert_close(value - constant, case["value"], rtol=bound, atol=bound)
    torch.testing.assert_close(grad, torch.tensor(case["grad"], dtype=torch.float64), rtol=bound, atol=bound)


SHAPES = {
    "dual_clip": PolicyConfig(ratio_max=1.5),
    "entropy_bonus": PolicyConfig(denominator="sequence", entropy_bonus=0.03),
    "gspo_token_mean": PolicyConfig(ratio="sequence_mean", kl=PENALTIES["kl_times_ratio"]),
}


@DTYPES
@pytest.mark.parametrize("name", SHAPES)
def test_other_axes_are_those_of_trl(name: str, dtype: torch.dtype) -> None:
    assert_equal(PolicyObjective(config=SHAPES[name]), rows(dtype), f"policy/{name}", dtype)


@DTYPES
@pytest.mark.parametrize("bounds", [(None, 2.0), (0.7, 1.5)])
@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_corrections_are_those_of_trl(mode: str, bounds: tuple[float | None, float], dtype: torch.dtype) -> None:
    level, _, kind = mode.partition("_")
    low, high = bounds
    where: Literal["token", "sequence"] = "token" if level == "token" else "sequence"
    clamped = CorrectionConfig(level=where, clamp_min=low, clamp_max=high)
    masked = CorrectionConfig(level=where, mask_min=low, mask_max=high)
    correction = clamped if kind == "truncate" else masked
    config = PolicyConfig(correction=correction, kl=PENALTIES["kl_times_ratio"])
    assert_equal(PolicyObjective(config=config), rows(dtype), f"correction/{mode}/{low}/{high}", dtype)


SCALES = {
    "group": AdvantageConfig(scale="group_std"),
    "batch": AdvantageConfig(scale="batch_std"),
    "none": AdvantageConfig(),
    "rloo/False": AdvantageConfig(baseline="leave_one_out"),
    "rloo/True": AdvantageConfig(baseline="leave_one_out", scale="whiten"),
}


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("kind", ["rewards", "rewards_nan"])
def test_advantages_are_those_of_trl(kind: str, name: str) -> None:
    found = advantages_of(INPUTS[kind], torch.arange(12) // 4, SCALES[name])
    expected = torch.tensor(CASES[f"advantage/{kind}/{name}"]["value"], dtype=torch.float64)
    torch.testing.assert_close(found.values_S, expected, rtol=1e-9, atol=1e-9)


PAIRS: dict[str, tuple[PreferenceLoss, ...]] = {
    "preference/dpo": (PreferenceLoss(kind="dpo"),),
    "preference/dpo_norm": (PreferenceLoss(kind="dpo_norm", beta=5.0),),
    "preference/ipo": (PreferenceLoss(kind="ipo"),),
    "preference/wpo": (PreferenceLoss(kind="wpo"),),
    "preference/nll": (PreferenceLoss(kind="nll"),),
    "preference/dpo+nll": (PreferenceLoss(kind="dpo", weight=0.8), PreferenceLoss(kind="nll", weight=0.2)),
    "preference/dpo+ipo+nll": (
        PreferenceLoss(kind="dpo", beta=0.3),
        PreferenceLoss(kind="ipo", beta=0.3, weight=0.5),
        PreferenceLoss(kind="nll", weight=0.25),
    ),
    "preference/simpo/0.0": (PreferenceLoss(kind="simpo", beta=2.0, target_margin=0.5),),
    "preference/simpo/0.1": (PreferenceLoss(kind="simpo", beta=2.0, target_margin=0.5, label_smoothing=0.1),),
    "open_instruct/dpo/0.0": (PreferenceLoss(kind="dpo"),),
    "open_instruct/dpo/0.1": (PreferenceLoss(kind="dpo", label_smoothing=0.1),),
    "open_instruct/dpo_norm/0.0": (PreferenceLoss(kind="dpo_norm", beta=5.0),),
    "open_instruct/dpo_norm/0.1": (PreferenceLoss(kind="dpo_norm", beta=5.0, label_smoothing=0.1),),
    "open_instruct/simpo/0.0": (PreferenceLoss(kind="simpo", beta=2.0, target_margin=0.3),),
    "open_instruct/simpo/0.1": (PreferenceLoss(kind="simpo", beta=2.0, target_margin=0.3, label_smoothing=0.1),),
}


@DTYPES
@pytest.mark.parametrize("case", PAIRS)
def test_losses_of_pairs_are_those_of_trl_and_open_instruct(case: str, dtype: torch.dtype) -> None:
    assert_equal(PreferenceObjective(config=PreferenceConfig(losses=PAIRS[case])), rows(dtype), case, dtype)


@DTYPES
@pytest.mark.parametrize("has_margin", [False, True])
@pytest.mark.parametrize("centring", [None, 0.01])
def test_reward_loss_is_that_of_trl(centring: float | None, has_margin: bool, dtype: torch.dtype) -> None:
    own = rows(dtype)
    if has_margin:
        own = replace(own, margins_P=INPUTS["margins"].to(dtype))
    objective = RewardObjective(config=RewardConfig(centring=centring or 0.0))
    assert_equal(objective, own, f"reward/{centring}/{has_margin}", dtype, leaf="values")


@DTYPES
@pytest.mark.parametrize("kind", ["nll", "dft"])
def test_supervised_loss_is_that_of_trl(kind: str, dtype: torch.dtype) -> None:
    config = SupervisedConfig(kind="nll" if kind == "nll" else "dft")
    assert_equal(SupervisedObjective(config=config), rows(dtype), f"supervised/{kind}", dtype)


ESTIMATORS = {
    "0/plain": KLConfig(),
    "0/kl": KLConfig(coefficient=0.05, estimator="k1"),
    "1/kl": KLConfig(coefficient=0.05, estimator="k2"),
    "2/kl": KLConfig(coefficient=0.05, estimator="k3"),
    "3/kl": KLConfig(coefficient=0.05, estimator="k1", times_ratio=True),
}


@DTYPES
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", ["dapo", "cispo"])
def test_policy_loss_is_that_of_open_instruct(name: str, estimator: str, dtype: torch.dtype) -> None:
    objective = PolicyObjective(config=of_preset(name, ESTIMATORS[estimator]))
    assert_equal(objective, rows(dtype), f"open_instruct/{name}/{estimator}", dtype)


CORRECTIONS = {
    "clamp": CorrectionConfig(clamp_max=2.0, max_log_ratio=10.0),
    "both": CorrectionConfig(clamp_max=1.3, mask_min=0.5, mask_max=1.6, max_log_ratio=10.0),
    "sequence_mean": CorrectionConfig(
        level="sequence_mean", clamp_min=0.9, mask_min=0.7, mask_max=1.2, max_log_ratio=10.0
    ),
}


@DTYPES
@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrections_are_those_of_open_instruct(name: str, dtype: torch.dtype) -> None:
    config = replace(of_preset("dapo", PENALTIES["kl"]), correction=CORRECTIONS[name])
    assert_equal(PolicyObjective(config=config), rows(dtype), f"open_instruct/rho/{name}", dtype)


def test_every_reference_is_used() -> None:
    used = {f"policy/{name}/{penalty}" for name in PRESETS for penalty in PENALTIES} - {
        "policy/rloo/kl",
        "policy/rloo/kl_times_ratio",
    }
    used |= {f"policy/{name}" for name in SHAPES} | set(PAIRS)
    used |= {f"advantage/{kind}/{name}" for kind in ("rewards", "rewards_nan") for name in SCALES}
    used |= {f"reward/{centring}/{margin}" for centring in (None, 0.01) for margin in (False, True)}
    used |= {"supervised/nll", "supervised/dft"} | {f"open_instruct/rho/{name}" for name in CORRECTIONS}
    used |= {f"open_instruct/{name}/{estimator}" for name in ("dapo", "cispo") for estimator in ESTIMATORS}
    levels = ("token", "sequence")
    bounds = ("None/2.0", "0.7/1.5")
    used |= {
        f"correction/{level}_{kind}/{bound}" for level in levels for kind in ("truncate", "mask") for bound in bounds
    }
    assert used == set(CASES)
