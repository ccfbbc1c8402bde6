"""Wishes that mason's and gantry's launches have in common, in the words of an experiment."""

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
    """Return Beaker's variables for a task that asks for them, never by default.

    Code that sees them takes itself for a job of Beaker, and then writes to its storage or asks its server.

    Args:
        texts: of the command and its variables, after what windlass fills in was taken out.
        finds_others: whether it has to find the other nodes by itself.
        how: what sets the variables all the same, for the note.
    """
    if place.kind == "beaker" or finds_others or any(_BEAKER in text for text in texts):
        return ("beaker",)
    diagnostics.note(f"{_BEAKER}* variables are not set, so that code does not take this for Beaker; {how} sets them")
    return ()


def priority_at(wish: str, place: Destination, diagnostics: ConversionDiagnostics) -> Priority:
    """The priority of a launch that wished for one of Beaker's, with a note where the place does not know it."""
    there = "urgent" if wish == "immediate" else wish
    if there != wish and place.kind != "beaker":
        diagnostics.note("--priority immediate becomes `urgent`, the highest")
    if there not in place.priorities and place.kind == "slurm":
        diagnostics.note(f"--priority {there}: it is not in the profile of `{place.name}`")
        there = "normal"
    return cast(Priority, there)


def retry_policy(num_failed: int, *, is_resumed: bool) -> Retry:
    """Return the retries of a task; one that Beaker must not resume is not restarted after an interruption."""
    return Retry(failed=num_failed) if is_resumed else Retry(failed=num_failed, interrupted=0)


def size_bytes_of(option: str, text: str | None, diagnostics: ConversionDiagnostics) -> int | None:
    """Bytes of a size as Beaker writes it; None where none is said, or where it is refused."""
    if not text:
        return None
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        diagnostics.refuse(f"`{option} {text}`: {error}", f"write a unit: {option} 16GiB")
        return None
