"""What the leader of a link has its scheduler asked in one go, as an errand; answers are JSON values."""

from __future__ import annotations

from typing import Any

from windlass.core.dataclass import dataclass
from windlass.record.causes import Cause
from windlass.supervise.chain.background_calls import Answer
from windlass.supervise.chain.scheduler import JobScheduler, PastLink, SchedulerError

__all__ = ["UNCERTAIN", "PastLinkQuery", "QueueLinksRequest"]

UNCERTAIN = frozenset({Cause.UNKNOWN, Cause.OK, Cause.NODE_LOST, Cause.NODE_UNHEALTHY, Cause.KILLED})
"""Ends after which something of a job may still run."""


@dataclass(frozen=True)
class QueueLinksRequest:
    """Queue the links that are not there.

    Attributes:
        is_look: ask first which links there are.
        known: links that are taken to be there where nobody looks, or the scheduler does not say.
    """

    scheduler: JobScheduler
    is_look: bool
    wanted: tuple[int, ...]
    known: frozenset[int]
    avoided: tuple[str, ...]

    def carry_out(self) -> Answer:
        """Do it: `seen` are the links that were there (null: nobody knows), `queued` the new ones.

        After a refusal no more is asked: it may not answer, and one wait is enough.
        """
        seen = self._look() if self.is_look else None
        queued: dict[str, str] = {}
        notes: list[str] = []
        for link in self.wanted:
            if link in (self.known if seen is None else {int(number) for number in seen}):
                continue
            try:
                queued[str(link)] = self._queue(link, notes)
            except SchedulerError as error:
                notes.append(f"link {link} could not be queued and is tried again: {error}")
                break
        return {"seen": seen, "queued": queued, "notes": notes}

    def _look(self) -> dict[str, Any] | None:
        try:
            return {str(link): found for link, found in self.scheduler.queued().items()}
        except SchedulerError:  # it is asked again
            return None

    def _queue(self, link: int, notes: list[str]) -> str:
        """Queue a link; where the scheduler cannot do it without these hosts, with them."""
        try:
            return self.scheduler.queue(link, self.avoided)
        except SchedulerError as error:
            if not self.avoided:
                raise
            found = self.scheduler.queue(link, [])
            notes.append(f"link {link} does not keep away from {', '.join(self.avoided)}: {error}")
            return found


@dataclass(frozen=True)
class PastLinkQuery:
    """How an earlier job ended, and whether nothing of it goes on.

    Attributes:
        is_quiet: whether no sign of life of it comes any more, so that its end is certain.
        known: what the scheduler said of its end before, cause and message; None: it is asked.
    """

    scheduler: JobScheduler
    past: PastLink
    is_quiet: bool
    known: tuple[str, str] | None

    def ask(self) -> Answer:
        """Do it: `cause`, `message`, and `is_certain`."""
        cause, message = self.known or self._how_ended()
        is_certain = self.is_quiet or (Cause(cause) not in UNCERTAIN and self._has_heard())
        return {"cause": cause, "message": message, "is_certain": is_certain}

    def _how_ended(self) -> tuple[str, str]:
        try:
            cause, message = self.scheduler.how_ended(self.past)
        except SchedulerError:
            return str(Cause.UNKNOWN), ""
        return str(cause), message

    def _has_heard(self) -> bool:
        """Whether all its nodes have told the scheduler that it is over; one without a cable has not."""
        try:
            return self.scheduler.is_end_confirmed(self.past)
        except SchedulerError:
            return False
