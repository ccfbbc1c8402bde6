"""Environments built on a site: once, whole or not at all, with its modules, overrides and patches; real uv, no network."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pin.projects import BACKEND, lock, make_project, make_wheel
from windlass.core.errors import PreconditionError
from windlass.core.files import sha256_file
from windlass.core.process import descendants, identify
from windlass.pin.environment.uv_tool import find_uv
from windlass.supervise.archive import ensure_archive
from windlass.supervise.builds.once import beside, find_ready, is_being_built
from windlass.supervise.builds.recipe import EnvironmentRecipe, OverlayPackage, PackageOverride, StartupPatch
from windlass.supervise.builds.staging import stage

pytestmark = pytest.mark.system

VERSION = ".".join(str(each) for each in sys.version_info[:3])
Change = Callable[..., EnvironmentRecipe]


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture(autouse=True)
def _own_world(uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_", "LOADED", "LMOD", "MODULE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(uv_cache))
    monkeypatch.setenv("UV_OFFLINE", "1")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return ensure_archive(tmp_path / "archives")


@pytest.fixture
def recipe(tmp_path: Path) -> EnvironmentRecipe:
    """Of a project that locks `tiny` 2.0."""
    return recipe_of(lock(make_project(tmp_path / "p")))


def recipe_of(project: Path, **more: Any) -> EnvironmentRecipe:
    return EnvironmentRecipe(
        key="k" * 32,
        project=str(project),
        lock_file="uv.lock",
        lock_sha256=sha256_file(project / "uv.lock"),
        python_version=VERSION,
        arch=os.uname().machine,
        uv=find_uv(),
        **more,
    )


def start(archive: Path, recipe: EnvironmentRecipe, envs: Path, *options: str) -> subprocess.Popen[str]:
    path = envs.parent / f"recipe-{os.urandom(4).hex()}.json"
    path.write_bytes(recipe.to_json())
    argv = [sys.executable, "-I", "-S", str(archive), "build", str(path), str(envs), *options]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def build(archive: Path, recipe: EnvironmentRecipe, envs: Path, *options: str) -> dict[str, Any]:
    """The result line, with the exit code in `exit`."""
    process = start(archive, recipe, envs, *options)
    out, err = process.communicate()
    assert out.strip(), err
    return {**json.loads(out.strip().split("\n")[-1]), "exit": process.returncode, "said": err}


def ask(answer: dict[str, Any], code: str) -> str:
    python = Path(answer["environment"]) / "bin/python"
    return subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def counting_uv(folder: Path, command: str, before: str = "") -> tuple[str, Path]:
    """A uv before the real one that notes every use of `command`, and may do something first."""
    notes, script = folder / "uses", folder / "counting-uv"
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = {command} ]; then echo $$ >> {notes}; {before}\nfi\nexec {find_uv()} "$@"\n'
    )
    script.chmod(0o755)
    return str(script), notes


def test_eight_builders_build_once(archive: Path, recipe: EnvironmentRecipe, tmp_path: Path) -> None:
    uv, uses = counting_uv(tmp_path, "sync")
    envs = tmp_path / "envs"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: build(archive, replace(recipe, uv=uv), envs), range(8)))
    assert [each["exit"] for each in answers] == [0] * 8, answers
    assert {each["environment"] for each in answers} == {str(envs / recipe.key)}
    assert sorted(each["is_hit"] for each in answers) == [False] + [True] * 7
    assert len(uses.read_text().split()) == 1
    assert ask(answers[0], "import tiny; print(tiny.VERSION)") == "2.0"
    assert not [name for name in os.listdir(envs) if name.startswith(".")]


def test_the_result_says_what_is_in_it(archive: Path, recipe: EnvironmentRecipe, tmp_path: Path) -> None:
    answer = build(archive, replace(recipe, imports=("tiny", "absent.part")), tmp_path / "envs")
    facts = answer["facts"]
    assert facts["packages"] == ["tiny==2.0"]
    assert facts["python_version"] == facts["python_wanted"] == VERSION
    assert facts["imports"] == {"tiny": "ok", "absent.part": "not installed"}
    assert facts["arch"] == os.uname().machine


def test_it_is_frozen_and_holds_byte_code(archive: Path, recipe: EnvironmentRecipe, tmp_path: Path) -> None:
    place = Path(build(archive, recipe, tmp_path / "envs")["environment"])
    writable = [
        path
        for path in (place, *place.rglob("*"))
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o222
    ]
    assert writable == []
    assert list(place.rglob("tiny.*.pyc"))
    assert all(path.stat().st_nlink == 1 for path in place.rglob("*.py"))


def test_programs_find_their_python_at_the_final_place(archive: Path, tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", dependencies=["tool"])
    make_tool(project)
    answer = build(archive, recipe_of(lock(project)), tmp_path / "envs")
    program = Path(answer["environment"]) / "bin/tool"
    assert "envs/." not in program.read_text()
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == answer["environment"]


def make_tool(project: Path) -> None:
    import zipfile

    wheel = make_wheel(project / "wheels", "tool", module="def main():\n    import sys; print(sys.prefix)\n")
    with zipfile.ZipFile(wheel, "a") as content:
        content.writestr("tool-1.0.dist-info/entry_points.txt", "[console_scripts]\ntool = tool:main\n")


def test_a_killed_builder_leaves_nothing_that_looks_whole(
    archive: Path, recipe: EnvironmentRecipe, tmp_path: Path
) -> None:
    go, envs = tmp_path / "go", tmp_path / "envs"
    uv, uses = counting_uv(tmp_path, "sync", f"while [ ! -e {go} ]; do sleep 0.05; done")
    slow = replace(recipe, uv=uv)
    builder = start(archive, slow, envs)
    wait_for(uses.exists)
    assert is_being_built(envs / recipe.key)
    orphans = descendants(builder.pid)
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    assert find_ready(envs / recipe.key) is None
    halves = [name for name in os.listdir(envs) if name.startswith(".k")]
    assert len(halves) == 1

    go.touch()  # the orphan goes on while the next one works
    answer = build(archive, slow, envs)
    assert (answer["ok"], answer["is_hit"]) == (True, False)
    wait_for(lambda: not any(identify(pid) for pid in orphans))
    assert ask(answer, "import tiny; print(tiny.VERSION)") == "2.0"
    assert build(archive, slow, envs)["is_hit"]
    assert not (envs / halves[0] / ".ready").exists()


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_builder_that_is_told_to_stop_says_so_to_those_who_wait(
    archive: Path, recipe: EnvironmentRecipe, tmp_path: Path
) -> None:
    uv, uses = counting_uv(tmp_path, "sync", "exec sleep 600")
    builder = start(archive, replace(recipe, uv=uv), tmp_path / "envs")
    wait_for(uses.exists)
    builder.terminate()
    out, _ = builder.communicate()
    assert json.loads(out)["message"] == "the build was terminated before it finished"
    failed = json.loads(beside(tmp_path / "envs" / recipe.key, ".failed").read_bytes())
    assert failed["message"] == "the build was terminated before it finished"
    wait_for(lambda: identify(int(uses.read_text())) is None)


def test_a_failed_build_says_why_and_the_next_one_clears_it(
    archive: Path, recipe: EnvironmentRecipe, tmp_path: Path
) -> None:
    wheel = Path(recipe.project) / "wheels/tiny-2.0-py3-none-any.whl"
    whole, envs = wheel.read_bytes(), tmp_path / "envs"
    wheel.unlink()
    answer = build(archive, recipe, envs)
    assert (answer["exit"], answer["code"]) == (8, "build-failed")
    assert "installing the locked packages failed: uv exited with code" in answer["message"]
    assert "tiny-2.0-py3-none-any.whl" in answer["message"]
    assert json.loads(beside(envs / recipe.key, ".failed").read_bytes())["message"] == answer["message"]
    wheel.write_bytes(whole)
    assert build(archive, recipe, envs)["ok"]
    assert not beside(envs / recipe.key, ".failed").exists()


def test_a_broken_interpreter_is_built_again(archive: Path, recipe: EnvironmentRecipe, tmp_path: Path) -> None:
    envs, recipe = tmp_path / "envs", replace(recipe, is_staged=True)
    place = Path(build(archive, recipe, envs)["environment"])
    beside(place, ".tar").write_text("old")
    (place / "bin").chmod(0o755)
    (place / "bin/python").unlink()
    (place / "bin/python").symlink_to("/gone/python")
    answer = build(archive, recipe, envs)
    assert not answer["is_hit"]
    assert ask(answer, "import tiny; print(1)") == "1"
    assert stage(place, tmp_path / "local" / "copy").folder.joinpath("bin/python").exists()


def test_an_environment_without_an_archive_is_not_staged(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=r"none\.tar does not exist") as caught:
        stage(tmp_path / "none", tmp_path / "local" / "copy")
    assert caught.value.code == "env-not-staged"


def test_a_changed_lock_and_a_wrong_machine_are_named(archive: Path, recipe: EnvironmentRecipe, tmp_path: Path) -> None:
    answer = build(archive, replace(recipe, lock_sha256="0" * 64), tmp_path / "envs")
    assert answer["code"] == "input-changed"
    answer = build(archive, replace(recipe, arch="riscv64"), tmp_path / "envs")
    assert answer["code"] == "wrong-architecture"
    assert answer["message"].endswith(f"is {os.uname().machine}, but the environment is for riscv64")


def test_check_keeps_the_recipe_for_a_build_job(archive: Path, recipe: EnvironmentRecipe, tmp_path: Path) -> None:
    envs = tmp_path / "envs"
    answer = build(archive, recipe, envs, "--check")
    assert answer["missing"]
    kept = Path(answer["recipe"])
    assert EnvironmentRecipe.from_json(kept.read_bytes(), "kept") == recipe
    assert find_ready(envs / recipe.key) is None
    assert build(archive, recipe, envs)["ok"]
    again = build(archive, recipe, envs, "--check")
    assert again["is_hit"]
    assert again["facts"]["packages"] == ["tiny==2.0"]


# --- modules ---------------------------------------------------------------------------------------------------------

MODULES = """
module() {
    case "$1" in
        purge) LOADEDMODULES= ;;
        load)
            case "$2" in
                gone*) echo "ERROR: Unable to locate a modulefile for '$2'"; return ${MODULE_CODE:-0} ;;
                *) LOADEDMODULES="${LOADEDMODULES:+$LOADEDMODULES:}$2/1.0"; export FROM_MODULE="$2" ;;
            esac ;;
    esac
    export LOADEDMODULES
}
"""


@pytest.fixture
def module_init(tmp_path: Path) -> str:
    path = tmp_path / "init.sh"
    path.write_text(MODULES)
    return str(path)


@pytest.mark.parametrize("code", ["0", "1"])
def test_a_missing_module_is_named_before_anything_is_built(
    archive: Path,
    recipe: EnvironmentRecipe,
    tmp_path: Path,
    module_init: str,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
) -> None:
    monkeypatch.setenv("MODULE_CODE", code)
    uv, uses = counting_uv(tmp_path, "venv")
    changed = replace(recipe, uv=uv, module_init=module_init, modules=("cuda", "gone/3"))
    answer = build(archive, changed, tmp_path / "envs")
    assert answer["code"] == "modules-failed"
    assert "cannot load the module `gone/3` on" in answer["message"]
    assert "Unable to locate a modulefile" in answer["message"]
    assert "module avail gone" in answer["hint"]
    assert not uses.exists()


def test_modules_reach_the_steps_and_the_facts(
    archive: Path, recipe: EnvironmentRecipe, tmp_path: Path, module_init: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADEDMODULES", "inherited/1")
    uv, uses = counting_uv(tmp_path, "sync", f'echo "$FROM_MODULE" > {tmp_path}/seen')
    changed = replace(recipe, uv=uv, module_init=module_init, module_purge=True, modules=("gcc", "cuda"))
    answer = build(archive, changed, tmp_path / "envs")
    assert answer["facts"]["modules"] == ["gcc/1.0", "cuda/1.0"]
    assert (tmp_path / "seen").read_text() == "cuda\n"
    assert uses.exists()


def test_a_forbidden_module_and_a_machine_without_modules(
    archive: Path, recipe: EnvironmentRecipe, tmp_path: Path, module_init: str
) -> None:
    changed = replace(recipe, module_init=module_init, modules=("cuda", "brics"), modules_forbidden=("brics",))
    answer = build(archive, changed, tmp_path / "envs")
    assert answer["code"] == "modules-failed"
    assert "`brics/1.0` is loaded" in answer["message"]
    empty = tmp_path / "empty.sh"
    empty.write_text("unset -f module\n")
    answer = build(archive, replace(recipe, module_init=str(empty), modules=("cuda",)), tmp_path / "envs")
    assert answer["code"] == "modules-failed"
    assert "but the site profile has modules: cuda" in answer["message"]


# --- overrides, patches, imports -------------------------------------------------------------------------------------


def test_an_override_replaces_one_package_and_is_recorded(
    archive: Path, recipe: EnvironmentRecipe, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    make_wheel(other, "tiny", "2.0+site", module="VERSION = 'of the site'\n")
    override = PackageOverride("tiny", index=str(other), why="old driver", seen="2026-11-01")
    answer = build(archive, replace(recipe, overrides=(override,)), tmp_path / "envs")
    assert answer["facts"]["packages"] == ["tiny==2.0+site"]
    assert answer["facts"]["overrides"] == [
        {
            "package": "tiny",
            "index": str(other),
            "why": "old driver",
            "seen": "2026-11-01",
            "outcome": "tiny==2.0 replaced by tiny==2.0+site",
        }
    ]
    assert ask(answer, "import tiny; print(tiny.VERSION)") == "of the site"


def test_an_override_with_a_version_takes_that_version(
    archive: Path, recipe: EnvironmentRecipe, tmp_path: Path
) -> None:
    wheels = str(Path(recipe.project) / "wheels")
    override = PackageOverride("tiny==1.0", index=wheels)
    absent = PackageOverride("absent==1.0", index=wheels)
    answer = build(archive, replace(recipe, overrides=(override, absent)), tmp_path / "envs")
    outcomes = [each["outcome"] for each in answer["facts"]["overrides"]]
    assert outcomes == ["tiny==2.0 replaced by tiny==1.0", "not needed: the package is not installed"]


def make_source(folder: Path, name: str, version: str) -> None:
    """A source archive whose build writes the compiler it was told of into the module."""
    backend = BACKEND.replace('pathlib.Path("code.txt").read_text()', '__import__("os").environ.get("CC", "none")')
    backend = backend.replace("built", name).replace("1.0", version)
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n',
        "backend.py": backend,
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as content:
        for path, text in files.items():
            info = tarfile.TarInfo(f"{name}-{version}/{path}")
            info.size = len(text)
            content.addfile(info, io.BytesIO(text.encode()))


@pytest.mark.parametrize("is_broken", [True, False])
def test_a_build_from_source_only_where_the_import_fails(archive: Path, tmp_path: Path, is_broken: bool) -> None:
    project = make_project(tmp_path / "p", dependencies=["flash"])
    make_wheel(
        project / "wheels", "flash", module="raise ImportError('wrong symbol')\n" if is_broken else "VALUE = 0\n"
    )
    sources = tmp_path / "sources"
    make_source(sources, "flash", "1.0")
    override = PackageOverride(
        "flash", str(sources), when_import_fails="flash", is_source_build=True, build_vars={"CC": "gcc-12"}
    )
    answer = build(archive, recipe_of(lock(project), overrides=(override,), imports=("flash",)), tmp_path / "envs")
    assert answer["ok"], answer
    outcome = answer["facts"]["overrides"][0]["outcome"]
    if is_broken:
        assert outcome == "flash==1.0 replaced by flash==1.0, built"
        assert ask(answer, "import flash; print(flash.VALUE)") == "gcc-12"
    else:
        assert outcome == "not needed: `import flash` works with flash==1.0"
        assert ask(answer, "import flash; print(flash.VALUE)") == "0"


def test_an_import_that_fails_after_the_build_is_an_error(archive: Path, tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", dependencies=["flash"])
    make_wheel(project / "wheels", "flash", module="raise ImportError('wrong symbol')\n")
    answer = build(archive, recipe_of(lock(project), imports=("flash",)), tmp_path / "envs")
    assert answer["code"] == "build-failed"
    assert answer["message"].startswith("`import flash` in the new environment failed: python exited with code 1")
    assert "ImportError: wrong symbol" in answer["message"]


def test_a_patch_runs_at_every_start(archive: Path, recipe: EnvironmentRecipe, tmp_path: Path) -> None:
    patch = StartupPatch("arch-flag", "import sys\nsys.patched = 'yes'\n", why="two\nlines", seen="2026-11-01")
    answer = build(archive, replace(recipe, patches=(patch,)), tmp_path / "envs")
    assert ask(answer, "import sys; print(sys.patched)") == "yes"
    assert answer["facts"]["patches"] == ["windlass_patch_arch_flag"]
    broken = replace(recipe, key="b" * 32, patches=(StartupPatch("bad", "1 / 0\n"),))
    answer = build(archive, broken, tmp_path / "envs")
    assert answer["message"].startswith("the start-up patch `bad` failed: it cannot be imported")
    assert "ZeroDivisionError" in answer["message"]


# --- the checkout's own packages, node-local disks --------------------------------------------------------------------


def test_packages_of_the_checkout_go_to_an_overlay(archive: Path, recipe: EnvironmentRecipe, tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    source.mkdir()
    (source / "code.txt").write_text("mine")
    (source / "backend.py").write_text(BACKEND)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "built"\nversion = "1.0"\n'
    )
    changed = replace(
        recipe, overlay_key="o" * 32, overlay_stamp="t" * 40, overlay=(OverlayPackage("built", str(source)),)
    )
    answer = build(archive, changed, tmp_path / "envs")
    overlay = Path(answer["overlay"])
    assert overlay == tmp_path / "envs" / ("o" * 32)
    assert "mine" in (overlay / "built/__init__.py").read_text()
    assert not (source / "written-by-build").exists()
    assert build(archive, changed, tmp_path / "envs")["is_hit"]


def test_a_node_gets_its_own_copy(archive: Path, recipe: EnvironmentRecipe, tmp_path: Path) -> None:
    answer = build(archive, replace(recipe, is_staged=True), tmp_path / "envs")
    target = tmp_path / "local" / "windlass" / recipe.key
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: stage(Path(answer["environment"]), target), range(4)))
    assert sorted(each.is_hit for each in found) == [False, True, True, True]
    assert ask({"environment": str(target)}, "import tiny, sys; print(tiny.VERSION, sys.prefix)") == f"2.0 {target}"
