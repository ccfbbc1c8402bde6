"""Verbs of other programs and their equivalents here: `windlass kill RUN` suggests `windlass stop RUN --now`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

__all__ = ["other_word", "other_word_of_family"]

_VERBS = {
    "list": "ps",
    "ls": "ps",
    "jobs": "ps",
    "history": "ps --all",
    "top": "ps",
    "queue": "ps --state queued",
    "squeue": "ps --state queued",
    "status": "show {RUN}",
    "info": "show {RUN}",
    "describe": "show {RUN}",
    "inspect": "show {RUN}",
    "get": "show {RUN}",
    "cancel": "stop {RUN}",
    "scancel": "stop {RUN}",
    "abort": "stop {RUN}",
    "kill": "stop {RUN} --now",
    "rm": "gc --runs --older-than 30d",
    "remove": "gc --runs --older-than 30d",
    "delete": "gc --runs --older-than 30d",
    "clean": "gc",
    "prune": "gc",
    "run": "launch {FILE}",
    "start": "launch {FILE}",
    "submit": "launch {FILE}",
    "sbatch": "launch {FILE}",
    "exec": "launch {FILE}",
    "attach": "logs {RUN} --follow",
    "tail": "logs {RUN} --follow",
    "follow": "logs {RUN} --follow",
    "watch": "logs {RUN} --follow",
    "cat": "logs {RUN}",
    "output": "logs {RUN}",
    "cp": "outputs pull {RUN}",
    "fetch": "outputs fetch {RUN}",
    "scp": "outputs fetch {RUN}",
    "version": "--version",
    "download": "outputs pull {RUN}",
    "pull": "outputs pull {RUN}",
    "restart": "rerun {RUN}",
    "continue": "resume {RUN}",
    "tune": "sweep launch FILE",
    "build": "image build FILE",
    "new": "init NAME",
    "create": "init NAME",
    "check": "doctor",
    "why": "show {RUN}",
}
"""Equivalents of other programs' verbs; the words after the verb replace the name in braces."""

_OF_FAMILY = {
    "list": ("ls",),
    "get": ("show", "pull"),
    "info": ("show",),
    "describe": ("show",),
    "status": ("show",),
    "inspect": ("show",),
    "remove": ("rm",),
    "delete": ("rm",),
    "del": ("rm",),
    "kill": ("stop", "cancel"),
    "cancel": ("stop", "cancel"),
    "run": ("launch", "run", "submit"),
    "start": ("launch", "run", "submit"),
    "create": ("add", "set"),
    "new": ("add", "set"),
    "put": ("add", "set", "push"),
    "download": ("pull", "fetch"),
    "upload": ("push",),
    "clean": ("gc",),
    "prune": ("gc",),
}
"""Equivalents within a command group; the first one that the group has is used."""


def other_word(word: str, rest: Sequence[str]) -> str:
    """Return the windlass command for another program's verb, or an empty string if there is none.

    Args:
        rest: the words after the verb.
    """
    if word == "help":
        return " ".join(["windlass", *rest, "--help"])
    line = _VERBS.get(word, "")
    if "{RUN}" in line:
        line = line.replace("{RUN}", shlex.join(rest[:1]) or "RUN")
    elif "{FILE}" in line:
        is_command = bool(rest) and not rest[0].endswith((".yaml", ".yml"))
        line = line.replace("{FILE}", f"-- {shlex.join(rest)}" if is_command else shlex.join(rest) or "FILE")
    return f"windlass {line}" if line else ""


def other_word_of_family(word: str, names: Collection[str]) -> str:
    """Return the group's verb that matches another program's `word`, or an empty string if there is none."""
    return next((name for name in _OF_FAMILY.get(word, ()) if name in names), "")
