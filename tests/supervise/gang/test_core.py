from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.supervise.memory_journal_view import MemoryJournalView
from windlass.record import events
from windlass.record.causes import EXIT_RESUMABLE
from windlass.record.facts import EvaluationRule
from windlass.record.retry import Budgets
from windlass.record.state import End, State
from windlass.supervise.gang.core import SETTLE_S, GangConfig, GangCore
from windlass.supervise.gang.membership import LOST_AFTER_S, SILENT_AFTER_S
from windlass.supervise.gang.messages import (
    Command,
    Leave,
    Phase,
    Release,
    ReplicaStatus,
    Respawn,
    SendOrder,
    Step,
    StopLevel,
)


class Scene:
    """A leader, its ledger and its clock."""

    def __init__(
        self, num_replicas: int = 2, journal: MemoryJournalView | None = None, *, epoch: int = 1, **gang: Any
    ) -> None:
        self.journal = journal or MemoryJournalView()
        self.num_replicas = num_replicas
        self.core = GangCore(
            GangConfig(job=gang.pop("job", 1), num_replicas=num_replicas, grace_s=5.0, **gang),
            epoch=epoch,
            journal=self.journal,
            now=self.now,
            wall=self.journal.clock.now(),
        )
        self.talking: tuple[int, ...] = ()
        self.commands = self.core.start(self.now)

    @property
    def now(self) -> float:
        return self.journal.clock.monotonic()

    def step(self) -> Step:
        return self.core.order.step

    def level(self) -> StopLevel:
        return self.core.order.level

    def after(self, seconds: float) -> list[Command]:
        """Let time pass in ticks of a second; what the last tick commanded."""
        commands: list[Command] = []
        while seconds > 0:
            self.journal.clock.advance(min(1.0, seconds))
            seconds -= 1.0
            commands = self.core.on_tick(self.now)
            for rank in self.talking:
                self.core.on_status(self.core.membership.statuses[rank], self.now)
        return commands

    def status(
        self, rank: int, phase: Phase, attempt: int = 1, end: End | None = None, notice: str = ""
    ) -> list[Command]:
        host = f"node{rank}"
        said = ReplicaStatus(rank, attempt, phase, host, f"10.0.0.{rank + 1}", 29500 + rank, end, notice)
        return self.core.on_status(said, self.now)

    def end(self, rank: int, cause: str, attempt: int = 1, **facts: Any) -> list[Command]:
        end = End(cause, rank=rank, host=f"node{rank}", at=self.journal.clock.now(), **facts)
        return self.status(rank, Phase.ENDED, attempt, end)

    def run(self, attempt: int = 1) -> None:
        """Through the gate and the barrier."""
        if self.step() is Step.WAIT:
            self.core.on_gate("", self.now)
        for rank in range(self.num_replicas):
            self.status(rank, Phase.READY, attempt)
        for rank in range(self.num_replicas):
            self.status(rank, Phase.STARTED, attempt)
        assert self.step() is Step.RUN

    def cause(self) -> str:
        return str(self.journal.last(events.ATTEMPT_ENDED)["end"]["cause"])


def test_a_normal_life() -> None:
    scene = Scene()
    assert (scene.step(), scene.core.order.attempt) == (Step.WAIT, 1)
    scene.core.on_gate("waits for task prep", scene.now)
    assert scene.journal.task().reason == "waits for task prep"
    scene.core.on_gate("", scene.now)
    assert scene.step() is Step.GATHER
    scene.status(0, Phase.READY)
    assert scene.step() is Step.GATHER
    scene.status(1, Phase.READY)
    assert (scene.step(), scene.core.order.address, scene.core.order.port) == (Step.RUN, "10.0.0.1", 29500)
    scene.end(0, "ok")
    commands = scene.end(1, "ok")
    assert [type(command) for command in commands] == [Release, SendOrder, Leave]
    assert commands[-1] == Leave(0)
    kinds = [kind for kind in scene.journal.kinds() if kind != events.TASK_QUEUED]
    assert kinds == [events.ATTEMPT_STARTED, events.ATTEMPT_ENDED, events.TASK_ENDED]


def test_the_first_failure_is_the_cause_and_not_the_quickest_reporter() -> None:
    scene = Scene(3)
    scene.run()
    first = scene.journal.clock.now()
    late = End("user-error", code=-6, rank=2, at=first + 0.2)
    scene.status(2, Phase.ENDED, end=late)
    assert scene.step() is Step.RUN
    scene.status(1, Phase.ENDED, end=End("out-of-memory", code=1, rank=1, message="CUDA out of memory", at=first))
    scene.after(SETTLE_S)
    assert (scene.step(), scene.core.order.cause) == (Step.STOP, "sibling-failed")
    scene.end(0, "sibling-failed")
    assert scene.cause() == "out-of-memory"
    assert scene.journal.last(events.ATTEMPT_ENDED)["end"]["rank"] == 1


def test_code_that_a_scheduler_signalled_before_its_supervisors_has_not_failed() -> None:
    scene = Scene(incarnation="7.0")
    scene.run()
    for rank in (0, 1):
        scene.end(rank, "user-error", code=-10, message="ended by SIGUSR1")
    assert scene.step() is Step.RUN
    end = End("user-error", rank=0, code=-10)
    scene.status(0, Phase.ENDED, end=end, notice="node0 sent SIGUSR1 to the supervisor")
    assert scene.cause() == "preempted"
    assert scene.journal.task().end is None


def test_who_only_heard_of_a_failure_is_not_its_cause() -> None:
    scene = Scene()
    scene.run()
    scene.status(0, Phase.ENDED, end=End("sibling-failed", rank=0, at=1.0))
    scene.status(1, Phase.ENDED, end=End("user-error", rank=1, code=3, at=2.0))
    assert scene.cause() == "user-error"


def test_a_connection_that_broke_since_its_other_end_died_is_not_the_cause() -> None:
    """The death may be seen some ms later than what it did to others."""
    scene = Scene()
    scene.run()
    scene.status(0, Phase.ENDED, end=End("network", rank=0, code=1, at=1.0, message="Connection reset by peer"))
    scene.status(1, Phase.ENDED, end=End("killed", rank=1, code=-9, at=1.004))
    assert scene.cause() == "killed"


def test_a_connection_that_broke_before_code_failed_is_the_cause() -> None:
    scene = Scene()
    scene.run()
    scene.status(0, Phase.ENDED, end=End("network", rank=0, code=1, at=1.0))
    scene.status(1, Phase.ENDED, end=End("user-error", rank=1, code=1, at=1.004))
    assert scene.cause() == "network"


def test_a_gang_that_is_not_complete_names_who_is_missing() -> None:
    scene = Scene(4, ready_timeout_s=30.0)
    scene.core.on_gate("", scene.now)
    scene.status(0, Phase.READY)
    scene.status(2, Phase.READY)
    scene.after(31)
    assert scene.step() is Step.STOP
    for rank in (0, 2):
        scene.end(rank, "sibling-failed")
    scene.after(5.0 + LOST_AFTER_S + 1)
    assert scene.cause() == "never-ready"
    assert scene.journal.last(events.ATTEMPT_ENDED)["end"]["message"] == "replica 1, 3 of 4 not ready after 30 s"


def test_a_replica_that_was_ready_and_is_gone_does_not_open_the_barrier() -> None:
    scene = Scene()
    scene.core.on_gate("", scene.now)
    scene.status(1, Phase.READY)
    scene.core.on_disconnected(1, scene.now)
    scene.status(0, Phase.READY)
    assert scene.step() is Step.GATHER
    scene.status(1, Phase.READY)
    assert scene.step() is Step.RUN


def test_a_replica_that_was_killed_in_a_job_of_a_scheduler_is_the_next_jobs_to_start() -> None:
    """Nobody starts it again in this one: where it is, is not what ended it."""
    scene = Scene(incarnation="1.0", max_links=3, per_job_s=3600.0)
    scene.run()
    scene.core.on_disconnected(1, scene.now)
    scene.core.membership.on_gone(1, scene.now, "all processes of replica 1")
    scene.after(1)
    scene.end(0, "sibling-failed")
    assert scene.cause() == "killed"
    end = scene.journal.last(events.ATTEMPT_ENDED)["end"]
    assert (end["message"], end["needs_new_job"]) == ("killed from outside: all processes of replica 1", True)
    assert scene.core.is_over
    assert scene.core.order.code == EXIT_RESUMABLE


def test_a_lost_replica_is_named_after_its_time_to_come_back() -> None:
    scene = Scene()
    scene.run()
    scene.core.on_disconnected(1, scene.now)
    scene.after(LOST_AFTER_S - 1)
    assert scene.step() is Step.RUN
    scene.after(2)
    assert scene.step() is Step.STOP
    scene.end(0, "sibling-failed")
    assert scene.cause() == "node-lost"
    assert scene.journal.last(events.ATTEMPT_ENDED)["end"]["message"] == "replica 1 was lost"


def test_a_replica_known_to_be_dead_is_not_waited_for() -> None:
    scene = Scene()
    scene.run()
    scene.core.on_disconnected(1, scene.now)
    assert scene.core.membership.absent == [1]
    scene.core.membership.on_gone(1, scene.now)
    scene.after(1)
    assert scene.step() is Step.STOP


def test_a_connection_that_says_nothing_counts_as_gone() -> None:
    scene = Scene()
    scene.run()
    scene.talking = (0,)
    scene.after(SILENT_AFTER_S - 2)
    assert scene.step() is Step.RUN
    scene.after(LOST_AFTER_S + 5)
    assert scene.step() is Step.STOP


def test_a_leader_that_was_held_up_itself_loses_nobody() -> None:
    scene = Scene()
    scene.run()
    scene.journal.clock.advance(SILENT_AFTER_S * 2)
    scene.core.on_tick(scene.now)
    scene.after(30)
    assert scene.step() is Step.RUN


def test_stop_goes_from_term_to_kill_to_giving_up() -> None:
    scene = Scene()
    scene.run()
    scene.journal.stop()
    scene.after(1)
    assert (scene.step(), scene.level(), scene.core.order.cause) == (Step.STOP, StopLevel.TERM, "cancelled")
    scene.after(5)
    assert scene.level() is StopLevel.KILL
    scene.after(LOST_AFTER_S + 1)
    assert scene.journal.last(events.TASK_ENDED)["verdict"] == "stopped"


def test_code_that_finished_before_the_stop_reached_it_is_a_success() -> None:
    scene = Scene()
    scene.run()
    scene.journal.stop()
    scene.after(1)
    scene.end(0, "ok")
    scene.end(1, "ok")
    assert scene.journal.last(events.TASK_ENDED)["verdict"] == "succeeded"


def test_stop_with_checkpoint_asks_code_that_listens_first() -> None:
    scene = Scene()
    scene.run()
    scene.journal.said_by("train.0.report-1-1", events.COOPERATES, attempt=1, rank=0)
    scene.journal.stop(checkpoint=True)
    scene.talking = (0, 1)
    scene.after(1)
    assert scene.level() is StopLevel.ASK
    scene.after(599)
    assert scene.level() is StopLevel.ASK
    scene.after(2)
    assert scene.level() is StopLevel.TERM


def test_stop_with_checkpoint_does_not_wait_for_code_that_does_not_listen() -> None:
    scene = Scene()
    scene.run()
    scene.journal.stop(checkpoint=True)
    scene.after(1)
    assert scene.level() is StopLevel.TERM


def test_a_plain_stop_hurries_one_that_waits_for_a_checkpoint() -> None:
    scene = Scene()
    scene.run()
    scene.journal.said_by("train.0.report-1-1", events.COOPERATES, attempt=1, rank=0)
    scene.journal.stop(checkpoint=True)
    scene.talking = (0, 1)
    scene.after(3)
    assert scene.level() is StopLevel.ASK
    scene.journal.stop()
    scene.after(1)
    assert scene.level() is StopLevel.TERM
    scene.after(5)
    assert scene.level() is StopLevel.KILL
    scene.after(LOST_AFTER_S + 1)
    assert scene.journal.last(events.TASK_ENDED)["verdict"] == "stopped"


def test_a_stop_before_the_start_ends_the_task_without_an_attempt() -> None:
    scene = Scene()
    scene.journal.stop()
    assert scene.core.on_tick(scene.now)[-1] == Leave(1)
    assert scene.journal.task().attempts == {}
    assert scene.journal.last(events.TASK_ENDED)["verdict"] == "stopped"


def test_a_stop_asked_for_before_the_leader_came_is_seen_before_the_barrier_opens() -> None:
    journal = MemoryJournalView()
    journal.stop()
    scene = Scene(1, journal)
    scene.core.on_gate("", scene.now)
    scene.status(0, Phase.READY)
    assert scene.step() is Step.STOP
    assert events.ATTEMPT_STARTED not in journal.kinds()


def test_a_failed_upstream_fails_the_task() -> None:
    scene = Scene()
    assert scene.core.on_verdict(State.FAILED, "sibling-failed", "upstream task prep did not succeed", scene.now)[
        -1
    ] == Leave(1)
    assert scene.journal.last(events.TASK_ENDED)["cause"] == "sibling-failed"
    assert scene.journal.last(events.TASK_ENDED)["message"] == "upstream task prep did not succeed"


def test_the_next_attempt_starts_in_the_same_job_while_the_budget_lasts() -> None:
    scene = Scene(1, budgets=Budgets(interrupted=1))
    scene.run()
    scene.end(0, "killed")
    scene.after(1)
    assert (scene.step(), scene.core.order.attempt, scene.level()) == (Step.GATHER, 2, StopLevel.NONE)
    scene.run(2)
    scene.end(0, "killed", 2)
    scene.after(1)
    assert scene.journal.last(events.TASK_ENDED)["cause"] == "killed"


def test_the_walltime_of_a_job_asks_listening_code_and_then_stops() -> None:
    scene = Scene(1, per_job_s=100.0)
    scene.run()
    scene.journal.said_by("train.0.report-1-1", events.COOPERATES, attempt=1, rank=0)
    scene.after(84)
    assert scene.step() is Step.RUN
    scene.after(2)
    assert (scene.step(), scene.level(), scene.core.order.cause) == (Step.STOP, StopLevel.ASK, "walltime")
    scene.end(0, "walltime")
    scene.after(1)
    assert scene.cause() == "walltime"
    assert scene.core.order.attempt == 2


def test_waiting_at_the_gate_does_not_use_up_the_walltime() -> None:
    scene = Scene(1, per_job_s=100.0)
    scene.after(500)
    assert scene.step() is Step.WAIT
    scene.run()
    scene.after(50)
    assert scene.step() is Step.RUN


def test_limit_time_counts_from_the_first_start_and_is_final() -> None:
    scene = Scene(1, time_s=60.0)
    scene.after(500)
    scene.run()
    scene.after(59)
    assert scene.step() is Step.RUN
    scene.after(2)
    assert scene.step() is Step.STOP
    scene.end(0, "timeout")
    assert scene.journal.last(events.TASK_ENDED)["cause"] == "timeout"


def test_limit_time_goes_on_counting_under_the_next_leader() -> None:
    scene = Scene(1, time_s=60.0)
    scene.run()
    scene.after(50)
    later = Scene(1, scene.journal, epoch=2, time_s=60.0)
    later.status(0, Phase.STARTED)
    later.after(11)
    assert later.step() is Step.STOP


def test_limit_time_counts_running_time_and_not_the_night_between_two_jobs() -> None:
    scene = Scene(1, time_s=60.0)
    scene.run()
    scene.after(20)
    scene.end(0, "user-error", code=1)
    assert scene.journal.last(events.TASK_ENDED)["cause"] == "user-error"
    scene.journal.clock.advance(12 * 3600)
    scene.journal.intend(2)
    later = Scene(1, scene.journal, job=2, time_s=60.0)
    later.run(2)
    later.after(39)
    assert later.step() is Step.RUN
    later.after(2)
    assert (later.step(), later.core.order.cause) == (Step.STOP, "timeout")


def test_limit_time_counts_a_lost_attempt_until_it_was_last_heard_of() -> None:
    scene = Scene(1, time_s=60.0)
    scene.run()
    scene.after(20)
    report = {"attempt": 1, "rank": 0, "phase": "step", "step": 3}
    scene.journal.said_by("train.0.report-1-1", events.PROGRESS, **report)
    scene.journal.clock.advance(12 * 3600)
    scene.journal.intend(2)
    later = Scene(1, scene.journal, job=2, time_s=60.0)
    assert scene.cause() == "unknown"
    assert scene.journal.task().attempts[1].running_s == pytest.approx(20.0)
    later.run(2)
    later.after(39)
    assert later.step() is Step.RUN


def test_a_task_without_time_left_starts_nothing() -> None:
    scene = Scene(1, time_s=60.0)
    scene.run()
    scene.after(61)
    scene.end(0, "timeout")
    scene.journal.intend(2)
    later = Scene(1, scene.journal, job=2, time_s=60.0)
    assert later.core.on_tick(later.now)[-1] == Leave(1)
    assert later.journal.last(events.TASK_ENDED)["cause"] == "timeout"
    assert len(later.journal.task().attempts) == 1


def test_the_walltime_goes_on_counting_under_the_next_leader() -> None:
    scene = Scene(1, per_job_s=100.0)
    scene.run()
    scene.after(60)
    later = Scene(1, scene.journal, epoch=2, per_job_s=100.0)
    later.status(0, Phase.STARTED)
    later.talking = (0,)
    later.after(34)
    assert later.step() is Step.RUN
    later.after(2)
    assert (later.step(), later.core.order.cause) == (Step.STOP, "walltime")


def test_the_attempt_after_the_walltime_has_as_much_again() -> None:
    scene = Scene(1, per_job_s=100.0)
    scene.run()
    scene.after(86)
    scene.end(0, "walltime")
    scene.after(1)
    scene.run(2)
    scene.after(79)
    assert scene.step() is Step.RUN


def test_a_second_reason_to_stop_does_not_replace_the_first() -> None:
    scene = Scene()
    scene.run()
    scene.end(1, "user-error", code=3)
    scene.after(1)
    scene.journal.stop()
    scene.after(2)
    scene.end(0, "sibling-failed")
    assert scene.cause() == "user-error"
    assert scene.journal.last(events.TASK_ENDED)["verdict"] == "stopped"


def test_a_new_leader_goes_on_with_the_running_attempt() -> None:
    scene = Scene()
    scene.run()
    later = Scene(2, scene.journal, epoch=2)
    assert (later.step(), later.core.order.attempt, later.core.order.epoch) == (Step.RUN, 1, 2)
    later.status(0, Phase.STARTED)
    later.after(LOST_AFTER_S + 1)
    assert later.step() is Step.STOP


def test_a_new_leader_of_a_finished_task_leaves() -> None:
    scene = Scene(1)
    scene.run()
    scene.end(0, "ok")
    assert Scene(1, scene.journal, epoch=2).commands[-1] == Leave(0)


def test_a_job_that_was_superseded_leaves_before_user_code_and_later() -> None:
    journal = MemoryJournalView()
    scene = Scene(1, journal)
    scene.run()
    journal.intend(2)
    assert scene.core.on_tick(scene.now)[-1] == Leave(1)
    assert Scene(1, journal, epoch=2).commands[-1] == Leave(1)


def test_a_leader_leaves_when_somebody_else_ended_the_task() -> None:
    scene = Scene()
    scene.run()
    scene.journal.end_task("failed", "node-lost")
    assert scene.core.on_tick(scene.now)[-1] == Leave(1)


def test_a_leader_catches_up_with_an_end_that_another_leader_recorded() -> None:
    scene = Scene()
    scene.run()
    scene.journal.end_attempt(1, "node-lost", epoch=2)
    scene.after(1)
    assert (scene.step(), scene.core.order.attempt) == (Step.GATHER, 2)


def test_a_clients_word_about_a_living_attempt_waits_for_the_leaders() -> None:
    scene = Scene(1)
    scene.run()
    lost = {"job": 1, "attempt": 1, "cause": "node-lost", "message": "gone"}
    scene.journal.said_by("client", events.JOB_LOST, **lost)
    scene.after(1)
    assert scene.step() is Step.RUN
    scene.end(0, "ok")
    assert scene.journal.last(events.TASK_ENDED)["verdict"] == "succeeded"


def test_a_job_started_again_passes_the_gate_before_its_next_attempt() -> None:
    journal = MemoryJournalView()
    lost = {"job": 1, "attempt": 1, "cause": "node-lost", "message": "gone before its first attempt began"}
    journal.said_by("client", events.JOB_LOST, **lost)
    scene = Scene(1, journal)
    assert (scene.step(), scene.core.order.attempt) == (Step.WAIT, 2)


def test_the_end_of_an_older_jobs_attempt_stays_with_that_job() -> None:
    scene = Scene(1)
    scene.run()
    scene.journal.intend(2)
    later = Scene(1, scene.journal, job=2)
    assert scene.journal.task().attempts[1].job == 1
    assert scene.cause() == "unknown"
    assert (later.step(), later.core.order.attempt) == (Step.WAIT, 2)


def test_a_node_that_must_go_ends_the_attempt_and_the_job() -> None:
    scene = Scene(1)
    scene.run()
    scene.status(0, Phase.STARTED, notice="node0 sent SIGTERM to the supervisor")
    assert scene.step() is Step.STOP
    end = End("preempted", rank=0)
    commands = scene.core.on_status(ReplicaStatus(0, 1, Phase.ENDED, "node0", end=end, notice="SIGTERM"), scene.now)
    assert commands[-1] == Leave(EXIT_RESUMABLE)
    assert scene.journal.task().end is None


def test_what_the_scheduler_says_of_a_notice_while_the_attempt_ends_is_its_cause() -> None:
    scene = Scene(1)
    scene.run()
    told = ReplicaStatus(
        0, 1, Phase.STARTED, "node0", notice="node0 sent SIGTERM to the supervisor", notice_cause="preempted"
    )
    scene.core.on_status(told, scene.now)
    later = replace(told, notice="its batch script was killed", notice_cause="killed")
    scene.core.on_status(replace(later, phase=Phase.ENDED, end=End("preempted", rank=0)), scene.now)
    end = scene.journal.task().attempts[1].end
    assert end is not None
    assert (end.cause, end.message) == ("killed", "its batch script was killed")


def test_absent_replicas_are_started_again_with_patience() -> None:
    scene = Scene(3, can_respawn=True)
    scene.core.on_gate("", scene.now)
    scene.status(0, Phase.READY)
    assert scene.after(1) == [Respawn(1), Respawn(2)]
    assert scene.after(3) == []
    scene.status(1, Phase.READY)
    assert scene.after(2) == [Respawn(2)]


def evaluating() -> tuple[Scene, MemoryJournalView]:
    journal = MemoryJournalView()
    journal.facts.task("train").evaluates = EvaluationRule(of="other", every=1)
    return Scene(1, journal, is_evaluating=True), journal


def test_an_attempt_that_evaluates_names_its_checkpoint_before_user_code_runs() -> None:
    scene, journal = evaluating()
    scene.core.on_gate("", scene.now, {"path": "/c/step-2", "step": 2, "digest": "d"})
    scene.status(0, Phase.READY)
    assert journal.last(events.ATTEMPT_STARTED)["evaluates"] == {"path": "/c/step-2", "step": 2, "digest": "d"}
    assert (scene.core.order.evaluates, scene.core.order.evaluated_step) == ("/c/step-2", 2)
    later = Scene(1, journal, epoch=2, is_evaluating=True)
    assert later.step() is Step.RUN
    assert (later.core.order.evaluates, later.core.order.evaluated_step) == ("/c/step-2", 2)


def test_after_an_evaluation_the_gate_is_asked_again() -> None:
    scene, journal = evaluating()
    for attempt, step in ((1, 2), (2, 4)):
        assert scene.step() is Step.WAIT
        scene.core.on_gate("", scene.now, {"path": f"/c/step-{step}", "step": step, "digest": ""})
        scene.status(0, Phase.READY, attempt)
        scene.end(0, "ok", attempt)
    assert journal.task().end is None
    scene.core.on_verdict(State.SUCCEEDED, "ok", "", scene.now)
    assert journal.task().state is State.SUCCEEDED
