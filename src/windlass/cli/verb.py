"""What every verb has: -h, -v, an example at the end of its help page, and shared options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["Verb", "json_option", "run_argument", "verb"]

F = TypeVar("F", bound=Callable[..., Any])


class Verb(click.Command):
    """A command with `-v`; `-h` is as good as `--help`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The verb's own options, then -v and -h."""
        params = super().get_params(ctx)
        own = [name for param in params for name in param.opts]
        if "-v" in own:
            return params
        verbose = click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, help="Show tracebacks.")
        return [*params[:-1], verbose, params[-1]]


def verb(*examples: str, name: str | None = None, cls: type[click.Command] = Verb, **settings: Any) -> Callable[[F], click.Command]:
    """Make a function a verb.

    Args:
        examples: what to type, shown at the end of the help page; the first is also the hint when something is missing.
    """
    epilog = "\b\n" + "\n".join(f"  {example}" for example in examples)
    context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100, **settings.pop("context_settings", {})}

    def decorate(function: F) -> click.Command:
        return click.command(name, cls=cls, epilog=epilog, context_settings=context_settings, **settings)(function)

    return decorate


def json_option(function: F) -> F:
    """`--json`: one JSON object with a schema instead of text."""
    return click.option("--json", "is_json", is_flag=True, help="Print JSON with a versioned schema.")(function)


def run_argument(name: str = "run", *, required: bool = True) -> Callable[[F], F]:
    """A run: its id, the beginning or end of it, an experiment's name (its newest run), or `last`."""
    return click.argument(name, metavar=name.upper(), required=required, shell_complete=_complete_runs)


def _complete_runs(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    from windlass.cli.completing import run_names  # lazy: only a shell that completes needs it

    return run_names(incomplete)
