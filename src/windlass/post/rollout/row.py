"""A sample in progress: its tokens so far, where its versions change, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from windlass.post.rollout.engine import EngineError
from windlass.post.rollout.streams import stream_key
from windlass.post.rollout.types import Finish, Sample, TokenSpan

if TYPE_CHECKING:
    from windlass.post.rollout.stops import StopTexts
    from windlass.post.rollout.types import SampleRequest

__all__ = ["OpenRow", "cancelled_sample"]


class OpenRow:
    """A sample in progress."""

    def __init__(
        self, work: SampleRequest, *, version: int, submitted_s: float, started_s: float, stops: StopTexts | None
    ) -> None:
        self.work = work
        self.key = stream_key(work.sampling.seed, work.id)
        self.ids: list[int] = []
        self._logp: list[float] = []
        self._raw_logp: list[float] = []
        self._stop_ids = frozenset(work.sampling.stop_ids)
        self._most = work.sampling.max_new_tokens
        self._stops = stops
        self._marks = [(0, version, version)]
        self._queued_s, self._started_s = started_s - submitted_s, started_s

    @property
    def position(self) -> int:
        """Return the position of the next token, on which its random number depends."""
        return self.work.position + len(self.ids)

    def add(self, token: int, logp: float, raw_logp: float) -> Finish | None:
        """Append a token; returns why the sample ends with it, or None.

        Raises:
            EngineError: the log-probability is not finite, so the weights are unusable.
        """
        if not math.isfinite(raw_logp):
            version = self._marks[-1][1]
            raise EngineError(
                f"weights of version {version} give token {token} log-probability {raw_logp}",
                hint="load weights that are finite",
            )
        self.ids.append(token)
        self._logp.append(logp)
        self._raw_logp.append(raw_logp)
        if token in self._stop_ids or (self._stops is not None and self._stops.found(self.ids)):
            return "stop"
        return "length" if len(self.ids) >= self._most else None

    def mark_load(self, version: int, *, is_cache_kept: bool) -> None:
        """Note that the next token is chosen by other weights."""
        start, _, oldest = self._marks[-1]
        if start == len(self.ids):
            self._marks.pop()
        self._marks.append((len(self.ids), version, min(oldest, version) if is_cache_kept else version))

    def read_ids(self) -> Sequence[int]:
        """Return the tokens whose keys and values belong into the cache: all but the last one."""
        return (*self.work.read_ids, *self.ids[:-1])

    def sample(self, finish: Finish, now_s: float) -> Sample:
        """Return the sample as it is."""
        stops = [start for start, _, _ in self._marks[1:]] + [len(self.ids)]
        spans = tuple(
            TokenSpan(start=start, stop=stop, version=version, oldest_read=oldest)
            for (start, version, oldest), stop in zip(self._marks, stops, strict=True)
            if stop > start
        )
        return Sample(
            id=self.work.id,
            ids=tuple(self.ids),
            logp=tuple(self._logp),
            raw_logp=tuple(self._raw_logp),
            spans=spans,
            finish=finish,
            seconds={"queued": self._queued_s, "generated": now_s - self._started_s},
        )


def cancelled_sample(work: SampleRequest, queued_s: float) -> Sample:
    """Return the sample of work that was cancelled before it began."""
    return Sample(
        id=work.id,
        ids=(),
        logp=(),
        raw_logp=(),
        spans=(),
        finish="cancelled",
        seconds={"queued": queued_s, "generated": 0.0},
    )
