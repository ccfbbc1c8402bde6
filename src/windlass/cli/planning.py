"""What `plan` and `launch` take: a file with overrides, the options of a plan, and refusals of words that are neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from windlass.cli.verb import Verb
from windlass.core.errors import UsageError

__all__ = ["PlanningVerb", "options_of", "planning_options"]

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--on", metavar="SITE", default="", help="Where to run, instead of the file's `where`."),
    click.option("--snapshot", is_flag=True, help="Store a dirty tree exactly, untracked files included, and run that."),
    click.option("--allow-dirty", is_flag=True, help="Run a dirty tree in place, and record that it was dirty."),
    click.option("--best-effort", is_flag=True, help="Note what the place cannot honour, instead of refusing it."),
    click.option("--debug", is_flag=True, help="Set CUDA_LAUNCH_BLOCKING=1 in the job; recorded."),
)


def planning_options(function: F) -> F:
    """`--on --snapshot --allow-dirty --best-effort --debug`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class PlanningVerb(Verb):
    """A verb whose words are a FILE and overrides: `a.b=c`, `--a.b=c`, `--a.b`, `~a.b`.

    What stands behind `--` is a command and is not parsed; it is found in `context.meta["windlass.command"]`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the command behind `--` aside, and tell an override from a mistyped option."""
        ctx.ignore_unknown_options = True
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["windlass.command"] = args[:at], tuple(args[at + 1 :])
        rest = super().parse_args(ctx, args)
        for word in ctx.params.get("overrides", ()):
            self._check_word(ctx, word)
        return rest

    def _check_word(self, ctx: click.Context, word: str) -> None:
        """Refuse what looks like an option and cannot be an override."""
        if not word.startswith("-"):
            return
        from windlass.cli.completing import experiment_keys  # lazy: only words that look like options need it

        key = word.lstrip("-").partition("=")[0].partition(".")[0]
        if word.startswith("--") and key in experiment_keys():
            return
        from windlass.cli.problems import unknown_option  # lazy: only a mistake needs it

        own = [name for param in self.get_params(ctx) for name in param.opts if name.startswith("--")]
        raise unknown_option(word.partition("=")[0], [*own, *(f"--{key}" for key in experiment_keys())], ctx.command_path)


def options_of(*, on: str, snapshot: bool, allow_dirty: bool, best_effort: bool, debug: bool, is_dry: bool) -> Any:
    """The options of a plan as `launch.prepare` takes them."""
    from windlass.launch import Options  # lazy: planning costs 0.1 s to import

    return Options(
        on=on, snapshot=snapshot, allow_dirty=allow_dirty, best_effort=best_effort, is_debug=debug, is_dry=is_dry
    )
