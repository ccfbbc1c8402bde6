"""requirements/*.txt: complete, hashed, anonymous, in step with pyproject.toml, and small."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from scripts.check_committed import check
from scripts.tree import ROOT

FOLDER = ROOT / "requirements"
HASHED = ("base", "build", "dev", "docs", "bench", "ray-2.40")
PIN = re.compile(r"^([a-z0-9-]+)==([^ ;]+)")
MAX_DISTRIBUTIONS = 16


def pins(name: str) -> dict[str, str]:
    """Distribution -> version of a lock."""
    found = (PIN.match(line) for line in (FOLDER / f"{name}.txt").read_text().splitlines())
    return {match[1]: match[2] for match in found if match}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_base_install_is_small() -> None:
    assert len(pins("base")) + 1 <= MAX_DISTRIBUTIONS


@pytest.mark.parametrize("name", HASHED)
def test_every_pin_has_a_hash(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    blocks = re.split(r"\n(?=[a-z0-9])", text[text.index("==") - 40 :])
    pinned = [block for block in blocks if PIN.match(block)]
    assert len(pinned) >= len(pins(name)) - 1
    assert [block.splitlines()[0] for block in pinned if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_no_lock_names_where_packages_come_from(path: Path) -> None:
    assert check(path) == []


@pytest.mark.parametrize(("name", "groups"), [("base", []), ("dev", ["dev"]), ("docs", ["docs"]), ("bench", ["bench"])])
def test_locks_satisfy_the_project(name: str, groups: list[str]) -> None:
    locked, wanted = pins(name), [] if name == "docs" else list(project()["project"]["dependencies"])
    for group in groups:
        wanted += project()["dependency-groups"][group]
    for text in wanted:
        requirement = Requirement(text)
        assert normal(requirement.name) in locked, f"{text} is not in {name}.txt: run `make lock`"
        assert requirement.specifier.contains(locked[normal(requirement.name)]), (
            f"{text} is old in {name}.txt: run `make lock`"
        )


@pytest.mark.parametrize("name", ["dev", "bench"])
def test_larger_locks_agree_with_the_base(name: str) -> None:
    assert pins("base").items() <= pins(name).items()


def test_the_site_is_built_in_the_environment_of_the_tests() -> None:
    """What both locks name has one version: `make` installs docs.txt into the environment of dev.txt."""
    dev, docs = pins("dev"), pins("docs")
    assert {name: (dev[name], docs[name]) for name in dev.keys() & docs.keys() if dev[name] != docs[name]} == {}


def test_torch_is_the_release_the_extra_allows() -> None:
    lines = [line for line in (FOLDER / "torch.txt").read_text().splitlines() if line and not line.startswith("#")]
    pin = Requirement(lines[0])
    extra = next(
        Requirement(text) for text in project()["project"]["optional-dependencies"]["train"] if text.startswith("torch")
    )
    (version,) = [specifier.version for specifier in pin.specifier]
    assert lines == [f"torch=={version}"]
    assert extra.specifier.contains(version)
