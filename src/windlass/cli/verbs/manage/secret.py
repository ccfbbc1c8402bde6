"""`windlass secret`: values go in by standard input or a hidden prompt, never by the command line, and never come out."""

from __future__ import annotations

import sys

import click

from windlass.cli.completion.files import complete_secret
from windlass.cli.screen import emit_json, emit_page, table, tell
from windlass.cli.verb import Family, examples_page, json_option, verb
from windlass.core.errors import UsageError
from windlass.runs.home import Home
from windlass.secrets import open_secrets

__all__ = ["secret_command"]


@click.group(
    cls=Family, name="secret", epilog=examples_page("windlass secret set HF_TOKEN < token.txt", "windlass secret ls")
)
def secret_command() -> None:
    """Keep secrets: set, ls, rm.

    An experiment names them (`env: {secrets: [HF_TOKEN]}`); its processes find each in the variable of that name.
    """


@verb("windlass secret set HF_TOKEN < token.txt", "pass show hf | windlass secret set HF_TOKEN", name="set")
@click.argument("name", shell_complete=complete_secret)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED, metavar="")
def set_command(name: str, rest: tuple[str, ...]) -> None:
    """Keep a value, read from standard input; on a terminal from a prompt that does not show it.

    One line end behind the value is dropped.
    """
    name, is_given, _ = name.partition("=")
    if is_given or rest:
        raise UsageError(
            f"the value of `{name}` stands on the command line, where others can read it",
            hint=f"windlass secret set {name} < FILE; it was not stored, and it may be in your shell's history",
            code="secret-on-command-line",
        )
    value = _read_value(name)
    store = open_secrets(Home.default().path).store
    store.set(name, value)
    tell(f"{name} is in the {store.label}")


def _read_value(name: str) -> bytes:
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError(f"no value for `{name}`", hint=f"windlass secret set {name} < FILE", code="secret-refused")
    if sys.stdin.isatty():
        from getpass import getpass  # lazy: only with a terminal

        return getpass(f"value of {name} (not shown): ", stream=sys.stderr).encode()
    content = sys.stdin.buffer.read()
    return content.removesuffix(b"\n").removesuffix(b"\r")


@verb("windlass secret ls", "windlass secret ls --json", name="ls")
@json_option
def ls_command(is_json: bool) -> None:
    """List names and where each value comes from; values are never shown."""
    sources = open_secrets(Home.default().path).sources()
    if is_json:
        emit_json(
            "windlass.secrets/1", {"secrets": [{"name": name, "source": source} for name, source in sources.items()]}
        )
        return
    if not sources:
        tell("no secrets yet: windlass secret set NAME < FILE")
        return
    for line in table(("name", "source"), list(sources.items())):
        emit_page(line)


@verb("windlass secret rm HF_TOKEN", name="rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_secret)
def rm_command(names: tuple[str, ...]) -> None:
    """Forget values."""
    store = open_secrets(Home.default().path).store
    for name in names:
        store.remove(name)
        tell(f"{name} is gone from the {store.label}")


for _member in (set_command, ls_command, rm_command):
    secret_command.add_command(_member)
