"""Episodes in processes of their own: whatever an environment does, its episode ends with a turn or an error."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.post.environments.process import EpisodePool
from windlass.post.environments.protocol import Reply, Turn, find_environment

TOYS = "tests.post.environments.toys"
PATIENT, TALKER, HOSTILE = f"{TOYS}:Patient", f"{TOYS}:Talker", f"{TOYS}:Hostile"
ROW: dict[str, Any] = {"messages": [{"role": "user", "content": "2+2="}], "answer": "4"}

TRICKS = {
    "raise": "RuntimeError: of the environment",
    "exit": "SystemExit: 3",
    "die": "the worker ended with exit code 7",
    "huge": "more than 1048576 bytes",
    "many": "more than 1048576 bytes",
    "role": "the role 'assistant'",
    "content": "content of",
    "nan": "the reward is nan",
    "text": "invalid",
    "object": "TypeError",
    "nothing": "AttributeError",
    "garbage": "invalid",
    "length": "more than 1048576 bytes",
    "deep": "",
    "children": "the worker ended",
}


@pytest.fixture(scope="module")
def pool() -> Iterator[EpisodePool]:
    pool = EpisodePool({PATIENT: {"hint": "again"}, TALKER: {}, HOSTILE: {}}, deadline_s=120.0, num_workers=8)
    yield pool
    pool.close()


def turns(pool: EpisodePool, count: int, limit_s: float = 300.0) -> dict[int, Turn]:
    found: dict[int, Turn] = {}
    end_s = time.monotonic() + limit_s
    while len(found) < count:
        assert time.monotonic() < end_s, found
        found |= dict(pool.poll(1.0))
    return found


def test_an_episode_keeps_its_state_over_turns(pool: EpisodePool) -> None:
    numbers = [pool.begin(PATIENT, {**ROW, "answer": str(at)}, seed=at) for at in range(3)]
    assert turns(pool, 3) == dict.fromkeys(numbers, Turn(messages=[]))
    for number in numbers:
        pool.step(number, Reply(text="1"))
    found = [turn for _, turn in sorted(turns(pool, 3).items())]
    assert found[1] == Turn(messages=[], reward=1.0, is_done=True)
    assert found[0] == found[2] == Turn(messages=[{"role": "user", "content": "again"}], reward=0.0)
    for number in numbers:
        pool.end(number)


def test_an_environment_without_a_score_gives_none(pool: EpisodePool) -> None:
    numbers = [pool.begin(name, ROW, seed=0) for name in (PATIENT, TALKER)]
    turns(pool, 2)
    for number in numbers:
        pool.score(number)
    found = turns(pool, 2)
    assert [found[number].reward for number in numbers] == [None, 0.25]
    for number in numbers:
        pool.end(number)


def test_more_episodes_than_workers_wait(pool: EpisodePool) -> None:
    numbers = {pool.begin(TALKER, ROW, seed=at) for at in range(20)}
    found: set[int] = set()
    while len(found) < 20:
        for number in turns(pool, 1):
            found.add(number)
            pool.end(number)
    assert found == numbers


@pytest.mark.parametrize("at", ["reset", "step"])
def test_hostile_environments_end_with_an_error(pool: EpisodePool, at: str) -> None:
    numbers = {trick: pool.begin(HOSTILE, {**ROW, "trick": trick, "at": at}, seed=0) for trick in TRICKS}
    found: dict[int, Turn] = {}
    asked: set[int] = set()
    while len(found) < len(numbers):
        for number, turn in turns(pool, 1).items():
            if at == "step" and number not in asked:
                asked.add(number)
                pool.step(number, Reply(text="x"))
            else:
                found[number] = turn
                pool.end(number)
    for trick, number in numbers.items():
        turn = found[number]
        assert TRICKS[trick] in turn.error, trick
        assert turn.error or trick == "deep"
        assert turn.reward is None, trick
    number = pool.begin(PATIENT, ROW, seed=0)  # and the next episode is served
    assert not turns(pool, 1)[number].error
    pool.end(number)


@pytest.mark.parametrize("at", ["reset", "step"])
def test_an_environment_that_hangs_is_ended_at_its_deadline(at: str) -> None:
    pool = EpisodePool({HOSTILE: {}}, deadline_s=5.0, num_workers=1)  # the other turns take milliseconds
    number = pool.begin(HOSTILE, {**ROW, "trick": "hang", "at": at}, seed=0)
    if at == "step":
        assert not turns(pool, 1)[number].error
        pool.step(number, Reply(text="x"))
    turn = turns(pool, 1)[number]
    assert turn.error == "no turn within 5 s"
    assert turn.reward is None
    pool.end(number)
    number = pool.begin(HOSTILE, {**ROW, "trick": "none"}, seed=0)  # and its worker is free again
    assert not turns(pool, 1)[number].error
    pool.close()


def test_a_killed_server_is_an_error_of_its_episodes_and_starts_again() -> None:
    pool = EpisodePool({TALKER: {}}, deadline_s=120.0, num_workers=2)
    assert [pool.begin(TALKER, ROW, seed=0) for _ in range(2)] == [0, 1]
    turns(pool, 2)
    pool.step(0, Reply(text="x"))
    os.kill(pool.pid, signal.SIGKILL)
    found = turns(pool, 1)
    if not found[0].error:  # it was faster than the signal
        pool.step(0, Reply(text="x"))
        found = turns(pool, 1)
    assert "the server of environments ended" in found[0].error
    pool.step(1, Reply(text="x"))
    assert "ended during the episode" in turns(pool, 1)[1].error
    number = pool.begin(TALKER, ROW, seed=0)
    assert not turns(pool, 1)[number].error
    pool.close()


def test_environments_are_found_by_name() -> None:
    assert callable(find_environment(PATIENT, {"hint": "x"}))
    with pytest.raises(NotFoundError, match="unknown environment `pyton`") as found:
        find_environment("pyton")
    assert found.value.hint == "did you mean `python`?"
    with pytest.raises(UsageError, match="invalid settings of environment"):
        find_environment(PATIENT, {"tip": "x"})


def test_an_environment_that_cannot_be_created_is_an_error() -> None:
    pool = EpisodePool({f"{TOYS}:_deep": {"levels": -1}, f"{TOYS}:missing": {}})
    with pytest.raises(PreconditionError, match="cannot start the environments"):
        pool.begin(f"{TOYS}:_deep", ROW, seed=0)
