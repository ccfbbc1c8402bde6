"""Recipes of environments at sites: what decides the key, what does not, and what the driver check says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from windlass.core.errors import PreconditionError
from windlass.pin.environment.driver import check_driver, look_at_driver
from windlass.pin.environment.locked import locked_packages, wants_architecture
from windlass.pin.environment.pinned import EnvironmentPin, LocalPackage
from windlass.pin.environment.recipe import ProjectFiles, make_recipe
from windlass.sites.profile import Override, Partition, Patch, SiteEnvironment
from windlass.supervise.builds.recipe import EnvironmentRecipe

LOCK = """
version = 1

[[package]]
name = "torch"
version = "2.9.1"
dependencies = [
    { name = "nvidia-cuda-runtime", marker = "platform_machine == 'x86_64' and sys_platform == 'linux'" },
    { name = "sympy" },
]

[[package]]
name = "nvidia-cuda-runtime"
version = "13.0.48"

[[package]]
name = "sympy"
version = "1.14.0"
"""
PIN = EnvironmentPin(
    kind="uv", lock_file="uv.lock", lock_sha256="a" * 64, python_version="3.12.4", extras=("train",), key="local"
)
FILES = ProjectFiles(lock=LOCK, settings="{}", folder=PurePosixPath("/shared/runs/r/code"), tree="t" * 40)
SITE = SiteEnvironment(
    modules=("cuda/12.6",),
    overrides=(Override(package="torch", index="cu126", why="old driver", seen="2026-11-01"),),
    patches=(Patch(name="arch-flags", code="import os\n"),),
    imports=("torch",),
)


def key(
    pin: EnvironmentPin = PIN, files: ProjectFiles = FILES, site: SiteEnvironment = SITE, arch: str = "aarch64"
) -> str:
    return make_recipe(pin, files, site, arch).key


def test_a_recipe_travels_as_json() -> None:
    recipe = make_recipe(PIN, FILES, SITE, "aarch64")
    assert EnvironmentRecipe.from_json(recipe.to_json(), "x") == recipe
    assert recipe.project == "/shared/runs/r/code"
    assert recipe.patches[0].module == "windlass_patch_arch_flags"
    with pytest.raises(PreconditionError, match="x has schema 9, but this builder reads 1"):
        EnvironmentRecipe.from_json(recipe.to_json().replace(b'"schema": 1', b'"schema": 9'), "x")
    with pytest.raises(PreconditionError, match="x is not a valid recipe"):
        EnvironmentRecipe.from_json(b'{"schema": 1}', "x")


@pytest.mark.parametrize(
    "change",
    [
        {"pin": replace(PIN, lock_sha256="b" * 64)},
        {"pin": replace(PIN, extras=())},
        {"pin": replace(PIN, groups=("dev",))},
        {"pin": replace(PIN, unhashed=("x==1",))},
        {"pin": replace(PIN, python_version="3.12.5")},
        {"files": replace(FILES, settings='{"uv": 1}')},
        {"arch": "x86_64"},
        {"site": replace(SITE, modules=("cuda/12.7",))},
        {"site": replace(SITE, overrides=())},
        {"site": replace(SITE, overrides=(replace(SITE.overrides[0], index="cu124"),))},
        {"site": replace(SITE, overrides=(replace(SITE.overrides[0], build_vars={"CC": "gcc-12"}),))},
        {"site": replace(SITE, patches=(replace(SITE.patches[0], code="import sys\n"),))},
        {"site": replace(SITE, imports=())},
    ],
)
def test_what_makes_another_environment(change: dict[str, Any]) -> None:
    assert key(**change) != key()


@pytest.mark.parametrize(
    "change",
    [
        {"pin": replace(PIN, interpreter="/elsewhere/python", key="other", platform="linux-x86_64")},
        {"files": replace(FILES, folder=PurePosixPath("/shared/runs/s/code"), tree="u" * 40)},
        {"site": replace(SITE, uv="/opt/uv", module_init="/etc/init.sh", build="compute", python="python3.9")},
        {"site": replace(SITE, overrides=(replace(SITE.overrides[0], why="other", seen="2026-11-02"),))},
        {"site": replace(SITE, overrides=(*SITE.overrides, Override(package="flash-attn", source_build=True)))},
        {"site": replace(SITE, stage="node-local")},
    ],
)
def test_what_makes_none(change: dict[str, Any]) -> None:
    assert key(**change) == key()


def test_the_facts_say_why_and_name_no_place() -> None:
    facts = make_recipe(PIN, FILES, SITE, "aarch64").facts()
    assert facts["overrides"] == (
        {
            "package": "torch",
            "index": "cu126",
            "when_import_fails": "",
            "is_source_build": False,
            "build_vars": {},
            "why": "old driver",
            "seen": "2026-11-01",
        },
    )
    assert "/shared/runs" not in str(facts)


def test_packages_that_must_be_built_get_an_overlay_per_tree() -> None:
    pin = replace(PIN, local_packages=(LocalPackage(name="mine", path=".", must_be_installed=True),))
    first = make_recipe(pin, FILES, SITE, "aarch64")
    second = make_recipe(pin, replace(FILES, tree="u" * 40), SITE, "aarch64")
    assert first.not_installed == ("mine",)
    assert [each.folder for each in first.overlay] == ["/shared/runs/r/code"]
    assert (first.key, first.overlay_key != second.overlay_key) == (second.key, True)
    assert make_recipe(PIN, FILES, SITE, "aarch64").overlay_key == ""


@pytest.mark.parametrize("index", ["https://example.org/simple", "/project/wheels", "cu126", "cpu", ""])
def test_where_an_override_may_come_from(index: str) -> None:
    site = replace(SITE, overrides=(Override(package="torch", index=index),))
    assert make_recipe(PIN, FILES, site, "aarch64").overrides[0].index == index


def test_another_index_is_refused() -> None:
    with pytest.raises(PreconditionError, match="has the index `wheels/here`, which is not a package index") as caught:
        make_recipe(PIN, FILES, replace(SITE, overrides=(Override(package="torch", index="wheels/here"),)), "aarch64")
    assert caught.value.code == "invalid-value"


def test_a_password_in_an_index_is_refused_and_not_shown() -> None:
    override = Override(package="torch", index="https://me:s3cret@example.org/simple")
    with pytest.raises(PreconditionError, match="has a user name or password in its index") as caught:
        make_recipe(PIN, FILES, replace(SITE, overrides=(override,)), "aarch64")
    assert "s3cret" not in caught.value.render()


# --- the driver -------------------------------------------------------------------------------------------------------

OLD = Partition(arch="x86_64", driver="565.57", cuda="12.7")


def look(lock: str = LOCK, name: str = "uv.lock", partition: Partition = OLD, **more: Any) -> Any:
    overrides = more.pop("overrides", ())
    arch = more.pop("arch", "x86_64")
    packages = locked_packages(lock, name)
    return look_at_driver(packages, overrides, partition, partition_name="gpu", arch=arch, today="2026-11-21", **more)


def test_a_wheel_newer_than_the_driver_is_refused_with_the_override() -> None:
    finding = look()
    assert finding.level == "error"
    with pytest.raises(PreconditionError) as caught:
        check_driver(finding, "isambard")
    assert caught.value.code == "driver-too-old"
    assert caught.value.message == (
        "torch 2.9.1 needs CUDA 13.0, but the driver 565.57 of partition `gpu` supports at most CUDA 12.7"
    )
    assert caught.value.hint == (
        "add to the profile of site `isambard`:\nenv:\n  overrides:\n  - package: torch==2.9.1\n    index: cu126\n"
        '    why: driver 565.57 runs CUDA 12.7\n    seen: "2026-11-21"'
    )


@pytest.mark.parametrize(
    ("version", "level"), [("2.9.1+cu130", "error"), ("2.9.1+cu128", "warning"), ("2.9.1+cu126", ""), ("2.9.1+cpu", "")]
)
def test_the_local_version_names_the_cuda(version: str, level: str) -> None:
    finding = look(f"torch=={version} \\\n    --hash=sha256:00\n", "requirements.txt")
    assert (finding.level if finding else "") == level


def test_a_newer_minor_version_is_only_told() -> None:
    finding = look("torch==2.9.1+cu128 --hash=sha256:00\n", "requirements.txt")
    check_driver(finding, "isambard")
    assert "needs CUDA 12.8" in finding.message


@pytest.mark.parametrize(
    "override",
    [
        Override(package="torch==2.9.1", index="cu126"),
        Override(package="torch", index="https://example.org/whl/cu126"),
        Override(package="Torch==2.9.1+cu126"),
        Override(package="torch", index="/project/wheels"),
    ],
)
def test_an_override_answers_it(override: Override) -> None:
    assert look(overrides=[override]) is None


def test_an_override_that_is_newer_too_is_refused() -> None:
    assert look(overrides=[Override(package="torch", index="cu130")]).level == "error"


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert look(partition=Partition()) is None
    assert look(arch="aarch64") is None  # its wheel brings no CUDA
    assert look("[[package]]\nname = 'numpy'\nversion = '2.2'\n") is None


def test_pylock_is_read_too() -> None:
    text = '[[packages]]\nname = "torch"\nversion = "2.9.1+cu130"\n'
    assert look(text, "pylock.toml").level == "error"


@pytest.mark.parametrize(
    ("marker", "is_wanted"),
    [
        ("", True),
        ("platform_machine == 'x86_64' and sys_platform == 'linux'", True),
        ("platform_machine == 'aarch64'", False),
        ("platform_machine != 'x86_64'", False),
        ("sys_platform == 'win32'", False),
        ("platform_machine == 'aarch64' or platform_machine == 'x86_64'", True),
    ],
)
def test_markers_of_architectures(marker: str, is_wanted: bool) -> None:
    assert wants_architecture(marker, "x86_64") is is_wanted
