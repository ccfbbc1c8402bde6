"""Wishes that mason's and gantry's launches have in common, in the words of an experiment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

from windlass.compat.elsewhere.destination import Destination
from windlass.compat.elsewhere.findings import Findings
from windlass.plan.beaker.quantities import parse_size_bytes
from windlass.spec import Retry

__all__ = ["Compat", "Priority", "compat_there", "priority_there", "retry_there", "size_there"]

Compat = tuple[Literal["beaker"], ...]
Priority = Literal["low", "normal", "high", "urgent"]
_BEAKER = "BEAKER_"


def compat_there(
    texts: Iterable[str], place: Destination, findings: Findings, *, finds_others: bool, how: str
) -> Compat:
    """Whether a task gets the variables of Beaker: where it asks for them, and never by itself.

    Code that sees them takes itself for a job of Beaker, and then writes to its storage or asks its server.

    Args:
        texts: of the command and its variables, after what windlass fills in was taken out.
        finds_others: whether it has to find the other nodes by itself.
        how: what sets the variables all the same, for the note.
    """
    if place.kind == "beaker" or finds_others or any(_BEAKER in text for text in texts):
        return ("beaker",)
    findings.note(f"{_BEAKER}* variables are not set, so that code does not take this for Beaker; {how} sets them")
    return ()


def priority_there(wish: str, place: Destination, findings: Findings) -> Priority:
    """The priority of a launch that wished for one of Beaker's, with a note where the place does not know it."""
    there = "urgent" if wish == "immediate" else wish
    if there != wish and place.kind != "beaker":
        findings.note("--priority immediate is `urgent`, the highest there is")
    if there not in place.priorities and place.kind == "slurm":
        findings.note(f"--priority {there}: the profile of `{place.name}` says nothing about it")
        there = "normal"
    return cast(Priority, there)


def retry_there(num_failed: int, *, is_resumed: bool) -> Retry:
    """How often it is tried again; one that Beaker must not resume is not started again after an interruption."""
    return Retry(failed=num_failed) if is_resumed else Retry(failed=num_failed, interrupted=0)


def size_there(option: str, text: str | None, findings: Findings) -> int | None:
    """Bytes of a size as Beaker writes it; None where none is said, or where it is refused."""
    if not text:
        return None
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        findings.refuse(f"`{option} {text}`: {error}", f"write a unit: {option} 16GiB")
        return None
