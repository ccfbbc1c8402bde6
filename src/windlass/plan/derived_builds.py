"""Data builds derived from a training task whose script can prepare its data and exit.

`cache-dataset-only`: the script accepts `--cache_dataset_only`, and `--dataset_local_cache_dir FOLDER` for the path of
the cache. The launcher before the script is removed, as are flags that only affect training.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from windlass.core.names import nearest
from windlass.plan.diagnostics import Diagnostics
from windlass.spec import Command, DataSource, Experiment

__all__ = ["ADAPTERS", "RUN_ONLY", "adapted_command"]

ADAPTERS = ("cache-dataset-only",)
RUN_ONLY = {
    "--with_tracking": False,
    "--checkpoint_state_freq": True,
    "--checkpoint_state_dir": True,
    "--gs_checkpoint_state_dir": True,
    "--output_dir": True,
    "--cache_dataset_only": False,
    "--dataset_local_cache_dir": True,
}
"""Flags that do not affect the data, and whether each takes a value; the last two are replaced."""

_CONTROL = {"&&", "||", ";", "|", "&", "\n"}
_EXPANDED = re.compile(r"(?<!\$)\$(?!\{)|`")
_INTERPRETER = re.compile(r"(?:.*/)?python[0-9.]*\Z")


def adapted_command(name: str, source: DataSource, experiment: Experiment, diagnostics: Diagnostics) -> Command | None:
    """Return the command that writes the data of `name` to ${out}, or None after a problem."""
    path, tasks = f"data.{name}.adapter", experiment.tasks
    chosen = source.task or (next(iter(tasks)) if len(tasks) == 1 else "")
    if chosen not in tasks:
        close = nearest(chosen, tasks) if chosen else ""
        hint = f"did you mean `{close}`?" if close else f"write `task: NAME`; the tasks are: {', '.join(tasks)}"
        message = (
            f"unknown task `{chosen}` in data.{name}.task" if chosen else f"data.{name} has an adapter but no `task`"
        )
        diagnostics.add(f"data.{name}.task" if chosen else path, message, "unknown-task", hint)
        return None
    words = _script_words(tasks[chosen].run)
    if words is None:
        message = f"no Python script found in tasks.{chosen}.run, or the line needs a shell"
        hint = f"write the command instead: `data: {{{name}: {{build: COMMAND}}}}`"
        diagnostics.add(path, message, "invalid-value", hint)
        return None
    kept = _without_flags(words, {**RUN_ONLY, **dict.fromkeys(source.drop)})
    return (*kept, "--cache_dataset_only", "--dataset_local_cache_dir", "${out}")


def _script_words(command: Command) -> list[str] | None:
    """Return the interpreter, the script and its arguments; None if there is no script or the line needs a shell."""
    words = _words_of_line(command) if isinstance(command, str) else list(command)
    at = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    if at is None:
        return None
    interpreter = words[at - 1] if at and _INTERPRETER.match(words[at - 1]) else "python"
    return [interpreter, *words[at:]]


def _words_of_line(line: str) -> list[str]:
    """Return the words of the first command that runs a script; empty if a shell would change them."""
    scanner = shlex.shlex(line, posix=True, punctuation_chars="&|;<>()")
    scanner.whitespace_split = True
    scanner.commenters = ""
    try:
        words = list(scanner)
    except ValueError:
        return []
    commands: list[list[str]] = [[]]
    for word in words:
        if word in _CONTROL:
            commands.append([])
        else:
            commands[-1].append(word)
    found = next((each for each in commands if any(word.endswith(".py") for word in each)), [])
    return [] if any(_EXPANDED.search(word) or set(word) <= set("<>()") for word in found) else found


def _without_flags(words: Sequence[str], flags: dict[str, bool | None]) -> Iterable[str]:
    """Yield the words without these flags and their values; `flags` says whether a value follows (None: maybe)."""
    index = 0
    while index < len(words):
        word = words[index]
        flag, equals, _ = word.partition("=")
        index += 1
        if flag not in flags:
            yield word
        elif not equals and flags[flag] is not False:
            while index < len(words) and not words[index].startswith("--"):
                index += 1
                if flags[flag]:
                    break
