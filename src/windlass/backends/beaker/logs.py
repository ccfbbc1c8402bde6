"""Logs of jobs, followed across lost connections without losing or repeating lines.

Beaker returns the lines from a given time on, and several lines can have the same time. So a reader resumes at the last
line's time and skips the lines it already has; resuming one nanosecond later, as the client does, loses the others.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from windlass.backends.beaker.connection import BeakerConnection
from windlass.backends.beaker.values import BeakerLogLine

if TYPE_CHECKING:
    from windlass.backends.beaker.client import BeakerClient

__all__ = ["Logs", "advanced"]

_STREAM_S = 60.0
"""Longest life of a stream before it is requested again: on a dead connection it would never end."""

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 3.0)
"""Pauses before a cut stream is requested again; each received line starts them over."""


def advanced(position: tuple[int, int], line: BeakerLogLine) -> tuple[int, int]:
    """Return the position after a line: the line's time, and how many lines with that time were read."""
    at_ns, num_at = position
    if line.at_ns == at_ns:
        return at_ns, num_at + 1
    return (line.at_ns, 1) if line.at_ns > at_ns else position


class Logs(BeakerConnection):
    """Part of the service that reads logs."""

    def logs(
        self, job: str, *, follow: bool = False, since_ns: int = 0, num_known: int = 0, tail: int = 0
    ) -> Iterator[BeakerLogLine]:
        """Yield the lines of a job's log in order.

        Args:
            follow: continue until Beaker has finalized the job.
            since_ns: begin with the lines of this time ...
            num_known: ... but skip this many lines of that time, which were already read.
            tail: yield only this many last lines; 0 for all.

        Raises:
            NotFoundError: no such job.
            UnreachableError: Beaker does not respond; resume later with `since_ns` and `num_known` of the last line.
        """
        reader = _Reader(self, job, since_ns, num_known)
        while True:
            is_over = reader.is_over()
            yield from reader.lines(follow=follow and not is_over, tail=tail)
            if not follow or is_over:
                return
            tail = 0


class _Reader:
    """Reader of one job's log, with its position."""

    def __init__(self, connection: BeakerConnection, job: str, since_ns: int, num_known: int) -> None:
        self._connection = connection
        self._job = job
        self._at_ns = since_ns
        self._num_at = num_known
        self._num_cuts = 0

    def is_over(self) -> bool:
        """Return True if no more lines will arrive."""
        with self._connection.asking(f"looking at job {self._job}") as client:
            return bool(client.job.get(self._job).status.HasField("finalized"))

    def lines(self, *, follow: bool, tail: int) -> Iterator[BeakerLogLine]:
        """Yield the lines that were not read yet.

        Stop at the log's end, or when a followed log must be requested again.
        """
        while True:
            is_whole = yield from self._stream(follow=follow, tail=tail)
            if is_whole or follow:
                return
            tail = 0

    def _stream(self, *, follow: bool, tail: int) -> Generator[BeakerLogLine, None, bool]:
        """Yield the lines of one stream; return whether it ended normally."""
        since_ns, num_skip = self._at_ns, self._num_at
        with self._connection.asking(f"reading the log of job {self._job}", _STREAM_S) as client:
            stream = self._open(client, follow=follow, tail=tail)
        try:
            while True:
                message = self._next(stream)
                if not isinstance(message, client.messages.JobLog):
                    return message is None
                line = BeakerLogLine(at_ns=message.timestamp.ToNanoseconds(), message=bytes(message.message))
                if line.at_ns == since_ns and num_skip:
                    num_skip -= 1
                    continue
                self._note(line)
                yield line
        finally:
            stream.cancel()

    def _open(self, client: BeakerClient, *, follow: bool, tail: int) -> Any:
        request = client.messages.StreamJobLogsRequest(job_id=self._job, follow=follow, tail_lines=tail)
        if self._at_ns:
            request.since.FromNanoseconds(self._at_ns)
        return client.service.StreamJobLogs(request, metadata=client.metadata())

    def _next(self, stream: Any) -> Any:
        """Return the next message; None at the end; False if the stream was cut and must be requested again."""
        with self._connection.asking(f"reading the log of job {self._job}", _STREAM_S) as client:
            try:
                return next(stream, None)
            except client.errors.RpcError as error:
                if not client.is_cut(error):
                    raise
                if not client.is_timeout(error):
                    self._pause()
                return False

    def _pause(self) -> None:
        """Wait before the stream is requested again; after several failures in a row, raise the last error."""
        if self._num_cuts >= len(_PAUSES_S):
            raise  # noqa: PLE0704 - called while the error is handled
        time.sleep(_PAUSES_S[self._num_cuts])
        self._num_cuts += 1

    def _note(self, line: BeakerLogLine) -> None:
        self._num_cuts = 0
        self._at_ns, self._num_at = advanced((self._at_ns, self._num_at), line)
