"""A pushed repository as launches find one, and a Beaker of one's own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Pushed:
    """A repository whose remote is called GitHub's and lies in `bare`."""

    folder: Path
    bare: Path

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            path = self.folder / name.replace("__", ".")
            path.write_text(text)
        self.git("add", ".")
        self.git("commit", "--allow-empty", "-qm", "more")
        return self.git("rev-parse", "HEAD")

    def push(self) -> None:
        self.git("push", "-q", "-u", "origin", "main")

    @property
    def redirect(self) -> dict[str, str]:
        """Variables by which git anywhere finds the remote here instead of at GitHub."""
        return {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.file://{self.bare}.insteadOf",
            "GIT_CONFIG_VALUE_0": "https://github.com/lab/project",
        }


def make_pushed(base: Path) -> Pushed:
    bare, folder = base / "bare.git", base / "project"
    for words in (["--bare", str(bare)], [str(folder)]):
        subprocess.run(["git", "init", "-q", "-b", "main", *words], check=True)
    made = Pushed(folder=folder, bare=bare)
    made.git("config", "user.email", "someone@example.org")
    made.git("config", "user.name", "Someone")
    made.git("config", f"url.file://{bare}.insteadOf", "https://github.com/lab/project")
    made.git("remote", "add", "origin", "https://github.com/lab/project")
    made.commit(README__md="a project\n")
    made.push()
    return made


@pytest.fixture
def pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pushed:
    made = make_pushed(tmp_path)
    monkeypatch.chdir(made.folder)
    return made


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Pushed:
    """A pushed repository that tests only read."""
    return make_pushed(tmp_path_factory.mktemp("standing"))


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESULTS_DIR", "GANTRY_RUNTIME_DIR", "GANTRY_SLACK_WEBHOOK_URL", "GITHUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
