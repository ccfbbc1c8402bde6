"""Environment variables that a site's modules set, read from a shell; errors name the missing module."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.core.process import run
from windlass.supervise.builds.recipe import EnvironmentRecipe

__all__ = ["module_environment"]

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
