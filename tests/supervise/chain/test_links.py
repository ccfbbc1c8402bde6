"""What the leader of a link asks of its scheduler, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windlass.core.clock import FakeClock
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.state import End
from windlass.supervise.chain.links import LinkManager
from windlass.supervise.chain.scheduler import PastLink, SchedulerError
from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.gang.journal_view import RunJournalView
from windlass.supervise.gang.messages import ReplicaStatus
from windlass.supervise.job import ChainConfig, Fencing, JobDocument, JobPaths, ReplicaCommand, SiteSettings, TaskShape
from windlass.supervise.slurm.job_listing import mark_of


class FakeScheduler:
    """Remembers what it was asked; `fails` makes every call fail."""

    def __init__(self) -> None:
        self.links: dict[int, str] = {}
        self.cancelled: list[str] = []
        self.avoided: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.excluded: dict[int, tuple[str, ...]] = {}
        self.num_requeued = 0
        self.ended = (Cause.UNKNOWN, "")
        self.why = [(Cause.UNKNOWN, "")]
        self.fails = ""
        self.reads_requests = True
        self.refuses_exclusion = False
        self.is_job_over, self.num_asked_of_job = False, 0
        self.asked_of: PastLink | None = None

    def _check(self) -> None:
        if self.fails:
            raise SchedulerError(self.fails)

    def queue(self, link: int, exclude: Sequence[str]) -> str:
        self._check()
        if exclude and self.refuses_exclusion:
            raise SchedulerError("invalid node name")
        self.links[link] = f"{100 + link}"
        self.excluded[link] = tuple(exclude)
        return self.links[link]

    def queued(self) -> Mapping[int, str]:
        self._check()
        return dict(self.links)

    def cancel(self, ids: Sequence[str]) -> None:
        self._check()
        self.cancelled += ids

    def requeue(self) -> None:
        self._check()
        self.num_requeued += 1

    def avoid(self, ids: Sequence[str], hosts: Sequence[str]) -> None:
        self._check()
        self.avoided.append((tuple(ids), tuple(hosts)))

    def explain_notice(self, *, has_time: bool = False) -> tuple[Cause, str]:
        self._check()
        return self.why.pop(0) if len(self.why) > 1 else self.why[0]

    def is_over(self) -> bool:
        self.num_asked_of_job += 1
        self._check()
        return self.is_job_over

    def is_end_confirmed(self, past: PastLink) -> bool:
        self._check()
        return self.reads_requests

    def let_go(self, ids: Sequence[str]) -> None:
        self._check()

    def how_ended(self, past: PastLink) -> tuple[Cause, str]:
        self._check()
        self.asked_of = past
        return self.ended


class Scene:
    def __init__(self, folder: Path, link: int = 1, *, is_unknown_restart: bool = False, **chain: Any) -> None:
        self.clock, self.scheduler = FakeClock(), FakeScheduler()
        self.heartbeats: dict[str, bytes] = {}
        settings: dict[str, Any] = {"scheduler": "slurm", "mode": "successor", "num_links": 5, **chain}
        self.job = JobDocument(
            *("r-00000000", "main", 1, "token", ReplicaCommand(("true",), cwd=str(folder)), JobPaths(str(folder))),
            chain=ChainConfig(**settings),
            site=SiteSettings(fencing=Fencing(renew_s=1.0, quiet_s=20.0)),
        )
        self.journal = RunJournalView(
            folder / "journal", "main", 0, self.clock, incarnation=f"{100 + link}.0", on_record=lambda _: None
        )
        self.journal.append(events.JOB_INTENDED, job=1, token="token", backend="slurm", resets_budgets=True)
        self.journal.append(events.LINK_STARTED, job=1, link=link, backend_id="x", incarnation="x", host="n0")
        self.links = LinkManager(
            self.job,
            folder,
            Incarnation(
                f"{100 + link}.{int(is_unknown_restart)}",
                link,
                str(100 + link),
                is_unknown_restart=is_unknown_restart,
            ),
            self.journal,
            scheduler=self.scheduler,
            read=lambda *_: dict(self.heartbeats),
        )

    def lose(self, attempt: int, host: str, cause: Cause = Cause.NODE_LOST, incarnation: str = "") -> None:
        """An attempt that ended for the sake of a node."""
        start = {"job": 1, "attempt": attempt, "address": "", "port": 0, "link": 1, "incarnation": incarnation}
        self.journal.append(events.ATTEMPT_STARTED, epoch=1, leader=host, **start)
        end = End(str(cause), host=host).to_data()
        self.journal.append(events.ATTEMPT_ENDED, job=1, attempt=attempt, epoch=1, end=end)

    def begin(self, attempt: int, incarnation: str) -> None:
        start = {"job": 1, "attempt": attempt, "address": "", "port": 0, "link": 1, "incarnation": incarnation}
        self.journal.append(events.ATTEMPT_STARTED, epoch=1, leader="n0", **start)

    def notes(self) -> list[str]:
        self.journal.poll()
        return [note[4] for note in self.journal.facts.notes]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_next_link_is_queued_at_once_and_another_some_seconds_later(scene: Scene) -> None:
    scene.links.queue_next(0.0)
    assert list(scene.scheduler.links) == [2]
    scene.links.tick(3.0)
    assert list(scene.scheduler.links) == [2]
    scene.links.tick(6.0)
    assert list(scene.scheduler.links) == [2, 3]
    assert {2: "102", 3: "103"}.items() <= {
        link.number: link.backend_id for link in scene.journal.task().jobs[1].links.values()
    }.items()


def test_a_link_that_is_queued_by_anybody_is_not_queued_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.journal.append(events.LINK_QUEUED, job=1, link=2, backend_id="77")
    scene.links.queue_next(0.0)
    assert scene.scheduler.links == {}


def test_a_queue_that_forgot_a_link_gets_it_again(scene: Scene) -> None:
    scene.links.queue_next(0.0)
    scene.links.tick(6.0)
    del scene.scheduler.links[2]
    scene.links.tick(300.0)
    assert 2 not in scene.scheduler.links
    scene.links.tick(700.0)
    assert 2 in scene.scheduler.links


def test_a_chain_has_its_length(tmp_path: Path) -> None:
    scene = Scene(tmp_path, link=4)
    scene.links.queue_next(0.0)
    scene.links.tick(10.0)
    assert list(scene.scheduler.links) == [5]


@pytest.mark.parametrize("chain", [{"can_submit": False}, {"mode": "requeue"}, {"mode": "none"}])
def test_where_jobs_queue_nothing_nothing_is_queued(tmp_path: Path, chain: dict[str, Any]) -> None:
    scene = Scene(tmp_path, **chain)
    scene.links.queue_next(0.0)
    scene.links.tick(10.0)
    assert scene.scheduler.links == {}


def test_a_refusal_is_noted_once_and_tried_again(scene: Scene) -> None:
    scene.scheduler.fails = "slurmctld is away"
    scene.links.queue_next(0.0)
    scene.links.tick(10.0)
    assert scene.notes() == ["cannot queue link 2, retrying: slurmctld is away"]
    scene.scheduler.fails = ""
    scene.links.tick(71.0)
    assert list(scene.scheduler.links) == [2, 3]


def test_a_scheduler_that_cannot_do_without_a_node_gets_it(scene: Scene) -> None:
    scene.journal.append(events.NODE_AVOIDED, host="n3.example.org", reason="lost")
    scene.scheduler.refuses_exclusion = True
    scene.links.queue_next(0.0)
    assert scene.scheduler.excluded == {2: ()}
    assert scene.notes() == ["cannot exclude n3.example.org from link 2: invalid node name"]


def test_links_of_earlier_jobs_count(tmp_path: Path) -> None:
    scene = Scene(tmp_path, num_links=3)
    for link in (2, 3):
        scene.journal.append(events.LINK_STARTED, job=1, link=link, backend_id="x", incarnation="x", host="n0")
    scene.journal.append(events.JOB_INTENDED, job=2, token="t", backend="slurm", resets_budgets=False)
    assert scene.journal.task().num_links_begun(2) == 3
    scene.journal.append(events.JOB_INTENDED, job=3, token="t", backend="slurm", resets_budgets=True)
    assert scene.journal.task().num_links_begun(3) == 0


def test_at_the_end_of_the_task_only_the_others_are_cancelled(scene: Scene) -> None:
    scene.scheduler.links = {1: "101", 2: "102", 3: "103"}
    scene.links.cancel_rest()
    assert scene.scheduler.cancelled == ["102", "103"]


def test_a_node_that_was_lost_twice_is_avoided_from_then_on(scene: Scene) -> None:
    scene.links.queue_next(0.0)
    scene.lose(1, "n3")
    scene.lose(2, "n2")
    scene.links.leave()
    assert scene.scheduler.avoided == []
    scene.lose(3, "n3")
    scene.lose(4, "n2", Cause.WALLTIME)
    scene.links.leave()
    assert scene.scheduler.avoided == [(("102",), ("n3",))]
    assert scene.journal.task().avoided == {"n3": "2 attempts were lost on it"}
    scene.links.tick(700.0)
    assert scene.scheduler.excluded[3] == ("n3",)


def test_a_site_that_requeues_is_asked_to(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mode="requeue")
    scene.links.leave()
    assert scene.scheduler.num_requeued == 1


def test_an_attempt_of_a_lost_start_is_waited_for(scene: Scene) -> None:
    scene.begin(1, "55.0")
    scene.heartbeats["p"] = b"1"
    assert scene.links.check_open_attempt(1, 0.0) is None
    assert scene.links.check_open_attempt(1, 10.0) is None
    scene.heartbeats["p"] = b"2"
    assert scene.links.check_open_attempt(1, 19.0) is None
    assert scene.links.check_open_attempt(1, 20.0) is None
    assert scene.links.check_open_attempt(1, 39.0) is None
    assert scene.links.check_open_attempt(1, 41.0) == (Cause.UNKNOWN, "its job ended without recording a result")


def test_a_scheduler_that_heard_from_all_nodes_shortens_the_wait(scene: Scene) -> None:
    scene.begin(1, "55.0")
    scene.scheduler.ended = (Cause.WALLTIME, "Slurm ended it at its walltime")
    assert scene.links.check_open_attempt(1, 0.0) is None
    assert scene.links.check_open_attempt(1, 1.0) is None
    assert scene.links.check_open_attempt(1, 5.0) == (Cause.WALLTIME, "Slurm ended it at its walltime")


def test_a_node_that_was_not_heard_is_waited_for_though_the_scheduler_knows_the_end(scene: Scene) -> None:
    scene.begin(1, "55.0")
    scene.scheduler.ended = (Cause.WALLTIME, "Slurm ended it at its walltime")
    scene.scheduler.reads_requests = False
    for now in (0.0, 1.0, 5.0, 19.0):
        assert scene.links.check_open_attempt(1, now) is None
    assert scene.links.check_open_attempt(1, 22.0) == (Cause.WALLTIME, "Slurm ended it at its walltime")


def test_why_it_must_go_is_asked_until_it_is_known(scene: Scene) -> None:
    scene.scheduler.why = [(Cause.UNKNOWN, ""), (Cause.CANCELLED, "it was cancelled in Slurm")]
    told = scene.links.explain(ReplicaStatus(0, notice="n1 sent SIGTERM to the supervisor"), 0.0)
    assert (told.notice_cause, told.notice) == ("cancelled", "it was cancelled in Slurm")


def test_why_it_must_go_is_asked_again_while_it_stops_until_that_is_certain(scene: Scene) -> None:
    status = ReplicaStatus(0, notice="n1 sent SIGTERM to the supervisor")
    scene.scheduler.fails = "no answer"
    assert scene.links.explain(status, 0.0).notice_cause == "preempted"
    scene.scheduler.fails, scene.scheduler.why = "", [(Cause.CANCELLED, "it was cancelled in Slurm")]
    assert scene.links.explain(status, 0.5).notice_cause == "preempted"
    scene.scheduler.why = [(Cause.KILLED, "its batch script was killed")]
    told = scene.links.explain(status, 1.5)
    assert (told.notice_cause, told.notice) == ("killed", "its batch script was killed")
    scene.scheduler.why = [(Cause.PREEMPTED, "")]
    assert scene.links.explain(status, 9.0) == told


def test_whether_its_job_is_over_is_asked_now_and_then_and_no_more_once_it_is(scene: Scene) -> None:
    scene.scheduler.fails = "no answer"
    assert not any(scene.links.is_job_over(now) for now in (0.0, 1.0, 19.0))
    assert scene.scheduler.num_asked_of_job == 1
    scene.scheduler.fails = ""
    assert not any(scene.links.is_job_over(now) for now in (20.0, 39.0))
    scene.scheduler.is_job_over = True
    assert all(scene.links.is_job_over(now) for now in (40.0, 41.0, 90.0))
    assert scene.scheduler.num_asked_of_job == 3


@pytest.mark.parametrize(
    ("why", "cause", "message"),
    [
        ((Cause.CANCELLED, "it was cancelled in Slurm"), "cancelled", "it was cancelled in Slurm"),
        ((Cause.UNKNOWN, ""), "killed", "its job is over in Slurm"),
    ],
)
def test_a_job_that_ended_without_a_signal_says_why_as_any_other(
    scene: Scene, why: tuple[Cause, str], cause: str, message: str
) -> None:
    scene.scheduler.is_job_over, scene.scheduler.why = True, [why]
    assert scene.links.is_job_over(0.0)
    told = scene.links.explain(ReplicaStatus(0, notice="its job is over in Slurm"), 0.0)
    assert (told.notice_cause, told.notice) == (cause, message)


def test_a_start_that_the_scheduler_forgot_was_killed_by_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, is_unknown_restart=True)
    scene.begin(1, "101.0")
    for now in (0.0, 1.0, 19.0):
        assert scene.links.check_open_attempt(1, now) is None
    found = scene.links.check_open_attempt(1, 22.0)
    assert found == (Cause.KILLED, "Slurm forgot start 0 of its job, and started the job again")


def test_a_link_that_got_the_id_of_an_earlier_one_is_not_that_one(tmp_path: Path) -> None:
    """The controller forgot link 1, and what it says of the id is about this link."""
    scene = Scene(tmp_path, link=3, is_unknown_restart=True)
    scene.journal.append(events.LINK_STARTED, job=1, link=1, backend_id="103", incarnation="103.0", host="n0")
    scene.begin(1, "103.0")
    for now in (0.0, 1.0, 19.0):
        assert scene.links.check_open_attempt(1, now) is None
    found = scene.links.check_open_attempt(1, 22.0)
    assert found == (Cause.KILLED, "Slurm forgot its job, and gave the id 103 to the job of link 3")
    assert scene.scheduler.asked_of is None


def test_a_link_of_an_earlier_job_is_asked_for_by_the_mark_of_that_job(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mark="of job 2")
    scene.links._job = replace(scene.job, job=2)
    scene.journal.append(events.JOB_INTENDED, job=2, token="other", backend="slurm", resets_budgets=False)
    scene.clock.sleep(5.0)
    scene.journal.append(events.LINK_STARTED, job=1, link=4, backend_id="55", incarnation="55.0", host="n0")
    began_at = scene.clock.now()
    scene.begin(1, "55.0")
    for now in (0.0, 1.0, 5.0):
        scene.links.check_open_attempt(1, now)
    assert scene.scheduler.asked_of == PastLink("55", began_at, mark_of("token"), "", 4)


@pytest.mark.parametrize(("signal", "cause"), [("SIGTERM", "preempted"), ("SIGUSR1", "walltime")])
def test_without_an_answer_the_signal_says_what_it_is(scene: Scene, signal: str, cause: str) -> None:
    scene.scheduler.fails = "no answer"
    status = ReplicaStatus(0, notice=f"n1 sent {signal} to the supervisor")
    assert scene.links.explain(status, 0.0) == replace(status, notice_cause=cause)


@pytest.mark.parametrize(
    ("cause", "num_replicas", "ended"),
    [(Cause.NODE_LOST, 2, ["101"]), (Cause.NODE_LOST, 1, []), (Cause.WALLTIME, 2, [])],
)
def test_a_job_whose_node_was_lost_is_ended_for_its_step_may_wait_for_that_one(
    scene: Scene, cause: Cause, num_replicas: int, ended: list[str]
) -> None:
    scene.links._job = replace(scene.job, shape=TaskShape(nodes=num_replicas))
    scene.scheduler.links = {1: "101", 2: "102"}
    scene.lose(1, "n2", cause)
    scene.links.end_job()
    assert scene.scheduler.cancelled == ended


def test_a_job_that_cannot_be_ended_is_noted(scene: Scene) -> None:
    scene.links._job = replace(scene.job, shape=TaskShape(nodes=2))
    scene.lose(1, "n2")
    scene.scheduler.fails = "slurmctld is away"
    scene.links.end_job()
    assert scene.notes() == ["cannot end the job, which may hold its nodes until its walltime ends: slurmctld is away"]
