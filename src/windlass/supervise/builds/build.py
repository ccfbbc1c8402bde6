"""`windlass.pyz build RECIPE FOLDER [--check]`: builds an environment on this machine, once, and prints the result.

RECIPE is a file, or `-` for standard input. The last line on standard output is a JSON object: `ok`, then either the
folders and facts of the environment, or `message`, `hint`, `code`. `--check` builds nothing: if the environment does not
exist, the recipe is saved next to its location, for a build job, and the result has `missing` and the recipe's path.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from windlass.core.errors import PreconditionError, WindlassError
from windlass.core.files import write_atomic
from windlass.core.process import run
from windlass.supervise.builds.once import Ready, beside, build_once, find_ready
from windlass.supervise.builds.recipe import AIMING_VARIABLES, EnvironmentRecipe, OverlayPackage
from windlass.supervise.builds.steps import BuildShell, build_environment, check_lock, find_uv

__all__ = ["build_main", "ensure_recipe", "module_environment"]

_IGNORED = (".git", ".hg", ".venv", "venv", "__pycache__", "node_modules", ".tox", ".nox", ".mypy_cache")


def build_main(arguments: list[str]) -> int:
    """Run `windlass.pyz build`. Blocks until the environment exists; idempotent and safe to run concurrently.

    Returns:
        0; 2 for a wrong command line; the exit code of the error otherwise.
    """
    is_check = arguments[2:] == ["--check"]
    if len(arguments) != 2 + is_check:
        return 2
    source, envs = arguments[0], Path(os.path.abspath(arguments[1]))
    signal.signal(signal.SIGTERM, _on_term)
    try:
        recipe = _read(source)
        answer = _look(recipe, envs) if is_check else ensure_recipe(recipe, envs)
    except WindlassError as error:
        _say({"ok": False, "message": error.message, "hint": error.hint, "code": error.code})
        return error.exit_code
    except OSError as error:
        _say({"ok": False, "message": f"the build failed: {error}", "hint": "", "code": "build-failed"})
        return PreconditionError.exit_code
    _say({"ok": True, **answer})
    return 0


def _on_term(number: int, frame: object) -> None:
    raise PreconditionError("the build was terminated before it finished", hint="launch again", code="build-failed")


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _read(source: str) -> EnvironmentRecipe:
    if source == "-":
        return EnvironmentRecipe.from_json(sys.stdin.buffer.read(), "the recipe on standard input")
    try:
        return EnvironmentRecipe.from_json(Path(source).read_bytes(), source)
    except OSError as error:
        raise PreconditionError(f"cannot read the recipe {source}: {error.strerror}", code="plan-broken") from error


def _look(recipe: EnvironmentRecipe, envs: Path) -> dict[str, object]:
    """Return the existing environment like `ensure_recipe`, or save the recipe for a build job and return its path."""
    found = _find(recipe, envs)
    if found is not None:
        return found
    check_lock(recipe)
    kept = beside(envs / (recipe.overlay_key or recipe.key), ".recipe.json")
    try:
        envs.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, recipe.to_json())
    except OSError as error:
        raise PreconditionError(
            f"cannot write {kept}: {error.strerror}",
            hint="set `fs.shared` in the site profile to a folder that you can write to",
            code="not-writable",
        ) from error
    return {"missing": True, "recipe": str(kept), "arch": os.uname().machine}


def _find(recipe: EnvironmentRecipe, envs: Path) -> dict[str, object] | None:
    environment = find_ready(envs / recipe.key)
    overlay = find_ready(envs / recipe.overlay_key) if recipe.overlay_key else None
    if environment is None or (recipe.overlay_key and overlay is None):
        return None
    if recipe.is_staged and not beside(envs / recipe.key, ".tar").exists():
        return None
    return _answer(environment, overlay)


def ensure_recipe(recipe: EnvironmentRecipe, envs: Path) -> dict[str, object]:
    """Build a recipe's environment and overlay below `envs`; return the fields of the result line.

    Raises:
        PreconditionError: it cannot be built; a copy of the message is in its `.failed` file.
    """
    found = _find(recipe, envs)
    if found is not None:
        return found
    place = envs / recipe.key
    environment = build_once(place, lambda folder: _build(recipe, place, folder), _tell)
    overlay = None
    if recipe.overlay_key:
        beyond = envs / recipe.overlay_key
        overlay = build_once(beyond, lambda folder: _build_overlay(recipe, place, beyond, folder), _tell)
    if recipe.is_staged:
        from windlass.supervise.builds.staging import ensure_archived  # lazy: seldom needed

        ensure_archived(place)
    return _answer(environment, overlay)


def _tell(line: str) -> None:
    sys.stderr.write(f"windlass: {line}\n")


def _answer(environment: Ready, overlay: Ready | None) -> dict[str, object]:
    return {
        "environment": str(environment.folder),
        "overlay": "" if overlay is None else str(overlay.folder),
        "overlay_has_programs": overlay is not None and (overlay.folder / "bin").is_dir(),
        "is_hit": environment.is_hit and (overlay is None or overlay.is_hit),
        "facts": dict(environment.notes),
    }


def _build(recipe: EnvironmentRecipe, place: Path, folder: Path) -> dict[str, object]:
    beside(place, ".tar").unlink(missing_ok=True)  # the copy of a damaged environment
    shell = _shell(recipe, place)
    machine = os.uname().machine
    if recipe.arch and machine != recipe.arch:
        raise PreconditionError(
            f"{os.uname().nodename} is {machine}, but the environment is for {recipe.arch}",
            hint="set `env: {build: compute}` in the site profile, which builds where jobs run",
            code="wrong-architecture",
        )
    _tell(f"building the environment {recipe.key[:12]} (log: {shell.log_file})")
    return build_environment(recipe, folder, shell)


def _shell(recipe: EnvironmentRecipe, place: Path) -> BuildShell:
    """Return a shell with the log file and variables for all steps; modules are loaded first, to fail early."""
    log_file = beside(place, ".log")
    log_file.write_bytes(b"")
    base = {name: value for name, value in os.environ.items() if name not in AIMING_VARIABLES}
    variables = module_environment(recipe, base)
    variables.update({"UV_NO_PROGRESS": "1", "NO_COLOR": "1"})
    # The environment becomes read-only, so byte code is compiled now; and uv's cache must not share its files.
    variables.update({"UV_COMPILE_BYTECODE": "1", "UV_LINK_MODE": "copy"})
    variables.setdefault("UV_PYTHON_INSTALL_DIR", str(place.parent / "pythons"))
    if recipe.is_offline:
        variables["UV_OFFLINE"] = "1"
    return BuildShell(Path(recipe.project), variables, log_file)


def _build_overlay(recipe: EnvironmentRecipe, environment: Path, place: Path, folder: Path) -> dict[str, object]:
    """Build packages from copies of the checkout, and install them into a separate folder."""
    shell = _shell(recipe, place)
    uv = find_uv(recipe.uv, shell.variables)
    for package in recipe.overlay:
        if not os.path.isdir(package.folder):
            raise PreconditionError(
                f"the local package `{package.name}` is not in the checkout: {package.folder}",
                hint="keep it inside the repository",
                code="code-not-in-commit",
            )
        _tell(f"building {package.name} from the checkout")
        with tempfile.TemporaryDirectory(prefix="windlass-build-") as scratch:
            _install(package, Path(scratch), recipe, [uv, str(environment / "bin" / "python"), str(folder)], shell)
    return {"stamp": recipe.overlay_stamp}


def _install(
    package: OverlayPackage, scratch: Path, recipe: EnvironmentRecipe, words: list[str], shell: BuildShell
) -> None:
    import shutil  # lazy: most projects need no build

    uv, python, target = words
    copy = scratch / Path(package.folder).resolve().name
    shutil.copytree(package.folder, str(copy), symlinks=True, ignore=shutil.ignore_patterns(*_IGNORED))
    # A checkout has no .git, so version-from-git backends (setuptools-scm, hatch-vcs) get a version.
    name = "".join(each if each.isalnum() else "_" for each in package.name.upper())
    scm = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_" + name
    version = shell.variables.get(scm, f"0.0.0+g{recipe.overlay_stamp[:12]}")
    argv = [uv, "pip", "install", "--no-deps", "--python", python, "--target", target, str(copy)]
    shell.check(f"building `{package.name}`", argv, {scm: version})


_TIMEOUT_S = 600.0
_NO_INIT, _NO_MODULE_COMMAND, _NOT_LOADED = 91, 92, 93

# $1: folder for answers, $2: init file, $3: whether to purge; then the modules. Old versions of `module load` return 0
# for a missing module, so their output counts too.
_SCRIPT = f"""
answers=$1 init=$2 purge=$3; shift 3
if [ -n "$init" ]; then . "$init" || exit {_NO_INIT}; fi
if ! type module >/dev/null 2>&1; then
    for each in "$LMOD_PKG/init/bash" "$MODULESHOME/init/bash" /etc/profile.d/lmod.sh /etc/profile.d/modules.sh \\
                /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash; do
        if [ -r "$each" ]; then . "$each"; break; fi
    done
fi
type module >/dev/null 2>&1 || exit {_NO_MODULE_COMMAND}
if [ "$purge" = yes ]; then module purge; fi
for each in "$@"; do
    echo "$each" > "$answers/module"
    module load "$each" > "$answers/output" 2>&1
    code=$?
    cat "$answers/output" >&2
    [ $code -eq 0 ] || exit {_NOT_LOADED}
    case ":$LOADEDMODULES:" in
        *":$each:"*|*":$each/"*) ;;
        *) if grep -qi -e error -e 'unable to locate' "$answers/output"; then exit {_NOT_LOADED}; fi ;;
    esac
done
env -0 > "$answers/environment"
"""


def module_environment(recipe: EnvironmentRecipe, base: Mapping[str, str]) -> dict[str, str]:
    """Load the recipe's modules, if it has any, on top of `base`; return the resulting variables. Blocking.

    Raises:
        PreconditionError: `modules-failed`, before anything is built.
    """
    if not recipe.modules and not recipe.module_init:
        return dict(base)
    with tempfile.TemporaryDirectory(prefix="windlass-modules-") as answers:
        purge = "yes" if recipe.module_purge else "no"
        argv = ["bash", "-c", _SCRIPT, "windlass", answers, recipe.module_init, purge, *recipe.modules]
        done = run(argv, env=base, timeout_s=_TIMEOUT_S)
        if done.code != 0:
            raise _problem(recipe, done.code, done.stderr, Path(answers))
        found = (Path(answers) / "environment").read_bytes()
    pairs = (item.split("=", 1) for item in found.decode(errors="surrogateescape").split("\0") if "=" in item)
    variables = {name: value for name, value in pairs if name not in ("_", "SHLVL")}
    _check_forbidden(recipe, variables.get("LOADEDMODULES", ""))
    return variables


def _problem(recipe: EnvironmentRecipe, code: int, output: str, answers: Path) -> PreconditionError:
    host = os.uname().nodename
    lines = "".join(f"\n  module: {line}" for line in output.strip().split("\n")[-6:] if line.strip())
    if code == _NOT_LOADED:
        name = (answers / "module").read_text().strip()
        return PreconditionError(
            f"cannot load the module `{name}` on {host}{lines}",
            hint=f"run `module avail {name.partition('/')[0]}` there, then correct `env.modules` in the site profile",
            code="modules-failed",
        )
    if code == _NO_MODULE_COMMAND:
        return PreconditionError(
            f"no `module` command on {host}, but the site profile has modules: {', '.join(recipe.modules)}",
            hint="set `env.module_init` in the site profile to the shell file that defines it",
            code="modules-failed",
        )
    what = f"a shell on {host} cannot read `{recipe.module_init}` (env.module_init){lines}"
    return PreconditionError(what, hint="correct `env.module_init` in the site profile", code="modules-failed")


def _check_forbidden(recipe: EnvironmentRecipe, loaded: str) -> None:
    for name in recipe.modules_forbidden:
        found = [each for each in loaded.split(":") if each == name or each.startswith(name + "/")]
        if found:
            raise PreconditionError(
                f"the module `{found[0]}` is loaded, but `env.modules_forbidden` in the site profile forbids it",
                hint=f"one of `env.modules` ({', '.join(recipe.modules)}) loads it: remove that module",
                code="modules-failed",
            )
