"""Conversion of the settings that mason's and gantry's launches have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics
from windlass.plan.beaker.quantities import parse_size_bytes
from windlass.spec import Retry

__all__ = ["Compat", "Priority", "beaker_compat", "priority_at", "retry_policy", "size_bytes_of"]

Compat = tuple[Literal["beaker"], ...]
Priority = Literal["low", "normal", "high", "urgent"]
_BEAKER = "BEAKER_"


def beaker_compat(
    texts: Iterable[str], place: Destination, diagnostics: ConversionDiagnostics, *, finds_others: bool, how: str
) -> Compat:
    """Return a task's `compat` settings: Beaker's variables if the task runs there or may need them, else nothing.

    Code that sees these variables assumes that it is in a Beaker job, and may use Beaker's storage or server.

    Args:
        texts: texts of the command and its variables, without the parts that windlass sets.
        finds_others: whether the command must find the other nodes itself.
        how: option that sets the variables anyway, for the note.
    """
    if place.kind == "beaker" or finds_others or any(_BEAKER in text for text in texts):
        return ("beaker",)
    diagnostics.note(f"{_BEAKER}* variables are not set, so that code does not assume a Beaker job; {how} sets them")
    return ()


def priority_at(wish: str, place: Destination, diagnostics: ConversionDiagnostics) -> Priority:
    """Return windlass's priority for one of Beaker's, with a note if the site lacks it."""
    there = "urgent" if wish == "immediate" else wish
    if there != wish and place.kind != "beaker":
        diagnostics.note("--priority immediate becomes `urgent`, the highest")
    if there not in place.priorities and place.kind == "slurm":
        diagnostics.note(f"--priority {there}: it is not in the profile of `{place.name}`")
        there = "normal"
    return cast(Priority, there)


def retry_policy(num_failed: int, *, is_resumed: bool) -> Retry:
    """Return a task's retry settings; without automatic resuming, an interruption does not restart the task."""
    return Retry(failed=num_failed) if is_resumed else Retry(failed=num_failed, interrupted=0)


def size_bytes_of(option: str, text: str | None, diagnostics: ConversionDiagnostics) -> int | None:
    """Parse a size as Beaker does and return bytes, or None if it is empty or invalid."""
    if not text:
        return None
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        diagnostics.refuse(f"`{option} {text}`: {error}", f"write a unit: {option} 16GiB")
        return None
