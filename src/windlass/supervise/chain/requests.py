"""Requests from a link's leader to its scheduler, each run as one background call with a JSON reply."""

from __future__ import annotations

from typing import Any

from windlass.core.dataclass import dataclass
from windlass.record.causes import Cause
from windlass.supervise.chain.background_calls import Answer
from windlass.supervise.chain.scheduler import JobScheduler, PastLink, SchedulerError

__all__ = ["UNCERTAIN", "PastLinkQuery", "QueueLinksRequest"]

UNCERTAIN = frozenset({Cause.UNKNOWN, Cause.OK, Cause.NODE_LOST, Cause.NODE_UNHEALTHY, Cause.KILLED})
"""Ends after which processes of a job may still run."""


@dataclass(frozen=True)
class QueueLinksRequest:
    """Request to queue the missing links.

    Attributes:
        is_look: first ask which links exist.
        known: links that are assumed to exist, used without `is_look` or if the scheduler does not reply.
    """

    scheduler: JobScheduler
    is_look: bool
    wanted: tuple[int, ...]
    known: frozenset[int]
    avoided: tuple[str, ...]

    def run(self) -> Answer:
        """Execute the request; return `seen`, the existing links (null: unknown), `queued`, the new ones, and `notes`.

        It stops after a refusal: the scheduler may be unreachable, and one timeout is enough.
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
                notes.append(f"cannot queue link {link}, retrying: {error}")
                break
        return {"seen": seen, "queued": queued, "notes": notes}

    def _look(self) -> dict[str, Any] | None:
        try:
            return {str(link): found for link, found in self.scheduler.queued().items()}
        except SchedulerError:  # asked again later
            return None

    def _queue(self, link: int, notes: list[str]) -> str:
        """Queue a link; if excluding the avoided hosts fails, queue it without excluding them."""
        try:
            return self.scheduler.queue(link, self.avoided)
        except SchedulerError as error:
            if not self.avoided:
                raise
            found = self.scheduler.queue(link, [])
            notes.append(f"cannot exclude {', '.join(self.avoided)} from link {link}: {error}")
            return found


@dataclass(frozen=True)
class PastLinkQuery:
    """Query for how an earlier job ended, and whether it is certain that none of it still runs.

    Attributes:
        is_quiet: whether its heartbeats have stopped, so that its end is certain.
        known: cause and message that the scheduler reported before; None to ask it.
    """

    scheduler: JobScheduler
    past: PastLink
    is_quiet: bool
    known: tuple[str, str] | None

    def run(self) -> Answer:
        """Execute the query; return `cause`, `message` and `is_certain`."""
        cause, message = self.known or self._how_ended()
        is_certain = self.is_quiet or (Cause(cause) not in UNCERTAIN and self._is_confirmed())
        return {"cause": cause, "message": message, "is_certain": is_certain}

    def _how_ended(self) -> tuple[str, str]:
        try:
            cause, message = self.scheduler.how_ended(self.past)
        except SchedulerError:
            return str(Cause.UNKNOWN), ""
        return str(cause), message

    def _is_confirmed(self) -> bool:
        """Return whether all nodes of the job confirmed its end; a disconnected node cannot."""
        try:
            return self.scheduler.is_end_confirmed(self.past)
        except SchedulerError:
            return False
