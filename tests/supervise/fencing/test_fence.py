from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.supervise.fencing.fence import (
    Action,
    FenceDecision,
    FenceState,
    FencingAgentCore,
    HeartbeatWatch,
    heartbeat_path,
    read_heartbeats,
)
from windlass.supervise.job import Fencing
from windlass.supervise.replica.stall_watch import StallDetector

FENCING = Fencing(renew_s=5.0, stop_s=120.0, kill_s=600.0, quiet_s=150.0)


def core() -> FencingAgentCore:
    return FencingAgentCore(FENCING, FenceDecision(renewed_at=1000.0))


def state(agent: FencingAgentCore) -> FenceState:
    return agent.decision.state


def test_ranks_whose_heartbeat_is_renewed_are_left_alone() -> None:
    agent = core()
    for now in range(1005, 3000, 5):
        assert agent.beat(float(now), float(now)) == []
        assert state(agent) is FenceState.FREE
    assert agent.decision.lost_s == 0.0


def test_silence_stops_the_ranks_and_a_renewal_lets_them_go_on() -> None:
    agent = core()
    assert agent.tick(1119.9) == []
    assert state(agent) is FenceState.SILENT
    assert agent.tick(1120.0) == [Action.STOP]
    assert state(agent) is FenceState.STOPPED
    assert agent.beat(1180.0, 1180.5) == [Action.CONTINUE]
    assert state(agent) is FenceState.FREE
    assert agent.decision.lost_s == 180.5
    assert agent.beat(1185.0, 1185.0) == []


def test_stopped_ranks_are_looked_for_again_and_again() -> None:
    agent = core()
    for now in (1120.0, 1121.0, 1300.0):
        assert agent.tick(now) == [Action.STOP]


def test_a_long_silence_kills() -> None:
    agent = core()
    assert agent.tick(1599.9) == [Action.STOP]
    assert agent.tick(1600.0) == [Action.KILL]
    agent.killed(1600.0)
    assert agent.decision.why_killed(started_at=900.0) == "the shared file system was gone for 600 s"
    assert agent.beat(1700.0, 1700.0) == [Action.CONTINUE]
    assert state(agent) is FenceState.FREE
    assert agent.decision.why_killed(started_at=900.0) != ""
    assert agent.decision.why_killed(started_at=1701.0) == ""


def test_a_successor_kills_and_nothing_takes_that_back() -> None:
    agent = core()
    assert agent.superseded(1003.0) == [Action.KILL]
    agent.killed(1003.0)
    assert agent.beat(1005.0, 1005.0) == [Action.KILL]
    assert agent.tick(1006.0) == [Action.KILL]
    assert agent.decision.why_killed(900.0) == "a later start of this job took over"


def test_stopped_ranks_of_a_superseded_replica_never_go_on() -> None:
    agent = core()
    agent.tick(1130.0)
    assert agent.superseded(1140.0) == [Action.KILL]


def test_a_heartbeat_counts_from_when_its_write_began() -> None:
    """It may have reached the server at once, and a reader may have counted from then."""
    agent = core()
    agent.beat(1005.0, 1005.0)
    assert agent.tick(1125.0) == [Action.STOP]
    assert agent.beat(1010.0, 1145.0) == [Action.STOP]
    assert agent.beat(1150.0, 1150.0) == [Action.CONTINUE]


def test_an_older_heartbeat_heard_late_makes_nothing_younger() -> None:
    agent = core()
    agent.beat(1010.0, 1010.0)
    agent.beat(1005.0, 1011.0)
    assert agent.decision.renewed_at == 1010.0


def test_a_short_silence_is_no_silence() -> None:
    agent = core()
    agent.beat(1014.0, 1014.9)
    assert agent.decision.lost_s == 0.0


@pytest.mark.parametrize(
    ("now", "due"),
    [(1000.0, 1015.0), (1050.0, 1120.0), (1200.0, 1201.0), (1599.5, 1600.0), (2000.0, 2001.0)],
)
def test_it_says_when_it_must_be_asked_again(now: float, due: float) -> None:
    agent = core()
    agent.tick(now)
    assert agent.next_at(now) == due


def test_the_next_fencing_agent_goes_on_where_one_stopped() -> None:
    first = core()
    first.tick(1130.0)
    second = FencingAgentCore(FENCING, FenceDecision.unpack(first.decision.pack()))
    assert second.decision == first.decision
    assert second.tick(1131.0) == [Action.STOP]
    assert second.beat(1140.0, 1140.0) == [Action.CONTINUE]


def test_there_is_no_ruling_before_the_first() -> None:
    assert FenceDecision.unpack(b"") == FenceDecision()
    assert FenceDecision.unpack(bytes(len(FenceDecision().pack()))) == FenceDecision()  # memory as it is made


def test_what_lies_behind_a_ruling_in_memory_is_no_part_of_it() -> None:
    decision = FenceDecision(FenceState.GONE, 1.0, 2.0, 3.0, FenceState.STOPPED, 4.0)
    assert FenceDecision.unpack(decision.pack() + b"more") == decision
    assert FenceDecision.unpack(decision.pack()[:-1]) == FenceDecision()
    assert FenceDecision().why_killed(0.0) == ""


class Disk:
    """Heartbeat files of other starts, and whether they can be reached."""

    def __init__(self) -> None:
        self.heartbeats: dict[str, bytes] = {}
        self.is_there = True

    def read(self, _folder: Path, _own: str) -> Mapping[str, bytes]:
        if not self.is_there:
            raise OSError(5, "Input/output error")
        return dict(self.heartbeats)


@pytest.fixture
def disk() -> Disk:
    return Disk()


def watch(disk: Disk) -> HeartbeatWatch:
    return HeartbeatWatch(Path("/job"), "8.0", 150.0, disk.read)


def test_heartbeats_that_do_not_change_are_quiet_after_a_while(disk: Disk) -> None:
    disk.heartbeats = {"7.0/heartbeat-0": b"1"}
    successor = watch(disk)
    assert not successor.look(0.0)
    assert not successor.look(1.0)
    assert not successor.look(150.9)
    assert successor.look(151.0)


def test_a_predecessor_without_a_heartbeat_is_quiet_after_a_while_as_well(disk: Disk) -> None:
    successor = watch(disk)
    assert [successor.look(now) for now in (0.0, 1.0, 150.0, 151.0)] == [False, False, False, True]


@pytest.mark.parametrize("change", [{"7.0/heartbeat-0": b"2"}, {}, {"7.0/heartbeat-0": b"1", "7.0/heartbeat-1": b"1"}])
def test_any_change_begins_the_wait_anew(disk: Disk, change: dict[str, bytes]) -> None:
    disk.heartbeats = {"7.0/heartbeat-0": b"1"}
    successor = watch(disk)
    for now in (0.0, 1.0, 140.0):
        assert not successor.look(now)
    disk.heartbeats = change
    assert [successor.look(now) for now in (149.0, 160.0, 309.9, 310.0)] == [False, False, False, True]


def test_what_cannot_be_read_counts_as_a_change(disk: Disk) -> None:
    successor = watch(disk)
    successor.look(0.0)
    successor.look(1.0)
    disk.is_there = False
    assert not successor.look(200.0)
    disk.is_there = True
    assert [successor.look(now) for now in (201.0, 350.9, 351.0)] == [False, False, True]


def test_a_look_that_hangs_counts_from_the_next_one(disk: Disk) -> None:
    """It began at 0 and saw the heartbeat as it was at its end, perhaps 100 s later."""
    successor = watch(disk)
    successor.look(0.0)
    assert not successor.look(150.0)
    assert successor.look(300.0)


def test_heartbeats_are_those_of_all_other_starts(tmp_path: Path) -> None:
    for name in ("7.0", "7.1", "8.0", ".probe-7.0-0"):
        (tmp_path / name).mkdir()
        heartbeat_path(tmp_path / name, 0).write_bytes(name.encode())
    heartbeat_path(tmp_path, 1).write_bytes(b"local")
    (tmp_path / "7.0" / "guard-0.json").write_text("{}")
    found = read_heartbeats(tmp_path, "8.0")
    assert sorted(found.values()) == [b"7.0", b"7.1", b"local"]
    assert sorted(read_heartbeats(tmp_path, "").values()) == [b"7.0", b"7.1", b"8.0"]


def test_heartbeats_of_the_other_jobs_of_the_task_are_among_them(tmp_path: Path) -> None:
    for name in ("train-1/7.0", "train-2/8.0", "train-2/9.0", "train-3/5.0", "train-2-1/6.0"):
        (tmp_path / name).mkdir(parents=True)
        heartbeat_path(tmp_path / name, 0).write_bytes(name.encode())
    found = read_heartbeats(tmp_path / "train-2", "9.0")
    assert sorted(found.values()) == [b"train-1/7.0", b"train-2/8.0", b"train-3/5.0"]
    successor = HeartbeatWatch(tmp_path / "train-2", "9.0", 150.0)
    assert [successor.look(now) for now in (0.0, 1.0, 100.0)] == [False, False, False]
    heartbeat_path(tmp_path / "train-1/7.0", 0).write_bytes(b"it goes on")
    assert [successor.look(now) for now in (151.0, 152.0, 302.0)] == [False, False, True]


def test_a_suspended_replica_is_stopped_and_goes_on_with_a_new_heartbeat() -> None:
    agent = core()
    agent.resumed(9000.0)
    assert agent.tick(9000.0) == [Action.STOP]
    assert agent.beat(1004.0, 9001.0) == [Action.STOP], "a turn from before says nothing of now"
    assert agent.beat(9002.0, 9003.0) == [Action.CONTINUE]
    assert agent.decision.killed_at == 0.0


def test_a_suspended_replica_that_stays_silent_is_killed() -> None:
    agent = core()
    agent.resumed(9000.0)
    assert agent.tick(9119.9) == [Action.STOP]
    assert agent.tick(9120.0) == [Action.KILL]
    agent.resumed(20000.0)
    assert agent.tick(20000.0) == [Action.KILL], "that is not taken back"


def test_a_suspended_replica_that_was_superseded_is_killed_at_once() -> None:
    agent = core()
    agent.resumed(9000.0)
    assert agent.superseded(9001.0) == [Action.KILL]
    agent.resumed(20000.0)
    assert agent.tick(20000.0) == [Action.KILL]


def test_a_short_pause_stops_nothing() -> None:
    agent = core()
    agent.resumed(1030.0)
    assert agent.tick(1030.0) == []


@given(
    lengths=st.lists(st.tuples(st.floats(1.0, 2000.0), st.floats(1.0, 300.0)), min_size=1, max_size=6),
    turn_s=st.floats(0.1, 100.0),
    share=st.floats(0.0, 1.0),
)
def test_no_rank_of_a_suspended_replica_runs_once_a_successor_may_start(
    lengths: list[tuple[float, float]], turn_s: float, share: float
) -> None:
    """It is suspended and resumed at any moment of a turn; nothing is killed, and nothing runs unstopped after waking."""
    disk = Disk()
    disk.heartbeats = {"7.0/heartbeat-0": b"0"}
    successor, agent = watch(disk), FencingAgentCore(FENCING, FenceDecision(renewed_at=0.0))
    now, is_running, may_start, began = 0.0, True, False, 0.0

    def act(actions: list[Action]) -> None:
        nonlocal is_running
        for action in actions:
            assert action is not Action.KILL
            is_running = action is Action.CONTINUE

    for suspended_s, awake_s in lengths:
        end = now + suspended_s
        while now < end:  # the others see it silent
            now = min(now + 5.0, end)
            may_start = successor.look(now) or may_start
        agent.resumed(now)
        act(agent.tick(now))
        assert not (is_running and may_start)
        end = now + awake_s
        while now < end and not may_start:
            now = min(now + turn_s * share + 0.1, end)
            disk.heartbeats = {"7.0/heartbeat-0": b"%f" % now}
            may_start = successor.look(now) or may_start
            act(agent.beat(began, now))  # a turn that began before it was suspended is told first
            assert not (is_running and may_start)
            began = now
        if may_start:
            break
    if may_start:
        act(agent.tick(now))
        assert not is_running
        assert agent.superseded(now) == [Action.KILL]


@given(
    gaps=st.lists(st.floats(0.0, 400.0), min_size=1, max_size=12),
    hangs=st.lists(st.floats(0.0, 300.0), min_size=12, max_size=12),
    lands=st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12),
    reads=st.floats(0.5, 40.0),
    ends_after=st.integers(1, 12),
)
def test_no_rank_runs_once_a_successor_may_start(
    gaps: list[float], hangs: list[float], lands: list[float], reads: float, ends_after: int
) -> None:
    """Heartbeats are written with any hangs, and land at any moment of their write; the reader looks now and then."""
    turns = []
    began = 0.0
    for gap, hang, share in list(zip(gaps, hangs, lands, strict=False))[:ends_after]:
        began += gap
        turns.append((began, began + share * hang, began + hang))  # write begins, lands, is told
        began += hang
    disk = Disk()
    successor = watch(disk)
    agent = FencingAgentCore(FENCING, FenceDecision(renewed_at=0.0))
    told = iter(turns)
    upcoming = next(told, None)
    now = 0.0
    while now < 4000.0:
        now += reads
        while upcoming is not None and upcoming[2] <= now:
            agent.beat(upcoming[0], upcoming[2])
            upcoming = next(told, None)
        agent.tick(now)
        disk.heartbeats = {"7.0/heartbeat-0": b"%d" % sum(landed <= now for _, landed, _ in turns)}
        if successor.look(now):
            break
    assert state(agent) in (FenceState.STOPPED, FenceState.GONE)


def test_a_silence_of_the_file_system_is_no_silence_of_the_code() -> None:
    watchdog = StallDetector(60.0)
    for now in (0.0, 1.0, 2.0, 3.0, 4.0):
        watchdog.on_report("step", 1, now)
    assert watchdog.verdict(184.0) != ""
    watchdog.forgive(180.0, 184.0)
    assert watchdog.verdict(184.0) == ""
    assert watchdog.verdict(245.0) != ""


def test_forgiving_never_reaches_into_the_future() -> None:
    watchdog = StallDetector(60.0)
    watchdog.on_report("step", 1, 100.0)
    watchdog.forgive(500.0, 110.0)
    assert watchdog.verdict(110.0 + 30 * 60.0 + 1.0) != ""
