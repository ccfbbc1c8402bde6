"""The pin of an interpreter that lies at a site over ssh: it is asked there, for here is another one or none."""

from __future__ import annotations

from windlass.backends.site_shell import shell_for
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.pin import EnvironmentPin
from windlass.pin.environment.interpreter import QUESTION, read_answer
from windlass.pin.environment.pinning import pin_of_interpreter
from windlass.sites import Profile

__all__ = ["pin_site_python"]

# Says the path of the program that a file or a virtual environment's folder is, with `~` as the login's home.
_FIND = r"""
case $0 in "~") p=$HOME;; "~/"*) p=$HOME${0#"~"};; *) p=$0;; esac
for each in "$p" "$p/bin/python" "$p/bin/python3"; do
  if [ -f "$each" ] && [ -x "$each" ]; then echo "$each"; exit 0; fi
done
exit 3
"""
_TIMEOUT_S = 120.0


def pin_site_python(python: str, profile: Profile) -> EnvironmentPin:
    """Ask an interpreter at a site what it is; two commands there.

    Args:
        python: the path there of a program, or of a virtual environment; it may begin with `~/`.

    Raises:
        UsageError: the path is not absolute.
        NotFoundError, PreconditionError: it is not there, or no Python >= 3.9.
        UnreachableError: the site does not answer.
    """
    if not python.startswith(("/", "~/")):
        message = f"`env.python` is `{python}`, and code at {profile.name} lies somewhere else for each run"
        raise UsageError(message, hint=f"give its whole path at {profile.name}", code="python-missing")
    shell = shell_for(profile)
    found = shell.run(["sh", "-c", _FIND, python])
    if found.code:
        hint = f"`env.python` names a program or a virtual environment at {profile.name}, not one of this machine"
        raise NotFoundError(f"no such Python at {shell.name}: {python}", hint=hint, code="python-missing")
    path = found.out.strip().rpartition("\n")[2]
    clean = ["env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", "-u", "PYTHONSTARTUP"]
    answer = shell.run([*clean, path, "-c", QUESTION, "packages"], timeout_s=_TIMEOUT_S)
    try:
        return pin_of_interpreter(read_answer(path, answer.code, answer.out, answer.err))
    except PreconditionError as error:
        raise PreconditionError(f"{shell.name}: {error.message}", hint=error.hint, code=error.code) from error
