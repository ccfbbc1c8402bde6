"""`windlass secret`: store secrets; values are read from standard input or a hidden prompt, and never printed."""

from __future__ import annotations

import sys

import click

from windlass.cli.completion.files import complete_secret
from windlass.cli.screen import emit_json, emit_page, table, tell
from windlass.cli.verb import Family, examples_page, json_option, verb
from windlass.core.errors import UsageError
from windlass.runs.home import Home
from windlass.secrets.lookup import open_secrets

__all__ = ["secret_command"]


@click.group(
    cls=Family, name="secret", epilog=examples_page("windlass secret set HF_TOKEN < token.txt", "windlass secret ls")
)
def secret_command() -> None:
    """Store secrets for runs: set, ls, rm.

    An experiment lists their names (`env: {secrets: [HF_TOKEN]}`); its processes get each as an environment variable.
    """


@verb("windlass secret set HF_TOKEN < token.txt", "pass show hf | windlass secret set HF_TOKEN", name="set")
@click.argument("name", shell_complete=complete_secret)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED, metavar="")
def set_command(name: str, rest: tuple[str, ...]) -> None:
    """Store a value from standard input or, on a terminal, from a hidden prompt.

    One trailing newline is removed.
    """
    name, is_given, _ = name.partition("=")
    if is_given or rest:
        raise UsageError(
            f"value of `{name}` given on the command line, where other users can read it",
            hint=f"use `windlass secret set {name} < FILE`; nothing was stored, but the value may be in your shell's history",
            code="secret-on-command-line",
        )
    value = _read_value(name)
    store = open_secrets(Home.default().path).store
    store.set(name, value)
    tell(f"stored {name} in the {store.label}")


def _read_value(name: str) -> bytes:
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError(f"no value for `{name}`", hint=f"windlass secret set {name} < FILE", code="invalid-value")
    if sys.stdin.isatty():
        from getpass import getpass  # lazy: only on a terminal

        return getpass(f"value of {name} (not shown): ", stream=sys.stderr).encode()
    content = sys.stdin.buffer.read()
    return content.removesuffix(b"\n").removesuffix(b"\r")


@verb("windlass secret ls", "windlass secret ls --json", name="ls")
@json_option
def ls_command(is_json: bool) -> None:
    """List names and sources of secrets, never values."""
    sources = open_secrets(Home.default().path).sources()
    if is_json:
        emit_json(
            "windlass.secrets/1", {"secrets": [{"name": name, "source": source} for name, source in sources.items()]}
        )
        return
    if not sources:
        tell("no secrets yet; add one with `windlass secret set NAME < FILE`")
        return
    for line in table(("name", "source"), list(sources.items())):
        emit_page(line)


@verb("windlass secret rm HF_TOKEN", name="rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_secret)
def rm_command(names: tuple[str, ...]) -> None:
    """Delete secrets."""
    store = open_secrets(Home.default().path).store
    for name in names:
        store.remove(name)
        tell(f"removed {name} from the {store.label}")


for _member in (set_command, ls_command, rm_command):
    secret_command.add_command(_member)
