"""Pinning of an interpreter at a site, which is inspected over ssh."""

from __future__ import annotations

from windlass.backends.site_shell import shell_for
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.pin.environment.interpreter import QUESTION, read_answer
from windlass.pin.environment.pinned import EnvironmentPin
from windlass.pin.environment.pinning import pin_of_interpreter
from windlass.sites.profile import Profile

__all__ = ["pin_site_python"]

# Prints the interpreter at a path or in a virtual environment; `~` is the home folder at the site.
_FIND = r"""
case $0 in "~") p=$HOME;; "~/"*) p=$HOME${0#"~"};; *) p=$0;; esac
for each in "$p" "$p/bin/python" "$p/bin/python3"; do
  if [ -f "$each" ] && [ -x "$each" ]; then echo "$each"; exit 0; fi
done
exit 3
"""
_TIMEOUT_S = 120.0


def pin_site_python(python: str, profile: Profile) -> EnvironmentPin:
    """Pin an interpreter by inspecting it with two commands at the site.

    Args:
        python: path of a program or virtual environment at the site; may start with `~/`.

    Raises:
        UsageError: the path is not absolute.
        NotFoundError, PreconditionError: the interpreter does not exist, or is not Python >= 3.9.
        UnreachableError: the site cannot be reached.
    """
    if not python.startswith(("/", "~/")):
        message = (
            f"`env.python` is the relative path `{python}`, but each run has its own code folder at {profile.name}"
        )
        raise UsageError(message, hint=f"give its absolute path at {profile.name}", code="python-unusable")
    shell = shell_for(profile)
    found = shell.run(["sh", "-c", _FIND, python])
    if found.code:
        hint = f"set `env.python` to a program or virtual environment at {profile.name}, not on this machine"
        raise NotFoundError(f"no such Python at {shell.name}: {python}", hint=hint, code="python-unusable")
    path = found.out.strip().rpartition("\n")[2]
    clean = ["env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", "-u", "PYTHONSTARTUP"]
    answer = shell.run([*clean, path, "-c", QUESTION, "packages"], timeout_s=_TIMEOUT_S)
    try:
        return pin_of_interpreter(read_answer(path, answer.code, answer.out, answer.err))
    except PreconditionError as error:
        raise PreconditionError(f"{shell.name}: {error.message}", hint=error.hint, code=error.code) from error
