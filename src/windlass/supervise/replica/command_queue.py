"""The order in which a shell carries out what its core commands."""

from __future__ import annotations

from collections import deque
from typing import Callable

from windlass.supervise.gang.messages import Command

__all__ = ["CommandQueue"]


class CommandQueue:
    """Executes commands in order; those that follow from them come behind the present ones.

    Args:
        execute: carries out one command; it may call `run`, which then returns before its commands were executed.
    """

    def __init__(self, execute: Callable[[Command], None]) -> None:
        self._execute = execute
        self._waiting: deque[Command] = deque()
        self._is_running = False

    def run(self, commands: list[Command]) -> None:
        """Execute commands; what one raises ends the call, and leaves those behind it for the next."""
        self._waiting.extend(commands)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._waiting:
                self._execute(self._waiting.popleft())
        finally:
            self._is_running = False
