"""One mistake is told once: what follows from it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import SpecError
from windlass.spec.load import load_experiment


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("", ["no-tasks"]),
        ("nmae: x\nrun: f\n", ["unknown-key"]),
        ("name: x\ntaks: {t: {run: f}}\n", ["unknown-key"]),
        ("name: x\nrnu: f\n", ["unknown-key"]),
        ("name: x\ntasks: {t: {rnu: f}}\n", ["unknown-key"]),
        ("name: x\ntasks: {t: {color: red}}\n", ["unknown-key", "missing-key"]),
    ],
)
def test_a_misspelt_key_is_not_missing_as_well(text: str, codes: list[str], tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_experiment(path)
    assert sorted(problem.code for problem in caught.value.problems) == sorted(codes)
