"""Printing of errors, and conversion of other exceptions to windlass errors.

error: unknown key `nodez` in tasks.train            [unknown-key]
  exp.yaml:24:5   nodez: 10
hint: did you mean `nodes`?
more: windlass explain unknown-key
"""

from __future__ import annotations

import errno
import sys
import traceback
from typing import TYPE_CHECKING

import click

from windlass.cli.screen import paint, printable, tell
from windlass.core.errors import AccessError, InternalError, PreconditionError, UsageError, WindlassError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["from_bug", "from_click", "from_import", "from_system", "show"]

_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_MAX_CODES = 3
"""Most codes to explain below an error with several problems."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def show(error: WindlassError, *, is_verbose: bool = False) -> None:
    """Write an error to standard error, after its traceback if `is_verbose`."""
    if is_verbose:
        tell("".join(traceback.format_exception(error)).rstrip())
    codes = [] if isinstance(error, InternalError) else list(dict.fromkeys(each.code for each in error.problems))
    more = "".join(f"\nmore: windlass explain {code}" for code in codes[:_MAX_CODES])
    for line in printable(error.render() + more).split("\n"):
        tell(_painted(line))


def _painted(line: str) -> str:
    for word, style in (("error:", "red"), ("hint:", "cyan"), ("more:", "dim")):
        if line.startswith(word):
            return paint(word, "bold", style, stream=sys.stderr) + line.removeprefix(word)
    return line


def from_click(error: click.ClickException) -> UsageError:
    """Convert click's error about a command line, with the nearest valid word as the hint."""
    context = getattr(error, "ctx", None)
    program = context.command_path if context is not None else "windlass"
    hint = f"run `{program} --help` for its arguments"
    if isinstance(error, click.NoSuchOption):
        return unknown_option(error.option_name, _options(context), program)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        name = error.param.metavar or error.param.human_readable_name.upper()
        return UsageError(f"`{program}` needs {name}", hint=_example(context) or hint, code="missing-argument")
    if isinstance(error, click.BadParameter) and error.param is not None:
        what = (
            error.param.opts[-1] if error.param.param_type_name == "option" else error.param.human_readable_name.upper()
        )
        return UsageError(f"`{what}` of `{program}`: {_sentence(error.message)}", hint=hint, code="invalid-value")
    return UsageError(_sentence(error.format_message()), hint=hint, code="usage")


def unknown_option(option: str, options: list[str], program: str) -> UsageError:
    """Return the error for an unknown option of `program`."""
    from windlass.core.names import nearest  # lazy: only for errors

    close = nearest(option, options)
    hint = f"did you mean `{close}`?" if close else f"run `{program} --help` for its options"
    return UsageError(f"`{program}` has no option `{option}`", hint=hint, code="unknown-option")


def _options(context: click.Context | None) -> list[str]:
    if context is None:
        return []
    return [
        name for parameter in context.command.get_params(context) for name in parameter.opts if name.startswith("-")
    ]


def _example(context: click.Context | None) -> str:
    """Return the first example from a verb's help page, as a hint."""
    epilog = (context.command.epilog or "") if context is not None else ""
    lines = [line.strip() for line in epilog.split("\n") if line.strip().startswith("windlass ")]
    return f"such as `{lines[0].partition('  #')[0].strip()}`" if lines else ""


def _sentence(text: str) -> str:
    return (text[:1].lower() + text[1:]).rstrip(".")


def from_system(error: OSError) -> WindlassError | None:
    """Convert an OSError that the user can fix; return None if it is our own bug."""
    where = f" {error.filename}" if error.filename else ""
    if error.errno in _NOT_ALLOWED:
        hint = "check its owner and permissions with `ls -ld`, or set WINDLASS_HOME to a folder of yours"
        return AccessError(f"permission denied:{where or ' (unknown file)'} ({error.strerror})", hint=hint)
    if error.errno in _FULL:
        hint = "free some space: `windlass gc` deletes caches, `windlass doctor` shows the free space"
        return PreconditionError(f"no space left{where and ' for' + where}", hint=hint, code="disk-full")
    return None


def from_import(error: ImportError) -> WindlassError | None:
    """Convert the ImportError for a missing extra; return None if it is our own bug."""
    from windlass.core.extras import missing_extra  # lazy: only for errors

    extra = missing_extra(error)
    if not extra:
        return None
    module = (error.name or "").partition(".")[0]
    return PreconditionError(
        f"this command needs {module}, which is not installed",
        hint=f"pip install 'windlass[{extra}]'",
        code="extra-missing",
    )


def from_bug(error: BaseException) -> InternalError:
    """Convert a bug in windlass: write its traceback to a file, so that the user sees only two lines."""
    text = "".join(traceback.format_exception(error))
    kind = f"{type(error).__name__}: {error}".split("\n")[0] if str(error) else type(error).__name__
    path = _write_crash(text)
    where = f"the traceback is in {path}" if path is not None else "run it again with -v to see the traceback"
    return InternalError(f"internal error: {kind}", hint=f"{where}; please report it", code="internal")


def _write_crash(text: str) -> Path | None:
    import os  # lazy: here and below, only for a crash
    import time

    from windlass.core.version import VERSION
    from windlass.runs.home import cache_directory

    folder = cache_directory() / "crashes"
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(f"windlass {VERSION}, python {sys.version}\n{text}")
    except OSError:
        return None
    return path
