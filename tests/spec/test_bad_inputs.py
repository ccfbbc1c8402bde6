from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.spec.bad_inputs import BAD_INPUTS
from windlass.core.errors import SpecError
from windlass.spec.load import load_experiment


def test_bad_input_is_refused_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for bad in BAD_INPUTS:
        Path("exp.yaml").write_text(bad.text, encoding="utf-8")
        with pytest.raises(SpecError) as caught:
            load_experiment(Path("exp.yaml"), bad.overrides)
        assert caught.value.render() + "\n" == bad.said, bad.name
        assert caught.value.exit_code == 3, bad.name
        assert os.listdir() == ["exp.yaml"], bad.name


def test_every_message_has_a_code_a_place_and_mostly_a_hint() -> None:
    without_hint = [bad.name for bad in BAD_INPUTS if "hint: " not in bad.said]
    assert set(without_hint) <= {
        "text for a number",
        "fraction for a whole number",
        "boolean for a number",
        "tasks as a list",
        "GPUs as a boolean",
    }


def test_names_are_unique() -> None:
    assert len({bad.name for bad in BAD_INPUTS}) == len(BAD_INPUTS) >= 100
