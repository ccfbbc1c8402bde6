"""Follower processes, which the head starts; they may lag or die without affecting the sweep."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from windlass.core.clock import Clock, SystemClock
from windlass.tune.folder import SweepFolder
from windlass.tune.followers.loggers import FollowerCallback, environment_of

__all__ = ["FollowerProcesses"]

_POLL_S = 0.05


class FollowerProcesses:
    """Followers started by a head, in separate sessions, so that signals to the head do not reach them.

    Their output goes to `followers/<target>.log` in the sweep's folder.
    """

    def __init__(
        self, folder: Path | str, callbacks: Iterable[FollowerCallback], *, clock: Clock | None = None
    ) -> None:
        self._folder = SweepFolder(Path(folder))
        self._callbacks = list(callbacks)
        self._clock = clock or SystemClock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start one process for each callback, without waiting.

        Call this once the journal exists.
        """
        self._folder.followers.mkdir(parents=True, exist_ok=True)
        for callback in self._callbacks:
            command = [sys.executable, "-m", "windlass.tune.followers", str(self._folder.path), "--to", callback.target]
            with open(self._log(callback.target), "ab") as log:
                process = subprocess.Popen(
                    [*command, "--options", json.dumps(callback.options)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment_of(callback),
                    start_new_session=True,
                )
            self._processes[callback.target] = process

    def _log(self, target: str) -> Path:
        return self._folder.followers / f"{target}.log"

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by target."""
        return {target: process.pid for target, process in self._processes.items()}

    def close(self, *, is_over: bool = True, wait_s: float = 20.0) -> list[str]:
        """Wait up to `wait_s` in total for the followers to exit; those still running are left alone.

        Args:
            is_over: whether the sweep has ended, so that they exit on their own; else they are asked to.

        Returns:
            A sentence for each follower that failed or needs longer.
        """
        if not is_over:
            for process in self._processes.values():
                if process.poll() is None:
                    process.terminate()
        deadline = self._clock.monotonic() + wait_s
        while any(process.poll() is None for process in self._processes.values()):
            if self._clock.monotonic() > deadline:
                break
            self._clock.sleep(_POLL_S)
        return [
            self._sentence(target, process.poll()) for target, process in self._processes.items() if process.poll() != 0
        ]

    def _sentence(self, target: str, code: int | None) -> str:
        if code is None:
            return f"the follower {target!r} is still writing and continues by itself"
        lines = self._log(target).read_text(errors="replace").strip().splitlines()
        last_line = next(
            (line for line in reversed(lines) if line.startswith("error:")), lines[-1] if lines else f"exit {code}"
        )
        return f"the follower {target!r} failed: {last_line}; `python -m windlass.tune.followers {self._folder.path} --to {target}` continues it"
