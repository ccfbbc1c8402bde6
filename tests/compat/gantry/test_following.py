"""Watching over preemptions, with limits; a clock that only sleeping moves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from windlass.backends.beaker.values import BeakerExperiment, BeakerJob, BeakerLogLine
from windlass.compat.gantry.following import FollowOptions, follow
from windlass.core.clock import FakeClock
from windlass.core.errors import UnreachableError, UsageError, WaitTimeoutError

FOREVER = FollowOptions.of(show_logs=True)


def job(attempt: int, **facts: object) -> BeakerJob:
    plain = BeakerJob(id=f"j{attempt}", task="main", task_id="t", rank=0, size=1, attempt=attempt, status="queued")
    return replace(plain, **facts)  # type: ignore[arg-type]


def running(attempt: int) -> BeakerJob:
    return job(attempt, status="running", started_ns=1, node="host")


def over(attempt: int, **facts: object) -> BeakerJob:
    return replace(running(attempt), **{"status": "canceled", "finalized_ns": 2, **facts})  # type: ignore[arg-type]


@dataclass
class Script:
    """What Beaker shows at each look; the last scene stays."""

    scenes: list[tuple[list[BeakerJob], str]]
    lines: Mapping[str, list[BeakerLogLine]] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    canceled: list[str] = field(default_factory=list)
    at: int = -1
    num_asked: int = 0

    def jobs(self, experiment: str, *, ranks: Collection[int] = ()) -> tuple[BeakerJob, ...]:
        self.at = min(self.at + 1, len(self.scenes) - 1)
        return tuple(self.scenes[self.at][0])

    def observe(self, ids: Sequence[str]) -> Mapping[str, BeakerExperiment]:
        return {"e": BeakerExperiment(id="e", name="e", status=self.scenes[self.at][1])}

    def why(self, experiment: str) -> tuple[str, ...]:
        self.num_asked += 1
        return self.reasons

    def logs(self, job: str, *, follow: bool = False, since_ns: int = 0, num_known: int = 0) -> Iterator[BeakerLogLine]:
        known = 0
        for line in self.lines.get(job, []):
            if line.at_ns == since_ns and known < num_known:
                known += 1
            elif line.at_ns >= since_ns:
                yield line

    def cancel(self, experiment: str, reason: str = "") -> None:
        self.canceled.append(reason)


def watch(
    script: Script, following: FollowOptions = FOREVER, on_pause: Callable[[float], None] | None = None
) -> tuple[BeakerJob | None, list[str], bytes]:
    told: list[str] = []
    printed: list[bytes] = []
    ended = follow(script, "e", following, tell=told.append, emit=printed.append, on_pause=on_pause, clock=FakeClock())
    return ended, told, b"".join(printed)


def lines(*texts: str, at: int = 1) -> list[BeakerLogLine]:
    return [BeakerLogLine(at_ns=at, message=text.encode()) for text in texts]


def test_lines_of_one_moment_come_once() -> None:
    script = Script(
        [
            ([], "queued"),
            ([running(1)], "running"),
            ([running(1)], "running"),
            ([over(1, status="succeeded")], "succeeded"),
        ],
        {"j1": [*lines("a", "b"), *lines("c\n", at=2)]},
    )
    ended, told, printed = watch(script)
    assert printed == b"a\nb\nc\n"
    assert told == ["attempt 1 is running on host"]
    assert ended is not None
    assert ended.status == "succeeded"


def test_a_preempted_attempt_is_read_to_its_end_and_the_next_one_followed() -> None:
    gone = over(1, canceled_code="system_preemption")
    script = Script(
        [
            ([running(1)], "running"),
            ([gone], "queued"),
            ([gone, job(2)], "queued"),
            ([gone, running(2)], "running"),
            ([gone, over(2, status="succeeded", exit_code=0)], "succeeded"),
        ],
        {"j1": lines("first"), "j2": lines("second")},
    )
    ended, told, printed = watch(script)
    assert printed == b"first\nsecond\n"
    assert told == [
        "attempt 1 is running on host",
        "attempt 1 ended (system preemption); Beaker restarts it",
        "attempt 2 is running on host",
    ]
    assert ended is not None
    assert ended.attempt == 2


def test_why_it_waits_is_said_once() -> None:
    script = Script([([job(1)], "queued")] * 3 + [([over(1, status="failed")], "failed")], reasons=("no free slots",))
    assert watch(script)[1] == ["waiting: no free slots", "attempt 1 is running on host"]


@pytest.mark.parametrize(
    ("limits", "jobs", "words"),
    [
        ({"timeout_s": 5}, [running(1)], "the experiment did not end within 5 s"),
        ({"show_logs": True, "start_timeout_s": 5}, [job(1)], "the experiment did not start within 5 s"),
        ({"show_logs": True, "inactive_timeout_s": 5}, [running(1)], "the experiment printed nothing for 5 s"),
    ],
)
def test_limits_end_the_watch(limits: dict[str, float], jobs: list[BeakerJob], words: str) -> None:
    for is_canceled in (False, True):
        script = Script([(jobs, "running")])
        with pytest.raises(WaitTimeoutError) as ended:
            watch(script, FollowOptions.of(**limits, is_canceled_with_us=is_canceled))  # type: ignore[arg-type]
        assert ended.value.message == words
        assert script.canceled == ([words] if is_canceled else [])


def test_a_limit_on_starting_does_not_hold_for_what_runs() -> None:
    scenes = [([running(1)], "running")] * 20 + [([over(1, status="succeeded")], "succeeded")]
    assert watch(Script(scenes), FollowOptions.of(show_logs=True, start_timeout_s=5))[0] is not None


def test_silence_is_warned_of_once_an_hour() -> None:
    scenes = [([running(1)], "running")] * 4000 + [([over(1, status="succeeded")], "succeeded")]
    told = watch(Script(scenes), FollowOptions.of(show_logs=True, inactive_soft_timeout_s=10))[1]
    assert told[1:] == [
        "warning: the experiment printed nothing for 11 s",
        "warning: the experiment printed nothing for 3612 s",
    ]


def test_an_experiment_that_never_got_a_job_ends_too() -> None:
    assert watch(Script([([], "canceled")]))[0] is None


def test_defaults_are_gantrys() -> None:
    assert not FollowOptions.of().is_wanted
    assert FollowOptions.of(timeout_s=-1) == FollowOptions(show_logs=True, timeout_s=None)
    assert FollowOptions.of(show_logs=False, timeout_s=9) == FollowOptions(show_logs=False, timeout_s=9)
    with pytest.raises(UsageError):
        FollowOptions.of(show_logs=True, timeout_s=0)


def test_a_long_wait_is_not_asked_about_every_second() -> None:
    script = Script([([job(1)], "queued")] * 61 + [([over(1)], "succeeded")], reasons=("no free slots",))
    assert watch(script)[1] == ["waiting: no free slots", "attempt 1 is running on host"]
    assert script.num_asked == 5  # in 61 seconds


@dataclass
class Cut(Script):
    """Beaker does not answer some of the looks."""

    num_cut: int = 0

    def jobs(self, experiment: str, *, ranks: Collection[int] = ()) -> tuple[BeakerJob, ...]:
        if self.num_cut:
            self.num_cut -= 1
            raise UnreachableError("nobody answers", code="beaker-unreachable")
        return super().jobs(experiment)


def test_beaker_may_be_away_for_a_while_and_not_for_ever() -> None:
    ended, _, printed = watch(Cut([([over(1)], "succeeded")], {"j1": lines("a")}, num_cut=300))
    assert ended is not None
    assert printed == b"a\n"
    script = Cut([([running(1)], "running")], num_cut=10_000)
    with pytest.raises(UnreachableError, match="nobody answers"):
        watch(script)
    assert script.canceled == []
