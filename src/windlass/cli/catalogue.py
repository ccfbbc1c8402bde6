"""Every verb with its help line, as a table: `windlass --help` imports none of the verbs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import click

from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError

__all__ = ["SECTIONS", "Entry", "LazyGroup"]


@dataclass(frozen=True)
class Entry:
    """A verb: its name, the module of `windlass.cli.verbs` that holds it, and its help line.

    The function is called like the verb, with `_command` behind it.
    """

    name: str
    module: str
    summary: str


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Run": (
        Entry("init", "run.init", "Make a small experiment to start from."),
        Entry("plan", "run.plan", "Show everything that would happen; do nothing."),
        Entry("launch", "run.launch", "Run an experiment file, or one command."),
        Entry("sweep", "run.sweep", "Search over settings: launch, show, ls, best, why, stop, resume, extend."),
        Entry("train", "run.train", "Train a language model by a recipe; --dry-run and --plan only look."),
        Entry("ckpt", "run.ckpt", "Use checkpoints: ls, verify, export, import, diff, compare-loss, generate."),
    ),
    "Look": (
        Entry("ps", "look.ps", "List runs."),
        Entry("show", "look.show", "Show one run: state, cause, attempts, outputs."),
        Entry("logs", "look.logs", "Print what a run's processes printed."),
        Entry("fetch", "look.fetch", "Bring outputs here from a site reached over ssh."),
        Entry("outputs", "look.outputs", "List outputs by digest, bring them, send them."),
        Entry("diff", "look.diff", "Compare two runs: settings, code, environment, data."),
        Entry("verify", "look.verify", "Prove that a run gives the same again; name the link that broke."),
    ),
    "Act": (
        Entry("stop", "run.stop", "Stop a run; with --checkpoint it saves first."),
        Entry("retry", "run.again", "Go on with a failed run, with fresh budgets."),
        Entry("resume", "run.again", "Go on with a stopped run."),
        Entry("rerun", "run.rerun", "Start a new run with the same pins."),
    ),
    "Bring": (
        Entry("beaker", "compat.beaker", "Use AI2's Beaker: import and export spec files."),
        Entry("mason", "compat.mason", "Launch as AI2's mason.py does: to Beaker or anywhere else."),
        Entry("gantry", "compat.gantry", "Launch as AI2's gantry does: run, at Beaker or anywhere else."),
    ),
    "Keep house": (
        Entry("doctor", "manage.doctor", "Check this machine."),
        Entry("secret", "manage.secret", "Keep secrets: set, ls, rm."),
        Entry("data", "manage.data", "Keep datasets by digest: add, ls, show, pull, push, rm, gc."),
        Entry("site", "manage.site", "Know the places that run experiments: add, ls, show, check."),
        Entry("image", "manage.image", "Know the images that experiments run in: ls, show, build."),
        Entry("archive", "manage.archive", "A run as one file: export, import."),
        Entry("gc", "manage.gc", "Clear away what nobody needs, by the rules of runs."),
        Entry("config", "manage.config", "Describe the experiment file to editors."),
        Entry("explain", "manage.explain", "Explain an error code."),
        Entry("completion", "manage.completion", "Print the completion script of a shell."),
        Entry("version", "manage.version", "Print the version."),
    ),
}
"""Verbs in the order of the help page."""

_ENTRIES = {entry.name: entry for entries in SECTIONS.values() for entry in entries}


class LazyGroup(click.Group):
    """A group whose members are looked up in the table and imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of the help page."""
        return list(_ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name, imported; None where there is none."""
        entry = _ENTRIES.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"windlass.cli.verbs.{entry.module}")
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)  # what a verb's module is for
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's; a word that is no verb is answered with the nearest one."""
        if args[0] in _ENTRIES or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        raise unknown_command(args[0], list(_ENTRIES), "windlass", rest=args[1:])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, section by section."""
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(10), entry.summary) for entry in entries])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Names of verbs; nothing is imported."""
        from click.shell_completion import CompletionItem  # lazy: only a shell that completes needs it

        return [
            CompletionItem(entry.name, help=entry.summary)
            for entry in _ENTRIES.values()
            if entry.name.startswith(incomplete)
        ]


def unknown_command(word: str, names: Sequence[str], program: str, rest: Sequence[str] = ()) -> UsageError:
    """The error for a word that is no command of `program`; `rest` are the words behind it."""
    from windlass.cli.other_words import (
        other_word,
        other_word_of_family,
    )  # lazy: here and below, only a mistake needs it
    from windlass.core.names import nearest

    ours = other_word(word, rest) if program == "windlass" else ""
    close = other_word_of_family(word, names) or nearest(word, names)
    if ours:
        hint = f"did you mean `{ours}`?"
    elif not close and (word.endswith((".yaml", ".yml")) or "/" in word):
        hint = f"did you mean `windlass launch {word}`?"
    else:
        hint = f"did you mean `{program} {close}`?" if close else f"`{program} --help` lists them"
    return UsageError(f"no command `{word}`", hint=hint, code="unknown-command")
