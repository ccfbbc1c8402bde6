"""Arguments of `plan` and `launch`: a file, overrides and planning options. Other words raise errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.completion.files import complete_places
from windlass.cli.verb import Verb
from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError

if TYPE_CHECKING:
    from windlass.launcher.prepare import Options

__all__ = ["PlanFlags", "PlanningVerb", "planning_options", "required_file"]

_OPTIONS = (
    click.option(
        "--on",
        metavar="SITE[/PARTITION]",
        default="",
        shell_complete=complete_places,
        help="Where to run; overrides the file's `where`.",
    ),
    click.option("--snapshot", is_flag=True, help="Run a snapshot of the dirty tree, with untracked files."),
    click.option("--allow-dirty", is_flag=True, help="Run the dirty tree in place; recorded with the run."),
    click.option(
        "--best-effort", is_flag=True, help="Ignore settings that the site does not support, and print a note for each."
    ),
    click.option("--reshape", is_flag=True, help="Use more nodes if a node has too few GPUs for a task."),
    click.option("--debug", is_flag=True, help="Set CUDA_LAUNCH_BLOCKING=1 in the job."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """Planning options from a command line, with the same meaning as in `launch.Options`."""

    on: str
    snapshot: bool
    allow_dirty: bool
    best_effort: bool
    reshape: bool
    debug: bool

    def options(self, *, is_dry: bool = False) -> Options:
        """Return the options to pass to `launch.prepare`."""
        from windlass.launcher.prepare import Options  # lazy: planning costs 0.1 s to import

        return Options(
            on=self.on,
            snapshot=self.snapshot,
            allow_dirty=self.allow_dirty,
            best_effort=self.best_effort,
            reshape=self.reshape,
            debug=self.debug,
            dry_run=is_dry,
        )


def planning_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--on --snapshot --allow-dirty --best-effort --reshape --debug`, passed as one argument `flags`."""

    @functools.wraps(function)
    def collect(*args: Any, **named: Any) -> Any:
        flags = PlanFlags(**{field.name: named.pop(field.name) for field in fields(PlanFlags)})
        return function(*args, flags=flags, **named)

    for option in reversed(_OPTIONS):
        collect = option(collect)
    return collect


class PlanningVerb(Verb):
    """Verb whose arguments are a FILE and overrides: `a.b=c`, `--a.b=c`, `--a.b`, `~a.b`.

    Words after `--` are a command; they are not parsed and are in `context.meta["windlass.command"]`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Separate FILE, overrides and the command after `--`; raise for mistyped options."""
        ctx.ignore_unknown_options = True
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["windlass.command"] = args[:at], tuple(args[at + 1 :])
        rest = super().parse_args(ctx, args)
        words = [word for word in (ctx.params.get("file"), *ctx.params.get("overrides", ())) if word]
        for word in words if not ctx.resilient_parsing else ():
            self._check_word(ctx, word)
        plain = [at for at, word in enumerate(words) if not word.startswith(("-", "~"))]
        if not ctx.resilient_parsing:
            self._check_plain(words, plain, has_command="windlass.command" in ctx.meta)
        files = plain[: "windlass.command" not in ctx.meta]
        ctx.params["file"] = words.pop(files[0]) if files else None
        ctx.params["overrides"] = tuple(words)
        return rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Complete options, and overrides that are written as options (`--params.lr=`)."""
        overrides = next(param for param in self.params if param.name == "overrides")
        return [*super().shell_complete(ctx, incomplete), *overrides.shell_complete(ctx, incomplete)]

    def _check_plain(self, words: list[str], plain: list[int], *, has_command: bool) -> None:
        """Raise for words that are neither the FILE nor an override, such as detached values or a second FILE."""
        lone = [at for at in plain if "=" not in words[at]]
        for at in lone:
            before = words[at - 1] if at else ""
            if before.startswith("--") and "=" not in before and not self.is_file(words[at]):
                message = f"space in override `{before} {words[at]}`"
                raise UsageError(message, hint=f"write `{before}={words[at]}`", code="usage")
        if has_command and lone:
            message = f"both a FILE (`{words[lone[0]]}`) and a command after `--`"
            raise UsageError(message, hint="launch one or the other", code="usage")
        if len(lone) > 1 and self.is_file(words[lone[1]]):
            message = f"two files: `{words[lone[0]]}` and `{words[lone[1]]}`"
            raise UsageError(message, hint="give one file at a time", code="usage")

    def _check_word(self, ctx: click.Context, word: str) -> None:
        """Raise if a word looks like an option and cannot be an override."""
        if not word.startswith("-"):
            return
        keys = self.file_keys()
        key = word.lstrip("-").partition("=")[0].partition(".")[0]
        if word.startswith("--") and key in keys:
            return
        from windlass.cli.problems import unknown_option  # lazy: only for errors

        parameter = word.lstrip("-")
        if word.startswith("--") and parameter.partition("=")[0].partition(".")[0] in self.params_of(ctx):
            message = f"`{ctx.command_path}` has no option `{word.partition('=')[0]}`"
            equals = "" if "=" in parameter else "="
            hint = f"it is a parameter of the experiment: `params.{parameter}{equals}{'' if not equals else 'VALUE'}`"
            raise UsageError(message, hint=hint, code="unknown-option")
        own = [name for param in self.get_params(ctx) for name in param.opts if name.startswith("--")]
        raise unknown_option(word.partition("=")[0], [*own, *(f"--{key}" for key in keys)], ctx.command_path)

    def is_file(self, word: str) -> bool:
        """Return whether a word names the FILE."""
        return word.endswith((".yaml", ".yml")) or Path(word).is_file()

    def params_of(self, ctx: click.Context) -> frozenset[str]:
        """Return the names of the FILE's parameters."""
        from windlass.spec.load import params_of  # lazy: only for words that look like options

        words = (ctx.params.get("file"), *ctx.params.get("overrides", ()))
        files = [word for word in words if word and self.is_file(word)]
        return params_of(Path(files[0])) if files else frozenset()

    def file_keys(self) -> tuple[str, ...]:
        """Return the top-level keys of the FILE, which may be set as `--key=value`."""
        from windlass.cli.completion.files import experiment_keys  # lazy: only for words that look like options

        return experiment_keys()


def required_file(context: click.Context, file: str | None) -> Path:
    """Return the FILE; raise UsageError if the command line has none."""
    overrides = context.params.get("overrides", ())
    if file is not None and file.endswith((".py", ".sh")):
        program = "python" if file.endswith(".py") else "sh"
        message = f"`{file}` is a program, not an experiment file"
        raise UsageError(message, hint=f"windlass launch -- {program} {file}", code="usage")
    if file is not None and not ("=" in file and not Path(file).exists()):
        return Path(file)
    words = [*([file] if file else []), *overrides]
    seen = f"; `{words[0]}` is an override" if words else ""
    message = f"`{context.command_path}` needs a FILE{seen}"
    hint = f"such as `{context.command_path} experiment.yaml`"
    raise UsageError(message, hint=hint, code="missing-argument")
