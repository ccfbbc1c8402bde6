"""The tune examples: each runs as its README says, and finds what it promises."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.example_copy import EXAMPLES

pytestmark = pytest.mark.system


@pytest.fixture
def run(need: Callable[[str], None], home: Path, tmp_path: Path) -> Callable[..., str]:
    """A function that runs an example's script, and returns what it printed."""

    def start(name: str, *, needs: str = "sklearn") -> str:
        need(needs)
        command = [sys.executable, "search.py", str(tmp_path / "sweeps")]
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        folder = EXAMPLES / name
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return start


def test_asha_stops_most_trials_early_and_finds_a_good_classifier(run: Callable[..., str]) -> None:
    said = run("tune-asha")
    passes, full = map(int, re.search(r"(\d+) passes instead of (\d+)", said).groups())  # type: ignore[union-attr]
    assert passes < full / 2, said
    assert float(re.search(r"best: (\S+)", said).group(1)) > 0.9, said  # type: ignore[union-attr]


def test_pbt_goes_on_from_clones_and_draws_the_schedule(run: Callable[..., str]) -> None:
    said = run("tune-pbt")
    assert float(re.search(r"best: (\S+)", said).group(1)) > 0.9, said  # type: ignore[union-attr]
    picture = Path(re.search(r"schedule in (\S+)", said).group(1))  # type: ignore[union-attr]
    assert picture.read_text().lstrip().startswith("<?xml")
    assert any(re.match(r"pass +\d+: ", line) for line in said.splitlines()), said


def test_bohb_spends_less_than_full_trials(run: Callable[..., str]) -> None:
    said = run("tune-bohb")
    steps, full = map(int, re.search(r"(\d+) steps instead of (\d+)", said).groups())  # type: ignore[union-attr]
    assert steps < full, said
    assert float(re.search(r"error (\S+)", said).group(1)) < 62, said  # type: ignore[union-attr]


def test_two_goals_end_with_a_front(run: Callable[..., str]) -> None:
    points = [(float(a), int(n)) for a, n in re.findall(r"([\d.]+) with +(\d+) nodes", run("tune-pareto"))]
    assert len(points) >= 3
    assert points == sorted(points, reverse=True), "the more accurate, the larger"


def test_the_ported_script_runs(run: Callable[..., str]) -> None:
    said = run("tune-from-ray", needs="ray")
    assert "20 trials ended, 0 failed for good" in said
    assert "best: {'lr':" in said


def test_the_ported_script_is_rays_but_for_its_imports(need: Callable[[str], None]) -> None:
    need("ray")
    import ray.tune

    tree = ast.parse((EXAMPLES / "tune-from-ray" / "search.py").read_text())
    names = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tune"
    }
    assert {"Tuner", "TuneConfig", "report", "get_checkpoint", "grid_search"} <= names
    assert [name for name in sorted(names) if not hasattr(ray.tune, name)] == []
