"""A copy of an example as a user has it: a repository of its own, with one commit."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["EXAMPLES", "commit_all", "copy_example"]

EXAMPLES = Path(__file__).parents[2] / "examples"
_IGNORED = shutil.ignore_patterns("__pycache__", ".venv")


def copy_example(name: str, target: Path) -> Path:
    """Copy an example to `target` and commit it there."""
    shutil.copytree(EXAMPLES / name, target, ignore=_IGNORED)
    commit_all(target)
    return target


def commit_all(folder: Path) -> None:
    """Make a repository of a folder, everything in one commit, whatever the user's own git settings say."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "example"]):
        subprocess.run(["git", *words], cwd=folder, env=env, check=True)
