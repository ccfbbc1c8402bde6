"""Conversion of one command of a mason launch: its words at the site, its launcher, and its dataset cache."""

from __future__ import annotations

from dataclasses import replace

from windlass.compat.mason.caching import CACHE_FOLDER_FLAG, build_words
from windlass.compat.mason.launchers import LaunchedLine, RequestedNodes, start_line
from windlass.compat.mason.quoting import join_words
from windlass.compat.mason.reading import MasonCommand
from windlass.compat.mason.rewriting import without
from windlass.compat.mason.to_experiment.job_env import kept_path_note, unknown_path
from windlass.compat.to_experiment.bash_line import BashLine
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics
from windlass.compat.to_experiment.relocation import CACHE, CHECKPOINTS, OUT, Relocation, escaped
from windlass.core.dataclass import dataclass
from windlass.core.errors import SpecError
from windlass.plan.tokens.shell import is_assignment

__all__ = ["Moved", "move"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Command as started at the site; `build` creates its dataset cache, and is empty if it has none."""

    started: LaunchedLine
    build: tuple[str, ...] = ()


def move(
    command: MasonCommand,
    asked: RequestedNodes,
    place: Destination,
    paths: Relocation,
    diagnostics: ConversionDiagnostics,
    *,
    caches: bool,
) -> Moved:
    """Return the command as it runs at the site.

    Args:
        asked: the nodes that it was written for.
        caches: whether a step of prepared data may cache its dataset.
    """
    words = _own_folders(command, place, diagnostics)
    lifted = [word for word in words[:3] if is_assignment(word) and word.startswith("WANDB_")]
    text = join_words(words[len(lifted) :])
    diagnostics.note(*(kept_path_note(path, "the command", place) for path in paths.kept(text)))
    line = BashLine.read(paths.line(text))
    diagnostics.add(unknown_path(path, "the command", place) for path in paths.strangers(line.text))
    build = _build(line, diagnostics) if caches and command.training else ()
    if build:
        line = _with_cache_folder(line)
    try:
        started = start_line(line, asked)
    except SpecError as error:
        diagnostics.add(error.problems)
        return Moved(started=LaunchedLine(line=line), build=build)
    diagnostics.note(*started.notes)
    variables = {name: escaped(value) for name, _, value in (word.partition("=") for word in lifted)}
    return Moved(started=replace(started, vars={**variables, **started.vars}), build=build)


def _own_folders(command: MasonCommand, place: Destination, diagnostics: ConversionDiagnostics) -> list[str]:
    """Return the words, with the run's folders in place of those that mason chose on Beaker's storage."""
    words = list(command.words) if place.kind == "beaker" else _without_bucket(command, diagnostics)
    for flag, mark in (("--output_dir", OUT), ("--checkpoint_state_dir", CHECKPOINTS)):
        for at in (index + 1 for index, word in enumerate(words[:-1]) if word == flag):
            if words[at] not in command.given:
                diagnostics.note(f"`{flag} {words[at]}`, which mason chose, is replaced by {mark.token}")
                words[at] = mark.text
    return words


def _without_bucket(command: MasonCommand, diagnostics: ConversionDiagnostics) -> list[str]:
    """Return the words without mason's additions for Google Cloud: the model copy and the output folder."""
    words, given = list(command.words), command.given
    if "gsutil" in words and "gsutil" not in given:
        source, copy = words[words.index("gsutil") + 4], words[2]
        words = [source if word == copy else word for word in words[words.index("&&", words.index("gsutil")) + 1 :]]
        diagnostics.note(f"{source} is not copied first, unlike on Google Cloud with mason")
    return words if "--gs_bucket_path" in given else without(words, "--gs_bucket_path")


def _build(line: BashLine, diagnostics: ConversionDiagnostics) -> tuple[str, ...]:
    """Return the command that writes the dataset cache to ${out}.

    It is empty, with a note, if the command cannot be read from the line.
    """
    for called in line.commands:
        found = build_words([word.value for word in called.words])
        if found:
            return tuple(word if word == OUT.token else escaped(word) for word in found)
    diagnostics.note(
        "the training caches the dataset itself: its command is inside a shell construct that windlass cannot read"
    )
    return ()


def _with_cache_folder(line: BashLine) -> BashLine:
    """Return the line with the dataset cache taken from the prepared data."""
    name = CACHE_FOLDER_FLAG[2:].replace("_", "-")
    for index, called in enumerate(line.commands):
        if build_words([word.value for word in called.words]):
            line = line.without(called.flags([name], until_script=False))
            return line.insert(line.commands[index].words[-1].end, f"{CACHE_FOLDER_FLAG} {CACHE.text}")
    return line
