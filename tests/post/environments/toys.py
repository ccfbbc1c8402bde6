"""Environments of the tests; `module:name` of this file names them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from windlass.post.environments.protocol import Reply, Turn

__all__ = ["Hostile", "Patient", "Talker"]


class Patient:
    """Gives as many attempts at a sum as there are turns; each has a reward."""

    def __init__(self, hint: str = "no", first: str = "") -> None:
        self._hint, self._first, self._wanted = hint, first, ""

    def reset(self, row: Mapping[str, Any], seed: int) -> Turn:
        assert row["messages"][0]["role"] == "user"
        assert seed >= 0
        self._wanted = str(row["answer"])
        return Turn(messages=[{"role": "user", "content": self._first}] if self._first else [])

    def step(self, reply: Reply) -> Turn:
        if reply.text == self._wanted:
            return Turn(reward=1.0, is_done=True)
        return Turn(messages=[{"role": "user", "content": self._hint}], reward=0.0)

    def close(self) -> None:
        pass


class Talker:
    """Answers whatever it hears with its length and the number of the turn, and rewards at the end only."""

    def __init__(self, turns: int = 3) -> None:
        self._turns, self._count, self._seed = turns, 0, 0

    def reset(self, row: Mapping[str, Any], seed: int) -> Turn:
        self._seed = seed
        return Turn()

    def step(self, reply: Reply) -> Turn:
        self._count += 1
        is_done = self._count == self._turns
        content = f"{len(reply.text)}:{self._count}:{self._seed % 10}"
        return Turn(messages=[{"role": "tool", "content": content}], reward=0.5 if is_done else None, is_done=is_done)

    def score(self) -> float:
        return 0.25

    def close(self) -> None:
        pass


class Hostile:
    """Does what the row's `trick` says, in the turn that `at` names."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Turn:
        self._trick = str(row["trick"])
        return self._do() if row.get("at") == "reset" else Turn()

    def step(self, reply: Reply) -> Turn:
        return self._do()

    def close(self) -> None:
        pass

    def _do(self) -> Turn:
        trick = _TRICKS.get(self._trick)
        return Turn(is_done=True, reward=1.0) if trick is None else trick()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _hang() -> NoReturn:
    while True:
        time.sleep(60)


def _write(content: bytes) -> NoReturn:
    """Write to all descriptors, among them the one that turns are sent on."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, content)
    _hang()


def _leave_a_child() -> NoReturn:
    if os.fork() == 0:
        _hang()
    os._exit(0)


def _deep(levels: int) -> object:
    found: list[object] = []
    for _ in range(levels):
        found = [found]
    return found


_TRICKS: Mapping[str, Callable[[], Any]] = {
    "raise": lambda: _raise(RuntimeError("of the environment")),
    "exit": lambda: _raise(SystemExit(3)),
    "die": lambda: os._exit(7),
    "hang": _hang,
    "huge": lambda: Turn(messages=[{"role": "user", "content": "x" * (1 << 21)}]),
    "many": lambda: Turn(messages=[{"role": "user", "content": ""}] * 200_000),
    "role": lambda: Turn(messages=[{"role": "assistant", "content": "me"}]),
    "content": lambda: Turn(messages=[{"role": "user", "content": 7}]),
    "nan": lambda: Turn(reward=float("nan")),
    "text": lambda: Turn(reward="much"),  # type: ignore[arg-type]
    "object": lambda: Turn(messages=[{"role": "user", "content": object()}]),
    "nothing": lambda: None,
    "garbage": lambda: _write(b"\x00\x00\x00\x05hello" * 3),
    "length": lambda: _write(b"\xff\xff\xff\xff"),
    "deep": lambda: Turn(messages=[{"role": "user", "content": "", "tool_calls": _deep(5000)}]),
    "children": _leave_a_child,
}
