"""`windlass gantry run`: gantry's command line, for Beaker or any other site."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

import click

from windlass.cli.screen import emit, tell, write_raw
from windlass.cli.verb import CONTEXT_SETTINGS, Family, examples_page
from windlass.core.errors import UsageError, WindlassError

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService
    from windlass.backends.beaker.values import ExperimentRef
    from windlass.compat.gantry.invocation import Invocation
    from windlass.compat.gantry.request import GantryRequest, Launched

__all__ = ["gantry_command"]

_ELSEWHERE = {
    "follow": "windlass beaker logs EXPERIMENT --follow",
    "logs": "windlass beaker logs EXPERIMENT",
    "stop": "windlass beaker cancel EXPERIMENT",
    "list": "windlass beaker show EXPERIMENT, or windlass ps",
    "config": "windlass beaker secret push NAME, or [tool.gantry] in pyproject.toml",
}
_COMMON = (("-v, --verbose", "Show tracebacks."), ("-h, --help", "Show this message and exit."))
_OWN = ("--quiet", "--not-quiet", "--check-for-upgrades", "--no-check-for-upgrades")


class _Gantry(Family):
    """Verb `gantry` with its subcommand `run`; gantry's other verbs raise an error that names ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept gantry's global options before the verb (logo, update check)."""
        while args and args[0] in _OWN:
            args = args[1:]
        if args and args[0] == "--log-level":
            args = args[2:]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a subcommand; for gantry's other verbs, raise an error that names ours."""
        if args[0] in _ELSEWHERE:
            message = f"unknown command `windlass gantry {args[0]}`"
            raise UsageError(message, hint=_ELSEWHERE[args[0]], code="unknown-command")
        return super().resolve_command(ctx, args)


@click.group("gantry", cls=_Gantry, context_settings=CONTEXT_SETTINGS, invoke_without_command=True)
def gantry_command() -> None:
    """Launch with gantry's command line: a commit of a git repository, on Beaker or any site."""


class _Run(click.Command):
    """Command that parses its own words, exactly as gantry does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words unparsed; show the help page for -h or --help before `--`."""
        own = args[: args.index("--")] if "--" in args else args
        if "-h" in own or "--help" in own:
            click.echo(self.get_help(ctx))
            ctx.exit(0)
        ctx.params["words"] = tuple(word for at, word in enumerate(args) if not _is_verbose(word, at, own))
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Complete options of gantry and windlass, and their values."""
        from windlass.cli.completion.files import complete_words  # lazy: only for shell completion
        from windlass.compat.gantry.options import names

        takes = {name: option.choices if option.metavar and is_on else None for name, option, is_on in names()}
        return complete_words(ctx, takes, incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        from windlass.compat.gantry.options import SECTIONS  # lazy: only for the help page

        for title, options in SECTIONS.items():
            rows = []
            for option in options:
                names = ", ".join(option.names) + (" / " if option.names and option.off_names else "")
                value = f" {'|'.join(option.choices) or option.metavar}" if option.metavar else ""
                rows.append((f"{names}{', '.join(option.off_names)}{value}", option.help))
            with formatter.section(title):
                formatter.write_dl([*rows, *(_COMMON if title == "windlass" else ())], col_max=34)


def _is_verbose(word: str, at: int, own: list[str]) -> bool:
    return at < len(own) and word in ("-v", "--verbose")


@gantry_command.command(
    "run",
    cls=_Run,
    context_settings=CONTEXT_SETTINGS,
    options_metavar="[OPTIONS] -- COMMAND",
    epilog=examples_page(
        "windlass gantry run --gpus 1 -- python train.py",
        "windlass gantry run --cluster 'ai2/*-h100' --gpus 8 --replicas 2 --torchrun -- train.py",
        "windlass gantry run --gpus 1 --emit beaker -- python train.py",
        "windlass gantry run --gpus 1 --on cluster -- python train.py",
    ),
)
def run_command(words: tuple[str, ...]) -> int:
    """Run a command at the current commit on Beaker, with the options of `gantry run`.

    Never prompts without a terminal. A dry run writes nothing and needs no Beaker.
    """
    from windlass.compat.gantry.invocation import read_command_line  # lazy: the help page needs only the options

    invocation = read_command_line(words)
    for note in invocation.notes:
        tell(f"note: {note}")
    if invocation.on or invocation.emit in ("spec", "plan"):
        from windlass.cli.compat.gantry_to_experiment import run_at_site  # lazy: only to plan

        return run_at_site(invocation)
    if invocation.emit or invocation.is_dry:
        return _show(invocation)
    return _launch(invocation)


def _show(invocation: Invocation) -> int:
    from windlass.compat.gantry.request import (
        prepare,  # lazy: not for a help page
        yaml_of,
    )

    with _asking(invocation) as service:
        account = None
        if service is not None:
            from windlass.compat.gantry.online import OnlineAccount  # lazy: only with --online

            account = OnlineAccount(service, invocation.recipe.workspace or "")
        request = prepare(invocation.recipe, account=account)
    _explain(request, is_dry=invocation.is_dry)
    emit(yaml_of(request.spec).rstrip("\n"))
    if invocation.recipe.save_spec:
        _save(request)
    return 0


def _explain(request: GantryRequest, *, is_dry: bool) -> None:
    for note in request.notes:
        tell(f"note: {note}")
    for write in request.resolved.writes if is_dry else ():
        tell(f"would write: {write}")
    tell(f"name: {request.name}  commit: {request.checkout.repo} {request.checkout.ref[:12]}")


def _save(request: GantryRequest) -> None:
    from pathlib import Path  # lazy: only with --save-spec

    from windlass.compat.gantry.request import save_spec

    assert request.recipe.save_spec
    save_spec(request, Path(request.recipe.save_spec), may_overwrite=bool(request.recipe.yes))


@contextlib.contextmanager
def _asking(invocation: Invocation) -> Iterator[BeakerService | None]:
    """Yield the Beaker service for a dry run with `--online`, or None without it."""
    if not invocation.is_online:
        yield None
        return
    from windlass.backends.beaker.service import BeakerService  # lazy: only with --online

    service = BeakerService()
    try:
        yield service
    finally:
        service.close()


def _launch(invocation: Invocation) -> int:
    from windlass.backends.beaker.service import BeakerService  # lazy: the client costs half a second
    from windlass.compat.gantry.request import launch

    service = BeakerService()
    made: list[ExperimentRef] = []

    def note_made(request: GantryRequest, workload: ExperimentRef) -> None:
        made.append(workload)
        if not invocation.following.is_wanted:
            emit(workload.id)  # else standard output is for logs

    try:
        with _term_interrupts():
            launched = launch(
                invocation.recipe,
                following=invocation.following,
                service=service,
                tell=tell,
                emit=write_raw,
                on_made=note_made,
            )
    except KeyboardInterrupt:
        return _interrupted(service, made)
    finally:
        service.close()
    return _verdict(launched)


def _interrupted(service: BeakerService, made: list[ExperimentRef]) -> int:
    """Detach after Ctrl-C at a terminal; otherwise cancel the experiment, as gantry does."""
    if not made:
        raise KeyboardInterrupt
    if sys.stdin.isatty() and not _TERMINATED:
        tell(
            f"\ndetached: {made[0].name} continues; windlass beaker logs {made[0].id} --follow, windlass beaker cancel {made[0].id}"
        )
        return 130
    try:
        service.cancel(made[0].id, "the launch was interrupted")
        tell(f"canceled: {made[0].name}")
    except WindlassError as error:
        tell(f"could not cancel {made[0].name}: {error.message}; run windlass beaker cancel {made[0].id}")
    return 130


_TERMINATED: list[int] = []


@contextlib.contextmanager
def _term_interrupts() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C while a launch is followed."""

    def end(number: int, frame: FrameType | None) -> None:
        _TERMINATED.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _verdict(launched: Launched) -> int:
    job = launched.job
    if job is None:
        tell(f"  windlass beaker logs {launched.workload.id} --follow | windlass beaker cancel {launched.workload.id}")
        return 0
    ended = job.status if job.exit_code is None else f"{job.status} with exit code {job.exit_code}"
    tell(f"{launched.workload.name}: {ended}" + (f"; results: {job.results}" if job.results else ""))
    return 0 if job.status == "succeeded" else 1
