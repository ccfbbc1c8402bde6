from __future__ import annotations

from tests.supervise.memory_journal_view import MemoryJournalView
from windlass.record import events
from windlass.record.state import End
from windlass.supervise.gang.messages import (
    Command,
    KillTree,
    Leave,
    OpenGate,
    Order,
    Phase,
    SendStatus,
    SignalProcess,
    Spawn,
    Step,
    StopLevel,
    WriteControl,
)
from windlass.supervise.replica.core import ReplicaCore


def replica(journal: MemoryJournalView, *, rank: int = 0, job: int = 1) -> ReplicaCore:
    return ReplicaCore(rank, job=job, host="node0", address="10.0.0.1", grace_s=5.0, journal=journal)


def order(step: Step, attempt: int = 1, *, epoch: int = 1, level: StopLevel = StopLevel.NONE, cause: str = "") -> Order:
    return Order(epoch=epoch, attempt=attempt, step=step, address="10.0.0.1", port=29500, level=level, cause=cause)


def kinds(commands: list[Command]) -> list[type]:
    return [type(command) for command in commands]


def started(journal: MemoryJournalView) -> ReplicaCore:
    core = replica(journal)
    core.on_order(order(Step.GATHER), 0.0, 1)
    core.on_order(order(Step.RUN), 0.0, 1)
    core.on_spawned("100:1:boot", ["python"])
    return core


def test_a_normal_life() -> None:
    journal = MemoryJournalView()
    core = replica(journal)
    ready = core.on_order(order(Step.GATHER), 0.0, 29400)
    assert ready == [SendStatus(core.status())]
    assert (core.status().phase, core.status().port, core.status().attempt) == (Phase.READY, 29400, 1)

    assert core.on_order(order(Step.RUN), 1.0, 1) == [Spawn(1, "10.0.0.1", 29500)]
    assert journal.kinds() == [events.PROCESS_STARTING]

    assert kinds(core.on_spawned("100:1:boot", ["python"])) == [OpenGate, SendStatus]
    assert journal.kinds() == [events.PROCESS_STARTING, events.PROCESS_STARTED]

    core.on_ended(End("ok"))
    assert journal.last(events.PROCESS_ENDED)["end"] == {"cause": "ok"}
    assert core.status().phase is Phase.ENDED
    assert core.on_order(order(Step.LEAVE), 2.0, 1) == [Leave(0)]


def test_the_start_is_on_disk_before_the_process_and_its_identity_before_the_gate() -> None:
    journal = MemoryJournalView()
    core = replica(journal)
    core.on_order(order(Step.GATHER), 0.0, 1)
    assert kinds(core.on_order(order(Step.RUN), 0.0, 1)) == [Spawn]
    assert journal.task().attempts[1].replicas[0].is_starting
    commands = core.on_spawned("100:1:boot", ["python"])
    assert journal.task().attempts[1].replicas[0].process == "100:1:boot"
    assert isinstance(commands[0], OpenGate)


def test_a_run_order_may_come_first_or_twice_and_starts_once() -> None:
    core = replica(MemoryJournalView())
    assert kinds(core.on_order(order(Step.RUN), 0.0, 1)) == [Spawn]
    assert kinds(core.on_order(order(Step.RUN), 0.0, 1)) == [SendStatus]
    core.on_spawned("100:1:boot", ["python"])
    assert kinds(core.on_order(order(Step.RUN), 0.0, 1)) == [SendStatus]


def test_a_supervisor_that_comes_back_never_starts_the_attempt_again() -> None:
    journal = MemoryJournalView()
    started(journal)
    core = replica(journal)
    assert core.restore() == 1
    assert core.status().phase is Phase.STARTED
    assert kinds(core.on_order(order(Step.RUN), 0.0, 1)) == [SendStatus]


def test_an_attempt_that_was_only_about_to_start_counts_as_started() -> None:
    journal = MemoryJournalView()
    journal.append(events.PROCESS_STARTING, attempt=1, rank=0)
    core = replica(journal)
    assert core.restore() == 1
    assert core.phase is Phase.STARTED


def test_an_end_that_was_recorded_is_told_again() -> None:
    journal = MemoryJournalView()
    started(journal).on_ended(End("user-error", code=1, rank=0))
    core = replica(journal)
    assert core.restore() == 0
    assert core.status().end == End("user-error", code=1, rank=0)
    assert kinds(core.on_order(order(Step.RUN), 0.0, 1)) == [SendStatus]


def test_restoring_looks_at_this_rank_only() -> None:
    journal = MemoryJournalView()
    started(journal)
    core = replica(journal, rank=1)
    assert core.restore() == 0
    assert core.phase is Phase.IDLE


def test_a_leader_of_a_lower_epoch_is_not_obeyed() -> None:
    core = replica(MemoryJournalView())
    core.on_order(order(Step.GATHER, epoch=2), 0.0, 1)
    assert core.on_order(order(Step.RUN, epoch=1), 0.0, 1) == []
    assert core.order.epoch == 2
    assert core.phase is Phase.READY


def test_an_order_about_an_older_attempt_only_gets_a_status() -> None:
    core = replica(MemoryJournalView())
    core.on_order(order(Step.GATHER, 2), 0.0, 1)
    assert kinds(core.on_order(order(Step.RUN, 1), 0.0, 1)) == [SendStatus]
    assert (core.attempt, core.phase) == (2, Phase.READY)


def test_the_next_attempt_waits_until_the_last_process_is_gone() -> None:
    core = started(MemoryJournalView())
    assert kinds(core.on_order(order(Step.GATHER, 2), 0.0, 1)) == [KillTree]
    assert core.attempt == 1
    core.on_ended(End("killed"))
    core.on_order(order(Step.GATHER, 2), 0.0, 1)
    assert (core.attempt, core.phase) == (2, Phase.READY)


def test_stopping_gets_harder_and_never_repeats_a_level() -> None:
    core = started(MemoryJournalView())
    asked = core.on_order(order(Step.STOP, level=StopLevel.ASK, cause="cancelled"), 0.0, 1)
    assert asked == [WriteControl(True, 0, "cancelled")]
    assert kinds(core.on_order(order(Step.STOP, level=StopLevel.ASK), 1.0, 1)) == [SendStatus]
    assert kinds(core.on_order(order(Step.STOP, level=StopLevel.TERM), 2.0, 1)) == [WriteControl, SignalProcess]
    assert kinds(core.on_order(order(Step.STOP, level=StopLevel.KILL), 3.0, 1)) == [KillTree]
    assert kinds(core.on_order(order(Step.STOP, level=StopLevel.KILL), 4.0, 1)) == [SendStatus]


def test_after_the_grace_it_kills_also_when_the_leader_is_silent() -> None:
    core = started(MemoryJournalView())
    core.on_order(order(Step.STOP, level=StopLevel.TERM), 10.0, 1)
    assert core.on_tick(14.9) == []
    assert kinds(core.on_tick(15.0)) == [KillTree]
    assert core.on_tick(16.0) == []


def test_a_replica_that_had_not_started_ends_without_a_process() -> None:
    journal = MemoryJournalView()
    core = replica(journal)
    core.on_order(order(Step.GATHER), 0.0, 1)
    core.on_order(order(Step.STOP, level=StopLevel.TERM), 0.0, 1)
    assert core.status().end == End("sibling-failed", rank=0, host="node0", message="stopped before it started")
    assert kinds(core.on_order(order(Step.RUN), 0.0, 1)) == [SendStatus]
    assert journal.kinds() == []


def test_a_stall_is_the_cause_of_the_kill_that_follows() -> None:
    journal = MemoryJournalView()
    core = started(journal)
    stall = End("stalled", rank=0, message="no progress for 90 s in phase step")
    assert kinds(core.on_stalled(stall)) == [KillTree]
    assert core.on_stalled(stall) == []
    core.on_ended(End("killed", code=-9))
    assert journal.last(events.PROCESS_ENDED)["end"]["cause"] == "stalled"


def test_a_command_that_cannot_be_executed_is_an_end() -> None:
    journal = MemoryJournalView()
    core = started(journal)
    core.on_spawn_failed(End("start-failed", code=127))
    core.on_ended(End("killed", code=-9))
    assert journal.kinds().count(events.PROCESS_ENDED) == 1
    assert core.status().end == End("start-failed", code=127)


def test_leaving_ends_what_still_runs() -> None:
    commands = started(MemoryJournalView()).on_order(order(Step.LEAVE).but(code=1), 0.0, 1)
    assert kinds(commands) == [KillTree, Leave]
    assert commands[-1] == Leave(1)


def test_alone_it_leaves_when_the_task_ended_or_a_newer_job_has_it() -> None:
    journal = MemoryJournalView()
    core = started(journal)
    assert core.on_alone() == []
    journal.end_task("succeeded", "ok")
    assert kinds(core.on_alone()) == [KillTree, Leave]
    assert core.on_alone()[-1] == Leave(0)

    newer = MemoryJournalView()
    core = replica(newer)
    newer.intend(2)
    assert core.on_alone() == [Leave(1)]


def test_a_port_is_needed_for_a_new_attempt_alone() -> None:
    core = replica(MemoryJournalView())
    assert core.needs_port(order(Step.GATHER))
    assert not core.needs_port(order(Step.WAIT))
    core.on_order(order(Step.GATHER), 0.0, 1)
    assert not core.needs_port(order(Step.GATHER))
    assert not core.needs_port(order(Step.STOP, 2))
    assert core.needs_port(order(Step.RUN, 2))


def test_a_notice_of_its_node_goes_to_the_leader() -> None:
    core = replica(MemoryJournalView())
    core.on_notice("node0 sent SIGTERM to the supervisor")
    assert core.status().notice == "node0 sent SIGTERM to the supervisor"
