"""The base install: what an extra brings is named, never called a bug."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.test_catalogue import LEAVES
from windlass.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]
MODULES = {"beaker-py": "beaker", "math-verify": "math_verify"}
BARE = "import sys; sys.modules |= dict.fromkeys(%r)\n" % [module for modules in EXTRAS.values() for module in modules]
LINES = {
    "train": (
        ["train", "tiny"],
        ["train", "tiny", "--plan"],
        ["train", "tiny", "--dry-run"],
        ["train", "own.py"],
        ["train", "sft"],
    ),
    "ckpt ls": (["ckpt", "ls", "x"],),
    "ckpt verify": (["ckpt", "verify", "x"],),
    "ckpt export": (["ckpt", "export", "x"],),
    "ckpt import": (["ckpt", "import", "x", "--out", "y"], ["ckpt", "import", "hf:gpt2", "--out", "y"]),
    "ckpt generate": (["ckpt", "generate", "x", "hello"],),
    "ckpt diff": (["ckpt", "diff", "a", "b"],),
    "ckpt compare-loss": (["ckpt", "compare-loss", "a", "b"],),
    "data add": (["data", "add", "s3://bucket/x", "--name", "a"], ["data", "add", "hf:gpt2"]),
    "data ls": (["data", "ls", "--store", "s3://bucket/x"],),
    "data pull": (["data", "pull", "a", "--from", "gs://bucket/x"],),
    "sweep launch": (["sweep", "launch", "sweep.yaml", "--in-process"], ["sweep", "launch", "gp.yaml", "--in-process"]),
    "beaker submit": (["beaker", "submit", "beaker.yaml"],),
    "secret set": (["secret", "set", "X"],),
    "plan": (["plan", "experiment.yaml"],),
}
"""Of every verb that may need an extra the lines that do; of all the others the line without an argument."""

TRAINABLE = "def train(config):\n    pass\n"
SWEEP = "name: s\ncode: .\nsweep: {trainable: 'own:train', space: {x: {uniform: [0, 1]}}, metric: loss, mode: min, samples: 1%s}\n"


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = BARE + "from windlass.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BEAKER_TOKEN", "none")
    (tmp_path / "own.py").write_text(TRAINABLE)
    (tmp_path / "sweep.yaml").write_text(SWEEP % "")
    (tmp_path / "gp.yaml").write_text(SWEEP % ", searcher: gp")
    (tmp_path / "beaker.yaml").write_text("version: v2\ntasks: []\n")
    (tmp_path / "experiment.yaml").write_text("name: x\ntasks: {main: {run: 'true'}}\n")
    return tmp_path


@pytest.mark.system
@pytest.mark.parametrize("name", [name for name, _ in LEAVES])
def test_no_verb_takes_a_missing_extra_for_a_bug(name: str, folder: Path) -> None:
    for line in LINES.get(name, (name.split(),)):
        done = call(folder, *line)
        assert "internal error" not in done.stderr, done.stderr
        assert done.returncode != 70
        assert "Traceback" not in done.stderr


def test_training_without_torch_names_the_extra(folder: Path) -> None:
    done = call(folder, "train", "tiny")
    assert done.returncode == 8
    assert done.stderr.startswith("error: this command needs torch, which is not installed       [extra-missing]\n")
    assert "hint: pip install 'windlass[train]'\n" in done.stderr


def test_python_names_the_extra(folder: Path) -> None:
    program = BARE + "from windlass.train import Trainer"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr.endswith("hint: pip install 'windlass[train]'\n")


def test_a_package_that_user_code_imports_is_no_extra(folder: Path) -> None:
    (folder / "own.py").write_text("import torch\n")
    done = call(folder, "train", "own.py")
    assert "windlass[" not in done.stderr
    assert "internal error" not in done.stderr


def test_the_table_of_extras_is_that_of_the_project() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    del declared["all"]
    found = {
        extra: tuple(
            MODULES.get(name, name)
            for each in requirements
            if (name := re.split(r"[\[><=]", each)[0]) != "windlass"  # an extra may include another
        )
        for extra, requirements in declared.items()
    }
    assert found == EXTRAS
