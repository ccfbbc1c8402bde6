"""Plain search loads no library: start-up and memory are promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numpy", "pandas", "optuna", "ray", "scipy", "matplotlib", "sklearn", "torch", "fsspec", "cloudpickle", "rich")
IMPORT = "from windlass import tune; tune.Tuner, tune.TuneConfig, tune.RunConfig, tune.uniform, tune.report"
FIT = """
import sys
from windlass import tune
from tests.tune.sweeps import bowl, here, quiet
config = here(metric="loss", mode="min", num_samples=2)
tune.Tuner(bowl, param_space={"x": tune.uniform(0, 1)}, tune_config=config, run_config=quiet(sys.argv[1])).fit()
"""


@pytest.mark.parametrize(("code", "most"), [(IMPORT, 160), (FIT, 260)])
def test_plain_search_loads_no_library(code: str, most: int, tmp_path: Path) -> None:
    tell = "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    env = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", code + tell, str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert [name for name in HEAVY if name in loaded] == []
    assert len(loaded) <= most, len(loaded)
