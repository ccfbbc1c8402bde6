"""Steps that create a virtual environment from a recipe; each is run and logged."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.core.files import sha256_file
from windlass.core.json_text import decode_json
from windlass.supervise.builds.recipe import TORCH_BACKEND, EnvironmentRecipe, PackageOverride

__all__ = ["BuildShell", "build_environment", "check_lock", "find_uv"]

_STEP_TIMEOUT_S = 4 * 3600.0
_NOT_INSTALLED = 97
_IMPORT = """
import importlib.util, sys
name = sys.argv[1]
if importlib.util.find_spec(name.partition(".")[0]) is None:
    sys.exit(%d)
__import__(name)
"""
_DESCRIBE = "import json, platform, sys; print(json.dumps([platform.python_version(), sys.base_prefix]))"


class BuildShell:
    """Runner of programs, one at a time, all with the same environment and log.

    Args:
        folder: working folder.
        log_file: file for their output.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], log_file: Path) -> None:
        self.variables = dict(variables)
        self.log_file = log_file
        self._folder = folder

    def code(self, argv: Sequence[str], more: Mapping[str, str] | None = None) -> int:
        """Run a program with its output in the log; return its exit code."""
        with open(str(self.log_file), "ab") as log:
            log.write(f"$ {' '.join(' '.join(argv).split())}\n".encode(errors="replace"))
            log.flush()
            return self._run(argv, log.fileno(), more)

    def _run(self, argv: Sequence[str], output: int, more: Mapping[str, str] | None) -> int:
        try:
            return subprocess.run(
                list(argv),
                cwd=str(self._folder),
                env={**self.variables, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_STEP_TIMEOUT_S,
            ).returncode
        except OSError as error:
            raise PreconditionError(
                f"`{argv[0]}` cannot be executed: {error.strerror}",
                hint="check the programs named in the site profile",
                code="program-missing",
            ) from error
        except subprocess.TimeoutExpired:
            return -9

    def check(self, what: str, argv: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        """Run a program that must succeed.

        Raises:
            PreconditionError: it failed; the message has the last lines of the log.
        """
        start = self.log_file.stat().st_size if self.log_file.exists() else 0
        code = self.code(argv, more)
        if code != 0:
            raise self.failure(what, f"{Path(argv[0]).name} exited with code {code}", start)

    def failure(self, what: str, how: str, start: int = 0) -> PreconditionError:
        """Return an error for a failed step, including the end of its output."""
        with open(str(self.log_file), "rb") as log:
            log.seek(start)
            text = log.read().decode(errors="replace")
        lines = [line.rstrip() for line in text.split("\n") if line.strip() and not line.startswith("$ ")][-12:]
        output = "".join(f"\n  {line}" for line in lines)
        if "No space left on device" in text or "Disk quota exceeded" in text:
            hint, code = "free some space, or set `fs.shared` to another folder", "disk-full"
        elif "network was disabled" in text:
            hint, code = "configure an index for uv, or UV_FIND_LINKS with a folder of wheels", "build-failed"
        else:
            hint, code = f"read {self.log_file}", "build-failed"
        return PreconditionError(f"{what} failed: {how}{output}\n  log: {self.log_file}", hint=hint, code=code)

    def answer(self, argv: Sequence[str]) -> str:
        """Return the output of a program; empty if it fails."""
        done = subprocess.run(
            list(argv),
            cwd=str(self._folder),
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_STEP_TIMEOUT_S,
        )
        return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


def find_uv(wanted: str, variables: Mapping[str, str]) -> str:
    """Return the path of uv: the configured one, the one on the PATH, or one in the folders of its installers."""
    home = variables.get("HOME", "")
    places = [wanted, *(os.path.join(home, each, "uv") for each in (".local/bin", ".cargo/bin") if wanted == "uv")]
    for place in places:
        found = shutil.which(place, path=variables.get("PATH"))
        if found is not None:
            return found
    raise PreconditionError(
        f"`{wanted}` not found on {os.uname().nodename}",
        hint="install uv there (python3 -m pip install --user uv), or set `env.uv` in the site profile",
        code="program-missing",
    )


def build_environment(recipe: EnvironmentRecipe, folder: Path, shell: BuildShell) -> dict[str, object]:
    """Create the environment in `folder` by the recipe's steps; return facts for the marker and the provenance."""
    check_lock(recipe)
    uv = find_uv(recipe.uv, shell.variables)
    wanted = _interpreter(recipe, uv, shell)
    shell.check(
        "creating the virtual environment",
        [uv, "venv", "--relocatable", "--no-project", "--allow-existing", "--python", wanted, str(folder)],
    )
    python = str(folder / "bin" / "python")
    _sync(recipe, uv, folder, wanted, shell)
    if recipe.unhashed:
        shell.check("installing packages", [uv, "pip", "install", "--python", python, *recipe.unhashed])
    _write_patches(recipe, folder, python, shell)
    overrides = [_override(each, uv, python, shell) for each in recipe.overrides]
    imports = {name: _check_import(name, python, shell) for name in recipe.imports}
    version, base = decode_json(shell.answer([python, "-I", "-c", _DESCRIBE]))
    return {
        "proof": "bin/python",
        "key": recipe.key,
        "arch": recipe.arch,
        "host": os.uname().nodename,
        "python_version": version,
        "python_wanted": recipe.python_version,
        "base_prefix": base,
        "packages": shell.answer([uv, "pip", "freeze", "--python", python]).split("\n"),
        "overrides": overrides,
        "patches": [each.module for each in recipe.patches],
        "imports": imports,
        "modules": [each for each in shell.variables.get("LOADEDMODULES", "").split(":") if each],
    }


def check_lock(recipe: EnvironmentRecipe) -> Path:
    """Return the path of the recipe's lock file after checking that it is unchanged.

    Raises:
        PreconditionError: it is missing or changed.
    """
    path = Path(os.path.normpath(os.path.join(recipe.project, recipe.lock_file)))
    if not path.is_file():
        raise PreconditionError(f"the checkout has no lock file {path}", hint="commit it", code="lock-invalid")
    if sha256_file(path) != recipe.lock_sha256:
        raise PreconditionError(
            f"{path} differs from the lock file that was pinned", hint="plan again", code="input-changed"
        )
    return path


def _interpreter(recipe: EnvironmentRecipe, uv: str, shell: BuildShell) -> str:
    """Return a Python of the pinned version, downloading it if necessary, or else one of the same minor version."""
    minor = ".".join(recipe.python_version.split(".")[:2])
    find = [uv, "python", "find", "--system", "--no-python-downloads"]
    found = shell.answer([*find, recipe.python_version])
    if not found and not recipe.is_offline and shell.code([uv, "python", "install", recipe.python_version]) == 0:
        found = shell.answer([*find, recipe.python_version])
    found = found or shell.answer([*find, minor])
    if not found:
        raise PreconditionError(
            f"Python {recipe.python_version} not found on {os.uname().nodename}, and uv cannot download it",
            hint=f"uv python install {minor} there, or load a module with it (`env.modules` in the site profile)",
            code="python-unusable",
        )
    return found


def _sync(recipe: EnvironmentRecipe, uv: str, folder: Path, wanted: str, shell: BuildShell) -> None:
    if Path(recipe.lock_file).name == "uv.lock":
        chosen = [f"--extra={each}" for each in recipe.extras] + [f"--group={each}" for each in recipe.groups]
        # The code comes from the checkout of each run: a link to one checkout here would affect all runs.
        chosen += [f"--no-install-package={each}" for each in recipe.not_installed]
        argv = [uv, "sync", "--frozen", "--no-install-project", "--no-install-workspace", *chosen, "--python", wanted]
        shell.check("installing the locked packages", argv, {"UV_PROJECT_ENVIRONMENT": str(folder)})
        return
    hashes = ["--require-hashes"] if recipe.lock_file.endswith(".txt") else []
    argv = [uv, "pip", "sync", "--allow-empty-requirements", *hashes, "--python", str(folder / "bin" / "python")]
    shell.check("installing the locked packages", [*argv, recipe.lock_file])


def _write_patches(recipe: EnvironmentRecipe, folder: Path, python: str, shell: BuildShell) -> None:
    """Install the start-up patches; call this before `_override`, since a build from source may need one."""
    if not recipe.patches:
        return
    places = folder.glob("lib/python*/site-packages")
    site_packages = next(iter(sorted(places)))
    for patch in recipe.patches:
        comment = " ".join(f"{patch.name} {patch.seen} {patch.why}".split())
        (site_packages / f"{patch.module}.py").write_text(f"# {comment}\n{patch.code}", encoding="utf-8")
        start = shell.log_file.stat().st_size
        if shell.code([python, "-I", "-c", f"import {patch.module}"]) != 0:
            raise shell.failure(f"the start-up patch `{patch.name}`", "it cannot be imported", start)
        (site_packages / f"{patch.module}.pth").write_text(f"import {patch.module}\n")


def _override(override: PackageOverride, uv: str, python: str, shell: BuildShell) -> dict[str, str]:
    """Replace one package if the override is needed; return a description of the change."""
    record = {"package": override.package, "why": override.why, "seen": override.seen, "index": override.index}
    before = _installed(override.name, uv, python, shell)
    if not before:
        return {**record, "outcome": "not needed: the package is not installed"}
    module = override.when_import_fails
    if module and shell.code([python, "-I", "-c", f"import {module}"]) == 0:
        return {**record, "outcome": f"not needed: `import {module}` works with {before}"}
    shell.check(f"the override `{override.package}`", _install(override, before, uv, python), override.build_vars)
    after = _installed(override.name, uv, python, shell)
    if module:
        start = shell.log_file.stat().st_size
        if shell.code([python, "-I", "-c", f"import {module}"]) != 0:
            raise shell.failure(f"the override `{override.package}`", f"`import {module}` still fails", start)
    return {**record, "outcome": f"{before} replaced by {after}" + (", built" if override.is_source_build else "")}


def _install(override: PackageOverride, before: str, uv: str, python: str) -> list[str]:
    # The same version in another build: an index, such as that of a CUDA version, adds a local part (`+cu126`).
    package = override.package if "==" in override.package else before.partition("+")[0]
    argv = [uv, "pip", "install", "--python", python, "--reinstall-package", override.name, package]
    if override.is_source_build:  # without the cache, which may have the build of another compiler
        argv += ["--no-binary", override.name, "--no-cache"]
    if TORCH_BACKEND.fullmatch(override.index):
        argv += ["--torch-backend", override.index]
    elif "://" in override.index:
        argv += ["--index", override.index]
    elif override.index:
        argv += ["--no-index", "--find-links", override.index]
    return argv


def _installed(name: str, uv: str, python: str, shell: BuildShell) -> str:
    """Return `name==version` of an installed package; empty if it is not installed."""
    shown = shell.answer([uv, "pip", "show", "--python", python, name])
    version = next((line.partition(":")[2].strip() for line in shown.split("\n") if line.startswith("Version:")), "")
    return f"{name}=={version}" if version else ""


def _check_import(name: str, python: str, shell: BuildShell) -> str:
    start = shell.log_file.stat().st_size
    code = shell.code([python, "-I", "-c", _IMPORT % _NOT_INSTALLED, name])
    if code not in (0, _NOT_INSTALLED):
        raise shell.failure(f"`import {name}` in the new environment", f"python exited with code {code}", start)
    return "ok" if code == 0 else "not installed"
