from __future__ import annotations

import pytest

from windlass.supervise.gang.messages import Command, Leave, Respawn
from windlass.supervise.replica.supervisor import CommandQueue


def test_what_follows_from_a_command_comes_behind_the_present_ones() -> None:
    done: list[Command] = []

    def execute(command: Command) -> None:
        if isinstance(command, Respawn):
            queue.run([Leave(1)])
            assert done == [], "nothing was executed within"
        done.append(command)

    queue = CommandQueue(execute)
    queue.run([Respawn(0), Leave(0)])
    assert done == [Respawn(0), Leave(0), Leave(1)]


def test_after_an_error_the_others_wait_for_the_next_call() -> None:
    done: list[Command] = []

    def execute(command: Command) -> None:
        if isinstance(command, Respawn):
            raise OSError("gone")
        done.append(command)

    queue = CommandQueue(execute)
    with pytest.raises(OSError, match="gone"):
        queue.run([Respawn(0), Leave(0)])
    assert done == []
    queue.run([Leave(1)])
    assert done == [Leave(0), Leave(1)]
