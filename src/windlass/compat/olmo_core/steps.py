"""Check that a training still makes steps, by its output; the time limit counts from the first step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field

from windlass.core.dataclass import dataclass
from windlass.core.errors import WaitTimeoutError

__all__ = ["StepWatch", "Stuck"]

_STEP = re.compile(rb"\[olmo_core\.[^\]]+\].*\[[^\]]*step=\d+")
_SETTLING_S, _SOFT_SETTLING_S = 3600.0, 1800.0
"""Before the first step: loading, compiling, and a first evaluation may take so long."""
_WARN_AGAIN_S = 3600.0


class Stuck(WaitTimeoutError):
    """The training makes no steps any more."""


@dataclass(slots=True, kw_only=True)
class StepWatch:
    """Raises `Stuck` after `timeout_s` without a step, and warns after `soft_s`, at most once an hour."""

    timeout_s: float | None
    soft_s: float | None
    tell: Callable[[str], None]
    began: float | None = None
    stepped: float | None = None
    warned: float = field(default=float("-inf"))

    def hear(self, line: bytes, now: float) -> None:
        """Take a line of the log; `now` is monotonic, seconds."""
        self.began = now if self.began is None else self.began
        if _STEP.search(line):
            self.stepped = now

    def look(self, now: float) -> None:
        """Check the limits; nothing counts before the first line."""
        if self.began is None:
            return
        hard, soft = self._silence(now, self.timeout_s, _SETTLING_S), self._silence(now, self.soft_s, _SOFT_SETTLING_S)
        if hard is not None:
            message = f"no step for {hard:.0f} s"
            raise Stuck(message, hint="raise `step_timeout` if the steps are slow", code="no-steps")
        if soft is not None and now - self.warned > _WARN_AGAIN_S:
            self.warned = now
            self.tell(f"warning: no step for {soft:.0f} s")

    def _silence(self, now: float, limit_s: float | None, settling_s: float) -> float | None:
        """Seconds without a step where they are over the limit."""
        if limit_s is None or self.began is None:
            return None
        since = self.began if self.stepped is None else self.stepped
        allowed = max(limit_s, settling_s) if self.stepped is None else limit_s
        return now - since if now - since > allowed else None
