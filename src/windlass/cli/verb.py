"""Base class of all verbs: -h, -v, examples on the help page, and shared options."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["Family", "Verb", "detach_option", "examples_page", "json_option", "run_argument", "verb"]

F = TypeVar("F", bound=Callable[..., Any])
_EXAMPLE_WIDTH = 74
CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Verb(click.Command):
    """Command with `-v`, and with `-h` as a short form of `--help`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, except that completing an option's value considers only the words before the option."""
        if ctx.resilient_parsing and args:
            waiting = [param for param in self.params if args[-1] in param.opts]
            is_value_missing = any(isinstance(param, click.Option) and not param.is_flag for param in waiting)
            args = args[:-1] if is_value_missing else args
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the verb's own options, then -v and -h."""
        params = super().get_params(ctx)
        own = [name for param in params for name in param.opts]
        if "-v" in own:
            return params
        verbose = click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, help="Show tracebacks.")
        return [*params[:-1], verbose, params[-1]]


class Family(click.Group):
    """Verb with subcommands; an unknown subcommand raises an error that suggests the nearest one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help page if no subcommand is given."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit(0)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a subcommand; raise a windlass error if it is unknown."""
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        from windlass.cli.catalogue import unknown_command  # lazy: only for errors

        raise unknown_command(args[0], list(self.commands), ctx.command_path)


def verb(
    *examples: str, name: str | None = None, cls: type[click.Command] = Verb, **settings: Any
) -> Callable[[F], click.Command]:
    """Turn a function into a verb.

    Args:
        examples: command lines for the end of the help page; the first is also the hint for a missing argument.
    """
    given = settings.pop("context_settings", {})

    def decorate(function: F) -> click.Command:
        made = click.command(
            name, cls=cls, epilog=examples_page(*examples), context_settings={**CONTEXT_SETTINGS, **given}, **settings
        )
        return made(function)

    return decorate


def json_option(function: F) -> F:
    """Add `--json`, which prints one JSON object with a schema instead of text."""
    return click.option("--json", "is_json", is_flag=True, help="Print JSON with a versioned schema.")(function)


def examples_page(*examples: str) -> str:
    """Return the text of the examples at the end of a help page."""
    return "\b\nExamples:\n" + "\n".join(_continued(example) for example in examples)


def _continued(example: str) -> str:
    """Split a long example into several shell lines."""
    lines = textwrap.wrap(example, _EXAMPLE_WIDTH, break_long_words=False, break_on_hyphens=False)
    return " \\\n      ".join([f"  {lines[0]}", *lines[1:]]) if len(example) > _EXAMPLE_WIDTH + 2 else f"  {example}"


def detach_option(function: F) -> F:
    """Add `-d`, which returns without waiting for the run's end."""
    return click.option("-d", "--detach", is_flag=True, help="Return at once; the run continues without this command.")(
        function
    )


def run_argument(name: str = "run", *, required: bool = True) -> Callable[[F], F]:
    """Add a RUN argument: an id, the start of an id, four of its last letters, an experiment's name, or `last`."""
    return click.argument(name, metavar=name.upper(), required=required, shell_complete=_complete_runs)


def _complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from windlass.cli.completion.runs import complete_runs  # lazy: only for shell completion

    return complete_runs(context, parameter, incomplete)
