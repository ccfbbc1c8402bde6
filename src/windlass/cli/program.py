"""Entry point: parse the command line, call the verb, print errors and return the exit code."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence

import click

from windlass.cli.catalogue import LazyGroup
from windlass.cli.completion import COMPLETE
from windlass.cli.exit_codes import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from windlass.core.errors import WindlassError

__all__ = ["main", "windlass"]

_GC_THRESHOLD = 50_000
"""Garbage collection threshold; the default of 700 objects costs 10 ms of a launch during imports."""

_HELP = """One file says what to run. windlass pins it, runs it, brings it back when it dies, and can prove what ran.

\b
  windlass init hello && cd hello
  windlass launch experiment.yaml
"""


@click.group(
    cls=LazyGroup,
    help=_HELP,
    epilog="`windlass VERB --help` explains a verb, `windlass explain CODE` an error.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="VERB ...",
    options_metavar="[-v]",
    invoke_without_command=True,
    add_help_option=True,
)
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.")
@click.option("--version", is_flag=True, help="Print the version.")
@click.pass_context
def windlass(context: click.Context, verbose: bool, version: bool) -> int | None:
    """Run a verb; its help page is `_HELP`."""
    if verbose:
        _see_tracebacks(context)
    if version:
        from windlass.core.version import VERSION  # lazy: not for --help

        click.echo(f"windlass {VERSION}")
        context.exit(0)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(0)
    return None


def _see_tracebacks(context: click.Context) -> None:
    context.find_root().meta["windlass.verbose"] = True


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code (0 ok, 1 the run failed, 2 usage, ... 70 our bug)."""
    gc.set_threshold(_GC_THRESHOLD)
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _complete() if COMPLETE in os.environ else _call(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _close_quietly()
    return code


def _call(arguments: list[str]) -> int:
    """Call the verb and return its exit code.

    Handles every error except a closed pipe and Ctrl-C.
    """
    is_verbose = _asks_for_tracebacks(arguments)
    try:
        with windlass.make_context("windlass", arguments) as context:
            code = windlass.invoke(context)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except (Exception, click.Abort) as error:  # noqa: BLE001 - the last resort for every error
        return _show(error, is_verbose=is_verbose)


def _asks_for_tracebacks(arguments: list[str]) -> bool:
    """Return whether -v is given before a `--`.

    This is checked before parsing, so that -v works even if parsing fails.
    """
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "-v" in ours or "--verbose" in ours


def _show(error: BaseException, *, is_verbose: bool) -> int:
    from windlass.cli import problems  # lazy: only for errors

    if isinstance(error, click.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, click.ClickException):
        problem: WindlassError = problems.from_click(error)
        is_verbose = False
    elif isinstance(error, WindlassError):
        problem = error
    else:
        problem = _known(error) or problems.from_bug(error)
        problem.__cause__ = error
    problems.show(problem, is_verbose=is_verbose)
    return problem.exit_code


def _known(error: BaseException) -> WindlassError | None:
    """Return the error for a system failure or a missing extra, or None for our own bug."""
    from windlass.cli import problems  # lazy: as above

    if isinstance(error, OSError):
        return problems.from_system(error)
    return problems.from_import(error) if isinstance(error, ModuleNotFoundError) else None


def _open_streams() -> None:
    """Make every stream writable and all text printable, even with `windlass ps >&-` or names that are not UTF-8."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as above
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _close_quietly() -> int:
    """Redirect standard streams that were closed, so that Python reports no errors at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
        os.dup2(nowhere, stream.fileno())
    return EXIT_BROKEN_PIPE


def _complete() -> int:
    """Answer a shell's completion request; see `windlass completion`."""
    from windlass.cli.completion.shells import answer  # lazy: only for shell completion

    return answer(os.environ[COMPLETE], windlass)
