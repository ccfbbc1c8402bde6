"""Settings of objectives: what is refused, and that they need no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from windlass.core.errors import UsageError
from windlass.post.objectives.config import (
    CorrectionConfig,
    PolicyConfig,
    PreferenceConfig,
    PreferenceLoss,
)
from windlass.post.objectives.policy import PolicyObjective
from windlass.post.objectives.presets import PRESETS, preset

REFUSED: dict[str, PolicyConfig | CorrectionConfig | PreferenceLoss | PreferenceConfig] = {
    "denominator: constant needs `length`": PolicyConfig(denominator="constant"),
    "length has no effect with `denominator: token`": PolicyConfig(length=5),
    "ratio_max has no effect with `clip: cispo`": PolicyConfig(clip="cispo", ratio_max=2.0),
    "clip: cispo weighs tokens, but `ratio` is sequence": PolicyConfig(clip="cispo", ratio="sequence"),
    "this correction has no bound": CorrectionConfig(),
    "label_smoothing has no effect on ipo": PreferenceLoss(kind="ipo", label_smoothing=0.1),
    "`losses` is empty": PreferenceConfig(losses=()),
    "`losses` has dpo twice": PreferenceConfig(losses=(PreferenceLoss(kind="dpo"), PreferenceLoss(kind="dpo"))),
}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_contradict_each_other_are_refused(message: str) -> None:
    assert [problem[1] for problem in REFUSED[message].check()] == [message]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_state_their_source_and_pass_their_checks(name: str) -> None:
    own = preset(name)
    assert own.source
    problems = [problem[1] for problem in own.policy.check()]
    assert problems == (["denominator: constant needs `length`"] if name == "dr_grpo" else [])


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        preset("gpro")
    assert str(caught.value) == "unknown preset `gpro`"
    assert caught.value.hint == f"choose one of {', '.join(PRESETS)}"


def test_a_constant_denominator_needs_its_length() -> None:
    with pytest.raises(UsageError, match="denominator: constant needs `length`"):
        PolicyObjective(config=preset("dr_grpo").policy)


def test_settings_and_presets_need_no_torch() -> None:
    code = "import sys, windlass.post.objectives.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
