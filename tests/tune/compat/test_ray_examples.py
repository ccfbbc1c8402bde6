"""Ray Tune's own examples run under windlass with nothing but their import lines changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tune.compat.ported import NEEDS_MORE, PORTED, examples_folder, run_ported

pytestmark = pytest.mark.system


@pytest.mark.parametrize("name", sorted(PORTED))
def test_an_example_of_ray_runs(name: str, tmp_path: Path, need: Callable[[str], None]) -> None:
    need("ray")
    done = run_ported(name, tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert re.search(r"Best hyperparameters.*\{|Best hyperparameters: ", done.stdout), done.stdout[-2000:]


def test_every_example_of_ray_is_accounted_for(need: Callable[[str], None]) -> None:
    need("ray")
    known = {path.stem for path in examples_folder().glob("*.py")} - {"__init__", "utils"}
    assert known == PORTED.keys() | NEEDS_MORE.keys()
