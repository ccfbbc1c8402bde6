"""`windlass mason`: what `python mason.py` takes, sent to Beaker, printed, or run elsewhere."""

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
    from windlass.compat.mason import MasonAccount, MasonLaunch
    from windlass.compat.mason.arguments import Arguments
    from windlass.compat.mason.flags import MasonFlag

__all__ = ["mason_command"]

_COMMON = (("-v, --verbose", "Show tracebacks."), ("-h, --help", "Show this message and exit."))


class _Mason(click.Command):
    """A command that reads its words itself, so that every word of mason means what it means there."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words as they are; -h and --help before `--` show the page."""
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
            from windlass.cli.compat.mason_build import BUILD_PAGE  # lazy: only this page

            click.echo(BUILD_PAGE)
            ctx.exit(0)
        ctx.params["words"] = tuple(args)
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Options of mason and windlass, and the values that one of them may have."""
        from windlass.cli.completion.files import complete_words  # lazy: only a shell that completes needs it
        from windlass.compat.mason.clusters import known_clusters
        from windlass.compat.mason.flags import FLAGS, OWN, Takes

        flags = {flag.name: None if flag.takes is Takes.NONE else _values(flag) for flag in (*FLAGS, *OWN)}
        return complete_words(ctx, flags | {"--cluster": known_clusters().names}, incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The tables of options: mason's own, those of windlass, the retired ones."""
        from windlass.compat.mason.flags import FLAGS, OWN, RETIRED  # lazy: only the help page lists them

        for title, flags in (("Options of mason", FLAGS), ("Options of windlass", OWN), ("Retired", RETIRED)):
            with formatter.section(title):
                formatter.write_dl([*(_row(flag) for flag in flags), *(_COMMON if flags is OWN else ())], col_max=34)


def _values(flag: MasonFlag) -> tuple[str, ...]:
    """The values of `spec|beaker|plan`; none where they are free."""
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
        "windlass mason build scripts/train/my_run.sh    # its image first, then the script",
    ),
)
def mason_command(words: tuple[str, ...]) -> int:
    """Launch as AI2's mason.py does: to Beaker, or with --on anywhere else.

    Each command behind a `--` is a task. What differs from mason.py is listed in docs/mason.md. Without an account on
    Beaker the commands are printed and nothing is submitted.
    """
    if words[:1] == ("build",):
        from windlass.cli.compat.mason_build import run_build  # lazy: only this word

        return run_build(words[1:])
    from windlass.compat.mason.arguments import read_arguments  # lazy: the help page needs the tables alone

    arguments = read_arguments(words, environ=os.environ)  # before anything is asked
    if arguments.own.on or arguments.own.emit == "spec":
        return _elsewhere(words, arguments)
    if arguments.own.emit:
        return _show(words, arguments)
    return _submit(words, arguments)


def _read(words: tuple[str, ...], account: MasonAccount) -> MasonLaunch:
    from windlass.compat.mason import read_command_line  # lazy: as above

    launch = read_command_line(words, environ=os.environ, account=account)
    for note in launch.notes:
        tell(f"note: {printable(note)}")
    return launch


def _elsewhere(words: tuple[str, ...], arguments: Arguments) -> int:
    """The launch as an experiment of windlass: printed, planned, or run where `--on` says."""
    from windlass.cli.compat.mason_to_experiment import account_of, run_at_site  # lazy: only for these options

    return run_at_site(_read(words, _known(arguments) or account_of(arguments)))


def _known(arguments: Arguments) -> MasonAccount | None:
    """The account that the command line gives, or that of nobody; None where Beaker is to be asked."""
    from windlass.compat.mason import KnownAccount  # lazy: as above

    own = arguments.own
    if own.user:
        return KnownAccount(name=own.user, secret_names=own.has_secret)
    if own.has_secret:
        hint = "add `--user NAME`, your name there"
        raise UsageError("`--has-secret` takes the place of asking Beaker", hint=hint, code="options-conflict")
    return None


def _show(words: tuple[str, ...], arguments: Arguments) -> int:
    """`--emit beaker`: the body of the request, as JSON, which is YAML too; `--emit plan`: a page about it."""
    from windlass.compat.mason import KnownAccount  # lazy: as above
    from windlass.compat.mason.account import has_beaker

    account = _known(arguments)
    if account is None and (arguments.own.is_offline or not has_beaker(os.environ)):
        tell("note: Beaker is not asked: no user, no secrets; `--user NAME` names one")
        account = KnownAccount()
    if account is not None:
        launch = _read(words, account)
    else:
        from windlass.backends.beaker.service import BeakerService
        from windlass.cli.compat.mason_account import AskedAccount  # lazy: brings the client

        service = BeakerService()
        try:
            launch = _read(words, AskedAccount(service))
        finally:
            service.close()
    if launch.own.emit == "plan":
        from windlass.cli.render.mason import page  # lazy: only this option

        emit_page(page(launch))
        _warn(launch)
    else:
        emit(json.dumps(launch.spec, indent=2, ensure_ascii=False))
    return 0


def _warn(launch: MasonLaunch) -> None:
    """Say what Beaker would refuse in a specification that is only shown."""
    from windlass.compat.spec import checked_spec  # lazy: brings the planner

    try:
        checked_spec(launch.spec, "windlass mason")
    except SpecError as error:
        for problem in error.problems:
            tell(f"note: Beaker would refuse it: {printable(problem.message)}")


def _submit(words: tuple[str, ...], arguments: Arguments) -> int:
    from windlass.compat.mason import KnownAccount  # lazy: as above
    from windlass.compat.mason.account import has_beaker

    if arguments.own.is_offline or arguments.own.user:
        flag = "--offline" if arguments.own.is_offline else "--user"
        message = f"`{flag}` asks Beaker nothing, and a submission must"
        raise UsageError(message, hint="add `--emit beaker`, or leave it out", code="options-conflict")
    _known(arguments)  # refuses --has-secret
    if not has_beaker(os.environ):
        return _print_commands(_read(words, KnownAccount()))
    from windlass.backends.beaker.service import BeakerService  # lazy: the client costs half a second
    from windlass.cli.compat.mason_account import AskedAccount

    service = BeakerService()
    try:
        launch = _read(words, AskedAccount(service))
        return _send(launch, service)
    finally:
        service.close()


def _print_commands(launch: MasonLaunch) -> int:
    """What mason does for people without an account: show the commands, send nothing."""
    tell("note: there is no configuration of Beaker and no BEAKER_TOKEN: these are the commands, nothing is submitted")
    for command in launch.commands:
        emit(command.text)
    tell("  to run them somewhere: windlass mason --on SITE ...; windlass site ls")
    return 0


def _send(launch: MasonLaunch, service: BeakerService) -> int:
    from windlass.compat.mason.launch import cache_datasets  # lazy: only a submission
    from windlass.compat.spec import checked_spec

    checked_spec(launch.spec, "windlass mason")  # before minutes of caching and before anything is sent
    _agree(launch)
    for command in launch.commands:
        tell(f"command: {printable(command.text)}")
    cache_datasets(launch, environ=os.environ, log=tell)
    workspace = launch.options.workspace or ""
    try:
        made = service.create(launch.spec, workspace=workspace, name=launch.name, is_mine=True)
    except KeyboardInterrupt:
        tell(f"it may have been made already: windlass beaker show {launch.user}/{launch.name}")
        raise
    emit(made.id)
    tell(f"{made.url}  {made.name}")
    if launch.is_resumable:
        tell(f"  the run is {launch.identity.run_id}; to go on with it later: --run-id {launch.identity.run_id}")
    tell(
        f"  windlass beaker logs {made.id} --follow | windlass beaker why {made.id} | windlass beaker cancel {made.id}"
    )
    return 0


def _agree(launch: MasonLaunch) -> None:
    """Ask a person at a terminal about several nodes without a fast network; anybody else was told by a note."""
    if not launch.is_without_interconnect or launch.own.has_agreed or not _is_terminal():
        return
    if not click.confirm("Launch on several nodes without a known fast network between them?", err=True):
        raise UsageError("not launched", hint="name clusters that have one, or add `--yes`", code="mason-declined")


def _is_terminal() -> bool:
    return sys.stdin.isatty()
