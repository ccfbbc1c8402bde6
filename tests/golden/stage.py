"""Where golden outputs are made: a repository with all experiments, a home with two sites, windlass in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.golden.experiments import EXAMPLES, EXPERIMENTS, FILES
from tests.golden.normal import Normaliser
from tests.plan.sample_beaker import PLACE
from tests.plan.sample_site import PROFILE
from windlass.cli import main

__all__ = ["ROOT", "Stage", "compact", "opened", "to_yaml"]

ROOT = Path(__file__).resolve().parents[2]
_DATE = "2026-01-02T03:04:05+00:00"
_STRANGERS = ("BEAKER_", "GIT_", "SLURM_", "WANDB_", "WINDLASS_", "XDG_", "_WINDLASS")
"""Beginnings of variables that would change an output."""


@dataclass(frozen=True)
class Stage:
    """A temporary folder with `code` (a repository of one commit, the current folder) and `home`."""

    root: Path

    @property
    def normal(self) -> Normaliser:
        return Normaliser(self.root, ROOT)

    def call(self, *words: str) -> tuple[int, str, str]:
        """One command line: exit code, standard output, standard error."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        return code, out.getvalue(), err.getvalue()

    def output(self, *words: str) -> str:
        """Standard output of a command line that must succeed."""
        code, out, err = self.call(*words)
        if code != 0:
            raise AssertionError(f"windlass {' '.join(words)}: exit code {code}\n{out}{err}")
        return out

    def data(self, *words: str) -> Any:
        """The JSON that a command line prints."""
        return json.loads(self.output(*words))


@contextlib.contextmanager
def opened(root: Path) -> Iterator[Stage]:
    """A stage in an empty folder; environment and current folder are put back afterwards."""
    root = root.resolve()
    code, home = root / "code", root / "home"
    code.mkdir()
    (home / "sites").mkdir(parents=True)
    for name, site in {"lab": _lab(root), "berth": _berth(root)}.items():
        (home / "sites" / f"{name}.yaml").write_text(yaml.safe_dump(site, sort_keys=False))
    for name in EXAMPLES:
        shutil.copytree(ROOT / "examples" / name, code / name, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    for name, text in {**FILES, **{f"{name}.yaml": text for name, text in EXPERIMENTS.items()}}.items():
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text(text)
    before, folder = dict(os.environ), Path.cwd()
    kept = {key: value for key, value in before.items() if not key.startswith(_STRANGERS) and key != "HOME"}
    try:
        _set_environment({**kept, **_variables(root)})
        os.chdir(code)
        for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "all"]):
            subprocess.run(["git", *words], check=True)
        yield Stage(root)
    finally:
        os.chdir(folder)
        _set_environment(before)


def _variables(root: Path) -> dict[str, str]:
    person = {"NAME": "Someone", "EMAIL": "someone@example.org", "DATE": _DATE}
    git = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in person.items()}
    ours = {
        "HOME": str(root),
        "WINDLASS_HOME": str(root / "home"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "WINDLASS_GPUS": "0,1",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TZ": "UTC",
    }
    return {**git, "GIT_CONFIG_NOSYSTEM": "1", **ours}


def _set_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _lab(root: Path) -> dict[str, Any]:
    """The planner's sample site, whose nodes see the stage."""
    site = yaml.safe_load(PROFILE)
    assert isinstance(site, dict)
    brought = {"paths": {"/weka/b": "/data"}, "clusters": {"ai2/titan": "big"}}
    return {**site, "fs": {"shared": str(root), "node_local": "/local"}, "brought": brought}


def _berth(root: Path) -> dict[str, Any]:
    """The planner's sample of a Beaker site, whose storage is the stage."""
    mounts = [{"path": str(root), "weka": "main"}, *PLACE["beaker"]["mounts"][1:]]
    return {**PLACE, "name": "berth", "fs": {"shared": str(root)}, "beaker": {**PLACE["beaker"], "mounts": mounts}}


def compact(value: Any) -> Any:
    """The value without what is empty in it: "", 0, false, null, [] and {}; a reader sees what a case sets."""
    if isinstance(value, Mapping):
        parts = {key: compact(part) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part}
    if isinstance(value, list):
        return [compact(part) for part in value]
    return value


def to_yaml(data: Any) -> str:
    """YAML with the innermost lists and mappings on one line, and long text as it is."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120, default_flow_style=None, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # the same value twice is written twice
        return True

    def represent_text(self, text: str) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)
