"""Logs of jobs, followed across cut connections without losing or repeating a line.

Beaker hands out lines from a moment on, and several lines can have one moment. So a reader goes on at the last line's
own moment, and leaves out as many lines of it as it has had; the client's own way, one nanosecond later, loses the rest.
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
"""A stream is asked for anew so often: one over a connection that died in silence would never end."""

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 3.0)
"""Before a stream that was cut is asked for again; a line of it begins from the first."""


def advanced(position: tuple[int, int], line: BeakerLogLine) -> tuple[int, int]:
    """The position behind a line: its moment, and how many lines of that moment there were."""
    at_ns, num_at = position
    if line.at_ns == at_ns:
        return at_ns, num_at + 1
    return (line.at_ns, 1) if line.at_ns > at_ns else position


class Logs(BeakerConnection):
    """The part of the service that reads logs."""

    def logs(
        self, job: str, *, follow: bool = False, since_ns: int = 0, num_known: int = 0, tail: int = 0
    ) -> Iterator[BeakerLogLine]:
        """The lines of a job in order.

        Args:
            follow: go on until Beaker has closed its books on the job.
            since_ns: begin with the lines of this moment ...
            num_known: ... but leave out so many of that very moment, which are known already.
            tail: only so many last lines; 0: all.

        Raises:
            NotFoundError: no such job.
            UnreachableError: Beaker is away; go on later with `since_ns` and `num_known` of the last line.
        """
        reader = _Reader(self, job, since_ns, num_known)
        while True:
            is_over = reader.is_over()
            yield from reader.lines(follow=follow and not is_over, tail=tail)
            if not follow or is_over:
                return
            tail = 0


class _Reader:
    """Reads one job's log; knows how far it is."""

    def __init__(self, connection: BeakerConnection, job: str, since_ns: int, num_known: int) -> None:
        self._connection = connection
        self._job = job
        self._at_ns = since_ns
        self._num_at = num_known
        self._num_cuts = 0

    def is_over(self) -> bool:
        """Return True when no more lines will come."""
        with self._connection.asking(f"looking at job {self._job}") as client:
            return bool(client.job.get(self._job).status.HasField("finalized"))

    def lines(self, *, follow: bool, tail: int) -> Iterator[BeakerLogLine]:
        """The lines that come after those that were had; ends with the log, or when a followed one should be asked for
        anew.
        """
        while True:
            is_whole = yield from self._stream(follow=follow, tail=tail)
            if is_whole or follow:
                return
            tail = 0

    def _stream(self, *, follow: bool, tail: int) -> Generator[BeakerLogLine, None, bool]:
        """The lines of one stream; returns whether it came to its own end."""
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
        """The next message; None at the end; False where the stream was cut and should be asked for anew."""
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
        """Wait a little before the stream is asked for again; raises the last error after some times in a row."""
        if self._num_cuts >= len(_PAUSES_S):
            raise  # noqa: PLE0704 - called while the error is handled
        time.sleep(_PAUSES_S[self._num_cuts])
        self._num_cuts += 1

    def _note(self, line: BeakerLogLine) -> None:
        self._num_cuts = 0
        self._at_ns, self._num_at = advanced((self._at_ns, self._num_at), line)
