"""`windlass mason`: mason.py's command line, for Beaker or any other site."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from windlass.cli.screen import emit, emit_page, printable, tell
from windlass.cli.verb import CONTEXT_SETTINGS, examples_page
from windlass.core.errors import SpecError, UsageError

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService
    from windlass.compat.mason.account import MasonAccount
    from windlass.compat.mason.arguments import Arguments
    from windlass.compat.mason.flags import MasonFlag
    from windlass.compat.mason.reading import MasonLaunch

__all__ = ["mason_command"]

_COMMON = (("-v, --verbose", "Show tracebacks."), ("-h, --help", "Show this message and exit."))


class _Mason(click.Command):
    """Command that parses its own words, exactly as mason.py does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words unparsed; show the help page for -h or --help before `--`."""
        own = args[: args.index("--")] if "--" in args else args
        if args[:1] == ["build"]:
            return self._parse_build(ctx, args)
        if "-h" in own or "--help" in own:
            click.echo(self.get_help(ctx))
            ctx.exit(0)
        kept = [word for word in own if word not in ("-v", "--verbose")]
        ctx.params["words"] = (*kept, *args[len(own) :])
        return []

    def _parse_build(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[1:2] in (["-h"], ["--help"]):
            from windlass.cli.compat.mason_build import BUILD_PAGE  # lazy: only for this page

            click.echo(BUILD_PAGE)
            ctx.exit(0)
        ctx.params["words"] = tuple(args)
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Complete options of mason and windlass, and their values."""
        from windlass.cli.completion.files import complete_words  # lazy: only for shell completion
        from windlass.compat.mason.clusters import known_clusters
        from windlass.compat.mason.flags import FLAGS, OWN, Takes

        flags = {flag.name: None if flag.takes is Takes.NONE else _values(flag) for flag in (*FLAGS, *OWN)}
        return complete_words(ctx, flags | {"--cluster": known_clusters().names}, incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: mason's own, windlass's, and retired ones."""
        from windlass.compat.mason.flags import FLAGS, OWN, RETIRED  # lazy: only for the help page

        for title, flags in (("Options of mason", FLAGS), ("Options of windlass", OWN), ("Retired", RETIRED)):
            with formatter.section(title):
                formatter.write_dl([*(_row(flag) for flag in flags), *(_COMMON if flags is OWN else ())], col_max=34)


def _values(flag: MasonFlag) -> tuple[str, ...]:
    """Return the values that a flag such as `spec|beaker|plan` accepts; empty if it accepts any value."""
    return tuple(flag.metavar.split("|")) if "|" in flag.metavar else ()


def _row(flag: MasonFlag) -> tuple[str, str]:
    return f"{flag.name} {flag.metavar}".rstrip(), flag.help


@click.command(
    "mason",
    cls=_Mason,
    context_settings=CONTEXT_SETTINGS,
    options_metavar="[OPTIONS] -- COMMAND [-- COMMAND]...",
    epilog=examples_page(
        "windlass mason --cluster ai2/jupiter --gpus 8 --pure_docker_mode -- python train.py",
        "windlass mason --cluster ai2/jupiter --gpus 8 --emit beaker --user me -- python train.py",
        "windlass mason --cluster ai2/jupiter --gpus 1 --on local -- python train.py",
        "windlass mason build scripts/train/my_run.sh    # build its image, then run it",
    ),
)
def mason_command(words: tuple[str, ...]) -> int:
    """Launch with mason.py's command line, on Beaker or with --on on any site.

    Each command after a `--` is a task. docs/mason.md lists the differences from mason.py. Without a Beaker account the
    commands are printed and nothing is submitted.
    """
    if words[:1] == ("build",):
        from windlass.cli.compat.mason_build import run_build  # lazy: only for this word

        return run_build(words[1:])
    from windlass.compat.mason.arguments import read_arguments  # lazy: the help page needs only the tables

    arguments = read_arguments(words, environ=os.environ)  # before any request
    if arguments.own.on or arguments.own.emit == "spec":
        return _elsewhere(words, arguments)
    if arguments.own.emit:
        return _show(words, arguments)
    return _submit(words, arguments)


def _read(words: tuple[str, ...], account: MasonAccount) -> MasonLaunch:
    from windlass.compat.mason.reading import read_command_line  # lazy: as above

    launch = read_command_line(words, environ=os.environ, account=account)
    for note in launch.notes:
        tell(f"note: {printable(note)}")
    return launch


def _elsewhere(words: tuple[str, ...], arguments: Arguments) -> int:
    """Print the launch as a windlass experiment, print its plan, or run it."""
    from windlass.cli.compat.mason_to_experiment import account_of, run_at_site  # lazy: only for these options

    return run_at_site(_read(words, _known(arguments) or account_of(arguments)))


def _known(arguments: Arguments) -> MasonAccount | None:
    """Return the account given on the command line, or None if it must be read from Beaker."""
    from windlass.compat.mason.account import KnownAccount  # lazy: as above

    own = arguments.own
    if own.user:
        return KnownAccount(name=own.user, secret_names=own.has_secret)
    if own.has_secret:
        hint = "add `--user NAME`, your name there"
        raise UsageError("`--has-secret` replaces asking Beaker", hint=hint, code="conflicting-options")
    return None


def _show(words: tuple[str, ...], arguments: Arguments) -> int:
    """Print the request body as JSON (`--emit beaker`), or a page that describes it (`--emit plan`)."""
    from windlass.compat.mason.account import (
        KnownAccount,  # lazy: as above
        has_beaker,
    )

    account = _known(arguments)
    if account is None and (arguments.own.is_offline or not has_beaker(os.environ)):
        tell("note: without Beaker the user and secrets are unknown; set the user with `--user NAME`")
        account = KnownAccount()
    if account is not None:
        launch = _read(words, account)
    else:
        from windlass.backends.beaker.service import BeakerService
        from windlass.compat.mason.account import AskedAccount  # lazy: imports the client

        service = BeakerService()
        try:
            launch = _read(words, AskedAccount(service))
        finally:
            service.close()
    if launch.own.emit == "plan":
        from windlass.cli.render.mason import page  # lazy: only for this option

        emit_page(page(launch))
        _warn(launch)
    else:
        emit(json.dumps(launch.spec, indent=2, ensure_ascii=False))
    return 0


def _warn(launch: MasonLaunch) -> None:
    """Print what Beaker would reject in a spec that is printed, not submitted."""
    from windlass.compat.spec.reading import checked_spec  # lazy: imports the planner

    try:
        checked_spec(launch.spec, "windlass mason")
    except SpecError as error:
        for problem in error.problems:
            tell(f"note: Beaker would reject it: {printable(problem.message)}")


def _submit(words: tuple[str, ...], arguments: Arguments) -> int:
    from windlass.compat.mason.account import (
        KnownAccount,  # lazy: as above
        has_beaker,
    )

    if arguments.own.is_offline or arguments.own.user:
        flag = "--offline" if arguments.own.is_offline else "--user"
        message = f"`{flag}` works offline, but a submission needs Beaker"
        raise UsageError(message, hint="add `--emit beaker`, or remove the option", code="conflicting-options")
    _known(arguments)  # rejects --has-secret
    if not has_beaker(os.environ):
        return _print_commands(_read(words, KnownAccount()))
    from windlass.backends.beaker.service import BeakerService  # lazy: the client costs half a second
    from windlass.compat.mason.account import AskedAccount

    service = BeakerService()
    try:
        launch = _read(words, AskedAccount(service))
        return _send(launch, service)
    finally:
        service.close()


def _print_commands(launch: MasonLaunch) -> int:
    """Print the commands without submitting them, as mason does without an account."""
    tell("note: no Beaker configuration or BEAKER_TOKEN found; printing the commands, nothing is submitted")
    for command in launch.commands:
        emit(command.text)
    tell("  to run them at a site: `windlass mason --on SITE ...`; `windlass site ls` lists sites")
    return 0


def _send(launch: MasonLaunch, service: BeakerService) -> int:
    from windlass.compat.mason.launch import cache_datasets  # lazy: only for a submission
    from windlass.compat.spec.reading import checked_spec

    checked_spec(launch.spec, "windlass mason")  # before minutes of caching, and before any request
    _agree(launch)
    for command in launch.commands:
        tell(f"command: {printable(command.text)}")
    cache_datasets(launch, environ=os.environ, log=tell)
    workspace = launch.options.workspace or ""
    try:
        made = service.create(launch.spec, workspace=workspace, name=launch.name, is_mine=True)
    except KeyboardInterrupt:
        tell(f"it may have been created already: check with `windlass beaker show {launch.user}/{launch.name}`")
        raise
    emit(made.id)
    tell(f"{made.url}  {made.name}")
    if launch.is_resumable:
        tell(f"  run {launch.identity.run_id}; continue it later with --run-id {launch.identity.run_id}")
    tell(
        f"  windlass beaker logs {made.id} --follow | windlass beaker why {made.id} | windlass beaker cancel {made.id}"
    )
    return 0


def _agree(launch: MasonLaunch) -> None:
    """Ask, on a terminal, for confirmation of a launch on several nodes without a fast network."""
    if not launch.is_without_interconnect or launch.own.has_agreed or not _is_terminal():
        return
    if not click.confirm("Launch on several nodes without a known fast network between them?", err=True):
        raise UsageError(
            "not launched", hint="choose clusters with a fast network, or add `--yes`", code="not-confirmed"
        )


def _is_terminal() -> bool:
    return sys.stdin.isatty()
