from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pin.projects import BACKEND, lock, make_project, make_wheel, uv
from windlass.core.errors import PreconditionError
from windlass.pin.environment.ensuring import ensure_environment
from windlass.pin.environment.pinned import NO_ENVIRONMENT, EnvironmentPin, LocalPackage
from windlass.pin.environment.pinning import pin_environment
from windlass.pin.environment.uv_tool import run_uv

pytestmark = pytest.mark.system

EXTRAS = '[project.optional-dependencies]\nfast = ["other"]\n[dependency-groups]\ntest = ["other"]\n'


def pin(folder: Path, **choices: list[str]) -> EnvironmentPin:
    return pin_environment(
        "uv",
        folder,
        extras=choices.get("extras", ()),
        groups=choices.get("groups", ()),
        unhashed=choices.get("unhashed", ()),
    )


def test_a_pin_records_lock_manifest_python_and_platform(tmp_path: Path) -> None:
    folder = lock(make_project(tmp_path / "p"))
    found = pin(folder)
    assert (found.kind, found.lock_file, found.has_build_step) == ("uv", "uv.lock", False)
    assert len(found.lock_sha256) == len(found.manifest_sha256) == 64
    assert found.python_version.count(".") == 2
    assert found.platform.startswith("linux-")
    assert found.local_packages == ()
    assert pin(folder) == found


def test_the_key_follows_what_decides_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lock(make_project(tmp_path / "p", more=EXTRAS))
    plain = pin(folder)
    keys = {
        plain.key,
        pin(folder, extras=["fast"]).key,
        pin(folder, groups=["test"]).key,
        pin(folder, unhashed=["other==1.0"]).key,
    }
    monkeypatch.setenv("UV_NO_DEV", "1")
    keys.add(pin(folder).key)
    assert len(keys) == 5
    monkeypatch.delenv("UV_NO_DEV")
    (folder / "src/demo/__init__.py").write_text("VALUE = 2\n")
    with (folder / "pyproject.toml").open("a") as file:
        file.write("[tool.other]\nx = 1\n")
    assert pin(folder).key == plain.key
    assert pin(folder).manifest_sha256 != plain.manifest_sha256
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert pin(tmp_path / "elsewhere").key == plain.key


@pytest.mark.parametrize("name", ["pylock.toml", "pylock.train.toml", "requirements.txt"])
def test_other_lock_files_are_found(tmp_path: Path, name: str) -> None:
    folder = make_project(tmp_path / "p")
    uv(folder, "pip", "compile", "-q", "--generate-hashes", "pyproject.toml", "-o", name)
    found = pin(folder)
    assert (found.lock_file, found.has_build_step) == (name, False)
    lock(folder)
    assert pin(folder).lock_file == "uv.lock"


def test_a_workspace_member_uses_the_lock_of_its_root(tmp_path: Path) -> None:
    root = make_project(tmp_path / "w", more='[tool.uv.workspace]\nmembers = ["libs/*"]\n')
    make_project(root / "libs/member", name="member", dependencies=["other"])
    (root / "libs/member/pyproject.toml").write_text(
        '[project]\nname = "member"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["other"]\n'
    )
    lock(root)
    assert pin(root / "libs/member").lock_file == "../../uv.lock"


def test_an_interpreter_is_recorded_as_it_is(tmp_path: Path) -> None:
    by_name = pin_environment("python", tmp_path, python=sys.executable)
    by_folder = pin_environment("python", tmp_path, python=sys.prefix)
    assert by_name.kind == "python"
    assert by_name.packages == by_folder.packages
    assert any(each.startswith("pytest==") for each in by_name.packages)
    assert by_name.key == by_folder.key
    assert by_name.python_version == ".".join(map(str, sys.version_info[:3]))
    built = ensure_environment(by_name, tmp_path, tmp_path / "cache", log=print)
    assert built.python == Path(sys.executable)
    assert not (tmp_path / "cache").exists()


def test_no_environment_changes_no_path(tmp_path: Path) -> None:
    assert pin_environment("none", tmp_path) == NO_ENVIRONMENT
    built = ensure_environment(NO_ENVIRONMENT, tmp_path, tmp_path / "cache", log=print)
    assert (built.bins, built.path_entries, built.is_hit) == ((), (tmp_path,), True)


BUILD = '[build-system]\nrequires = []\nbuild-backend = "hatchling.build"\n'


@pytest.mark.parametrize(
    ("more", "files", "must_be_installed"),
    [
        (BUILD, {"src/demo/__init__.py": ""}, False),
        (BUILD, {"demo/__init__.py": ""}, False),
        (BUILD, {"demo.py": ""}, False),
        (BUILD, {"lib/demo/__init__.py": ""}, True),
        (BUILD + '[project.scripts]\nx = "demo:x"\n', {"src/demo/__init__.py": ""}, True),
        (BUILD + '[tool.hatch.build.hooks.vcs]\nversion-file = "v.py"\n', {"src/demo/__init__.py": ""}, True),
        (BUILD.replace("hatchling.build", "maturin"), {"src/demo/__init__.py": ""}, True),
        (BUILD, {"src/demo/__init__.py": "", "setup.py": "setup(ext_modules=[])"}, True),
        (BUILD, {"src/demo/__init__.py": "", "setup.py": "setup()"}, False),
        (BUILD, {"src/demo/__init__.py": "", "CMakeLists.txt": ""}, True),
    ],
)
def test_what_must_be_built(tmp_path: Path, more: str, files: dict[str, str], must_be_installed: bool) -> None:
    from windlass.pin.environment.project import describe_package

    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "demo"\nversion = "1"\n{more}')
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert describe_package(tmp_path, tmp_path) == LocalPackage(
        name="demo", path=".", must_be_installed=must_be_installed
    )


def test_wheels_that_pip_knows_serve_a_sync_and_never_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(argv: list[str], **options: dict[str, str]) -> None:
        seen.append(options["env"].get("UV_FIND_LINKS"))

    monkeypatch.setattr("windlass.pin.environment.uv_tool.run", spy)
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    run_uv(["sync"], cwd=tmp_path, is_sync=True)
    run_uv(["lock"], cwd=tmp_path)
    monkeypatch.setenv("UV_FIND_LINKS", "/mine")
    run_uv(["sync"], cwd=tmp_path, is_sync=True)
    assert seen == ["/a,/b", None, "/mine"]


def test_an_unhashed_package_comes_from_pips_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_project(tmp_path / "p")
    uv(folder, "pip", "compile", "-q", "--generate-hashes", "pyproject.toml", "-o", "requirements.txt")
    make_wheel(tmp_path / "cpu", "torchlike", "2.13.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "cpu"))
    (folder / "pyproject.toml").write_text((folder / "pyproject.toml").read_text().replace("no-index = true\n", ""))
    built = ensure_environment(pin(folder, unhashed=["torchlike==2.13.0"]), folder, tmp_path / "cache", log=print)
    assert built.packages == ("tiny==2.0", "torchlike==2.13.0")


def run_python(python: Path, entries: tuple[Path, ...], program: str) -> str:
    environment = {"PYTHONPATH": ":".join(map(str, entries)), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_local_packages_never_enter_the_shared_environment(tmp_path: Path) -> None:
    member = 'member = { workspace = true }\nlib = { path = "lib" }\n'
    folder = make_project(
        tmp_path / "a",
        dependencies=["tiny", "member", "lib"],
        more=f'[tool.uv.workspace]\nmembers = ["libs/*"]\n[tool.uv.sources]\n{member}',
    )
    for path, name in (("libs/member", "member"), ("lib", "lib")):
        (folder / path / "src" / name).mkdir(parents=True)
        (folder / path / "src" / name / "__init__.py").write_text(f"WHERE = {name!r} + ' a'\n")
        (folder / path / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "1"\nrequires-python = ">=3.11"\n{BUILD}'
        )
    lock(folder)
    shutil.copytree(folder, tmp_path / "b")
    for name, path in (("member", "libs/member"), ("lib", "lib")):
        (tmp_path / "b" / path / "src" / name / "__init__.py").write_text(f"WHERE = {name!r} + ' b'\n")
    found = pin(folder)
    assert {package.path for package in found.local_packages} == {"libs/member", "lib"}
    assert not found.has_build_step
    for letter in "ab":
        built = ensure_environment(found, tmp_path / letter, tmp_path / "cache", log=print)
        assert built.packages == ("tiny==2.0",)
        program = "import demo, member, lib, tiny; print(member.WHERE, lib.WHERE, tiny.VERSION)"
        assert run_python(built.python, built.path_entries, program) == f"member {letter} lib {letter} 2.0"


def test_a_build_step_gets_an_overlay_per_tree(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "built"\nversion = "1.0"\nrequires-python = ">=3.11"\n[project.scripts]\nbuilt-tool = "built:main"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(BACKEND)
    (folder / "code.txt").write_text("one")
    lock(folder)
    shutil.copytree(folder, tmp_path / "two")
    (tmp_path / "two/code.txt").write_text("two")
    found = pin(folder)
    assert found.has_build_step
    outputs = []
    for name in ("one", "two"):
        built = ensure_environment(found, tmp_path / name, tmp_path / "cache", log=print, tree=name * 10)
        assert not built.is_hit
        outputs.append(run_python(built.python, built.path_entries, "import built; print(built.VALUE)"))
        tool = subprocess.run(
            [built.bins[0] / "built-tool"],
            env={"PYTHONPATH": str(built.path_entries[0])},
            capture_output=True,
            text=True,
        )
        assert tool.stdout.strip() == name
        assert not (tmp_path / name / "written-by-build").exists()
        assert ensure_environment(found, tmp_path / name, tmp_path / "cache", log=print, tree=name * 10).is_hit
    assert outputs == ["one", "two"]
    assert len(list((tmp_path / "cache/envs").glob("*/complete.json"))) == 1


def test_code_in_place_is_built_again_when_it_changes(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "built"\nversion = "1.0"\nrequires-python = ">=3.11"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(BACKEND)
    lock(folder)
    found = pin(folder)
    for text in ("first", "second, longer"):
        (folder / "code.txt").write_text(text)
        built = ensure_environment(found, folder, tmp_path / "cache", log=print)
        assert run_python(built.python, built.path_entries, "import built; print(built.VALUE)") == text


def test_a_checkout_with_another_lock_is_refused(tmp_path: Path) -> None:
    folder = lock(make_project(tmp_path / "p"))
    found = pin(folder)
    (folder / "uv.lock").write_text((folder / "uv.lock").read_text() + "\n")
    with pytest.raises(PreconditionError, match="differs from the lock file that was pinned") as caught:
        ensure_environment(found, folder, tmp_path / "cache", log=print)
    assert caught.value.code == "input-changed"
    assert not list((tmp_path / "cache/envs").glob("*/complete.json"))
