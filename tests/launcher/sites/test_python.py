"""`env.python` at a site over ssh is an interpreter of that site, asked there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from windlass.backends.site_shell import LocalShell
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.launcher.prepare import pin_environment_of
from windlass.launcher.sites import python
from windlass.launcher.sites.python import pin_site_python
from windlass.pin.environment.pinning import pin_environment
from windlass.plan.site import Site
from windlass.sites.profile import Profile
from windlass.spec import Experiment

FAR = Profile(name="far", ssh="me@far")


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The login's home there."""
    monkeypatch.setattr(python, "shell_for", lambda profile: LocalShell())
    folder = tmp_path / "home-there"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def venv(site: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(site / "venv")], check=True)
    return site / "venv"


@pytest.mark.parametrize("word", ["venv", "venv/bin/python3"])
@pytest.mark.parametrize("is_short", [True, False], ids=["from its home", "whole path"])
def test_it_is_asked_there(venv: Path, word: str, is_short: bool) -> None:
    (lib,) = (venv / "lib").iterdir()
    info = lib / "site-packages" / "Own_Thing-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Own_Thing\nVersion: 1.5\n")
    pin = pin_site_python(f"~/{word}" if is_short else str(venv.parent / word), FAR)
    assert pin.packages == ("own-thing==1.5",)
    assert pin.interpreter == str(venv / "bin" / ("python3" if word.endswith("3") else "python"))
    assert pin == pin_environment("python", Path("/"), python=pin.interpreter)


def test_a_plan_for_the_site_asks_there_and_one_for_here_does_not(venv: Path) -> None:
    made = Experiment(name="t", run="true")
    asked = replace(made, env=replace(made.env, python="~/venv"))
    assert pin_environment_of(asked, Path("/nowhere"), Site.of(FAR)).interpreter == str(venv / "bin" / "python")
    here = replace(made, env=replace(made.env, python="x"))
    with pytest.raises(NotFoundError, match="no such Python: /nowhere/x"):
        pin_environment_of(here, Path("/nowhere"), Site.of(Profile(name="near")))


def test_what_is_no_python_there_is_told(site: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no such Python at .*: ~/gone") as caught:
        pin_site_python("~/gone", FAR)
    assert "not on this machine" in caught.value.hint
    (site / "python").write_text("#!/bin/sh\necho no >&2; exit 3\n")
    (site / "python").chmod(0o755)
    with pytest.raises(PreconditionError, match=r"is not a working Python >= 3.9 \(code 3\): no"):
        pin_site_python(str(site / "python"), FAR)
    with pytest.raises(UsageError, match="each run has its own code folder"):
        pin_site_python(".venv", FAR)
