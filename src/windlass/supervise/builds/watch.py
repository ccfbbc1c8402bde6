"""Watch on an environment that a job waits for: it is ready, being built, failed or abandoned."""

from __future__ import annotations

import os
from pathlib import Path

from windlass.core.json_text import read_json
from windlass.supervise.builds.once import READY, beside, find_ready, is_being_built

__all__ = ["PATIENCE_S", "BuildWatch"]

PATIENCE_S = 90.0
"""Time to wait for an environment without a builder: shared file systems show changes late."""

_TAIL_BYTES = 4096


class BuildWatch:
    """State of an environment, polled by the gate until it is ready or cannot be built.

    Args:
        environment: the file that is written last.
        build_lock: file that is locked during the build; with packages of the checkout, the first of two locks.
    """

    def __init__(self, environment: str, build_lock: str) -> None:
        self._places = [Path(environment).parent]
        if build_lock:
            self._places.append(Path(build_lock[: -len(".lock")]))
        self._quiet_since = 0.0
        self._is_quiet = False
        self.reason = ""

    def look(self, now: float) -> str:
        """Check once; return why the environment cannot be built, or "" and set `reason` to why it is not ready yet."""
        self.reason = ""
        missing = [each for each in self._places if find_ready(each) is None]
        if not missing:
            self._places = []
            return ""
        broken = next((each for each in missing if (each / READY).exists()), None)
        if broken is not None:
            return _broken(broken)
        if any(is_being_built(each) for each in self._places):
            self._is_quiet = False
            self.reason = f"waits for the environment that is being built (log: {beside(self._places[-1], '.log')})"
            return ""
        for each in self._places:
            failed = _failure(each)
            if failed:
                return failed
        return self._lose_patience(now)

    def _lose_patience(self, now: float) -> str:
        if not self._is_quiet:
            self._is_quiet, self._quiet_since = True, now
        self.reason = "waits for the environment"
        if now < self._quiet_since + PATIENCE_S:
            return ""
        tail = _tail(beside(self._places[-1], ".log"))
        tail_text = f"; its log ends with: {tail}" if tail else ""
        return f"the environment {self._places[-1]} does not exist, and no process builds it{tail_text}"


def _broken(place: Path) -> str:
    python = place / "bin" / "python"
    target = os.readlink(str(python)) if os.path.islink(str(python)) else str(python)
    return (
        f"the environment {place} cannot be used on {os.uname().nodename}: its interpreter {target} does not exist "
        "(build where jobs run: `env: {build: compute}` in the site profile)"
    )


def _failure(place: Path) -> str:
    try:
        failure = read_json(beside(place, ".failed"))
    except (FileNotFoundError, ValueError):
        return ""
    message = failure.get("message", "") if isinstance(failure, dict) else ""
    return f"the environment could not be built: {message}"


def _tail(path: Path) -> str:
    try:
        text = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.strip().split("\n")[-5:])
