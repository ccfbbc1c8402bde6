"""Ray Tune's own examples, read from the installed package and ported by their import lines alone.

Nothing of them is kept here: they are copied to a temporary folder when a test runs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["NEEDS_MORE", "PORTED", "examples_folder", "port", "run_ported"]

PORTED: dict[str, tuple[str, ...]] = {
    "tune_basic_example": (),
    "async_hyperband_example": (),
    "hyperband_example": (),
    "hyperband_function_example": (),
    "custom_func_checkpointing": (),
    "custom_checkpointing_with_callback": (),
    "logging_example": (),
    "pbt_example": (),
    "pbt_function": (),
    "pb2_example": (),
    "optuna_example": (),
    "optuna_define_by_run_example": (),
    "optuna_multiobjective_example": (),
    "bohb_example": (),
}
"""Examples that need nothing which is not in windlass's own extras."""

NEEDS_MORE = {
    "ax_example": "needs Ax",
    "bayesopt_example": "needs bayesian-optimization",
    "cifar10_pytorch": "downloads its data",
    "hyperopt_conditional_search_space_example": "needs hyperopt",
    "lightgbm_example": "needs LightGBM",
    "mlflow_example": "needs MLflow",
    "mlflow_ptl": "downloads its data",
    "mnist_ptl_mini": "downloads its data",
    "mnist_pytorch": "downloads its data",
    "mnist_pytorch_trainable": "downloads its data",
    "nevergrad_example": "needs Nevergrad",
    "pb2_ppo_example": "needs RLlib",
    "pbt_convnet_example": "downloads its data",
    "pbt_convnet_function_example": "downloads its data",
    "pbt_memnn_example": "downloads its data",
    "pbt_ppo_example": "needs RLlib",
    "pbt_tune_cifar10_with_keras": "downloads its data",
    "tf_mnist_example": "downloads its data",
    "tune_mnist_keras": "downloads its data",
    "xgboost_dynamic_resources_example": "needs XGBoost",
    "xgboost_example": "needs XGBoost",
}
"""Those that cannot run here, under Ray or windlass, and why."""

_IMPORTS = (
    (re.compile(r"^(\s*)from ray\.tune\.(?:examples|utils)\.(\w+) import", re.MULTILINE), r"\1from \2 import"),
    (re.compile(r"^(\s*)from ray\.tune", re.MULTILINE), r"\1from windlass.tune"),
    (re.compile(r"^(\s*)from ray import", re.MULTILINE), r"\1from windlass import"),
    (re.compile(r"^(\s*)import ray$", re.MULTILINE), r"\1from windlass.tune import ray"),
)
_FAST_SLEEP = (
    "import time\nreal = time.sleep\ntime.sleep = lambda seconds: real(seconds / 20 if seconds == 0.1 else seconds)\n"
)


def examples_folder() -> Path:
    """Where Ray keeps its examples."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)), "tune", "examples")


def port(name: str, folder: Path) -> Path:
    """Copy an example with its import lines changed, and what it imports of Ray's examples beside it."""
    source = examples_folder()
    text = (source / f"{name}.py").read_text()
    for pattern, _ in _IMPORTS[:1]:
        for match in pattern.finditer(text):
            other = match.group(2)
            home = source if (source / f"{other}.py").exists() else source.parent / "utils"
            (folder / f"{other}.py").write_text(_ported((home / f"{other}.py").read_text()))
    path = folder / f"{name}.py"
    path.write_text(_ported(text))
    return path


def _ported(text: str) -> str:
    for pattern, replacement in _IMPORTS:
        text = pattern.sub(replacement, text)
    return text


def run_ported(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example under windlass; its waits of a tenth of a second, which stand for work, are made shorter."""
    path = port(name, folder)
    (folder / "sitecustomize.py").write_text(_FAST_SLEEP)
    env = {**os.environ, "PYTHONPATH": str(folder), "WINDLASS_HOME": str(folder / "home")}
    command = [sys.executable, str(path), "--smoke-test", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
