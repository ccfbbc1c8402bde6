"""Table of all verbs with their help lines, so that `windlass --help` imports none of them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import click

from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError

__all__ = ["SECTIONS", "Entry", "LazyGroup"]


@dataclass(frozen=True)
class Entry:
    """Verb with its help line and the module of `windlass.cli.verbs` that implements it.

    The module's function is named `VERB_command`.
    """

    name: str
    module: str
    summary: str


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Run": (
        Entry("init", "run.init", "Create a small experiment to start from."),
        Entry("plan", "run.plan", "Show what a launch would do, without doing it."),
        Entry("launch", "run.launch", "Run an experiment file or a single command."),
        Entry("stop", "run.stop", "Stop a run; `resume` continues it."),
        Entry("retry", "run.again", "Continue a failed run from its last checkpoint; resets its retry budgets."),
        Entry("resume", "run.again", "Continue a stopped run from its last checkpoint."),
        Entry("rerun", "run.rerun", "Start a new run from the beginning, with the same pins."),
    ),
    "Look": (
        Entry("ps", "look.ps", "List runs."),
        Entry("show", "look.show", "Show one run: state, cause, attempts, outputs, next step."),
        Entry("logs", "look.logs", "Print the output of a run's processes."),
        Entry("outputs", "look.outputs", "List, fetch, pull or push the outputs of a run."),
        Entry("diff", "look.diff", "Compare two runs: code, environment, data, settings, results."),
        Entry("verify", "look.verify", "Check that a run can be reproduced, or find what changed."),
    ),
    "Search": (
        Entry("sweep", "run.sweep", "Search over settings: launch, show, ls, best, why, stop, resume, extend, export."),
    ),
    "Train": (
        Entry("train", "run.train", "Train a language model from a recipe."),
        Entry("ckpt", "run.ckpt", "Work with checkpoints: ls, verify, export, import, diff, compare-loss, generate."),
    ),
    "Data and images": (
        Entry("data", "manage.data", "Store datasets by digest: add, ls, show, pull, push, rm, gc, build."),
        Entry("image", "manage.image", "List, show or build container images."),
    ),
    "Sites": (
        Entry("site", "manage.site", "Describe the places that run experiments: add, ls, show, check."),
        Entry("secret", "manage.secret", "Store secrets for runs: set, ls, rm."),
        Entry("doctor", "manage.doctor", "Check that this machine can run experiments."),
    ),
    "Clusters": (
        Entry(
            "cluster",
            "manage.cluster",
            "Bring up machines with Ray and use them: up, submit, exec, ls, show, down, ...",
        ),
    ),
    "Bring your own": (
        Entry("mason", "compat.mason", "Launch with mason.py's command line, on Beaker or any site."),
        Entry("gantry", "compat.gantry", "Launch with gantry's command line, on Beaker or any site."),
        Entry("beaker", "compat.beaker", "Work with AI2's Beaker: submit, show, logs, import and export spec files."),
    ),
    "Maintenance": (
        Entry("gc", "manage.gc", "Delete old runs, caches and unused data."),
        Entry("archive", "manage.archive", "Export a run to a single file, or import one."),
        Entry("config", "manage.config", "Print the JSON Schema of experiment files, for editors."),
        Entry("explain", "manage.explain", "Explain an error code or a cause."),
        Entry("completion", "manage.completion", "Print the completion script for bash, zsh or fish."),
    ),
}
"""Verbs by group, in the order of the help page."""

_ENTRIES = {entry.name: entry for entries in SECTIONS.values() for entry in entries}


class LazyGroup(click.Group):
    """Command group that imports a verb when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all verbs, in the order of the help page."""
        return list(_ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a verb, or None if there is no such verb."""
        entry = _ENTRIES.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"windlass.cli.verbs.{entry.module}")
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)  # holds for every entry of the table
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a verb; for an unknown word, raise an error that suggests the nearest verb."""
        if args[0] in _ENTRIES or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        raise unknown_command(args[0], list(_ENTRIES), "windlass", rest=args[1:])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs, group by group."""
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(10), entry.summary) for entry in entries])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Complete the names of verbs without importing them."""
        from click.shell_completion import CompletionItem  # lazy: only for shell completion

        return [
            CompletionItem(entry.name, help=entry.summary)
            for entry in _ENTRIES.values()
            if entry.name.startswith(incomplete)
        ]


def unknown_command(word: str, names: Sequence[str], program: str, rest: Sequence[str] = ()) -> UsageError:
    """Return the error for an unknown command of `program`; `rest` holds the words after it."""
    from windlass.cli.other_words import (
        other_word,
        other_word_of_family,
    )  # lazy: here and below, only for errors
    from windlass.core.names import nearest

    ours = other_word(word, rest) if program == "windlass" else ""
    close = other_word_of_family(word, names) or nearest(word, names)
    if ours:
        hint = f"did you mean `{ours}`?"
    elif not close and (word.endswith((".yaml", ".yml")) or "/" in word):
        hint = f"did you mean `windlass launch {word}`?"
    else:
        hint = f"did you mean `{program} {close}`?" if close else f"run `{program} --help` for a list"
    return UsageError(f"unknown command `{word}`", hint=hint, code="unknown-command")
