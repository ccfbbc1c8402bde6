"""Stop, kill, retry and resume of runs whose jobs only wait; with processes: test_runs.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.launcher.bench import Bench, PickyBackend
from windlass.core.errors import PreconditionError, SpecError, UsageError
from windlass.launcher import control
from windlass.launcher.client import client_journal
from windlass.launcher.reconcile import reconciler
from windlass.record import events
from windlass.record.state import State


def test_a_stop_is_on_record_and_what_only_waits_ends_at_once(bench: Bench, backend: PickyBackend) -> None:
    run = bench.launch(bench.tasks("a", "b"))
    assert control.stop(run.folder, bench.home, reason="enough", is_checkpoint_wanted=True) == ["a", "b"]
    assert run.state is State.STOPPED
    task = run.facts.task("a")
    assert (task.stopped_job, task.stop_reason, task.is_checkpoint_wanted) == (1, "enough", True)
    assert run.reconcile() == []


def test_only_what_has_not_ended_is_asked_to_stop(bench: Bench) -> None:
    run = bench.launch(bench.tasks("a", "b"))
    bench.say_ended(run, "succeeded", "ok", task="a")
    assert control.stop(run.folder, bench.home) == ["b"]
    bench.say_ended(run, "stopped", "cancelled", task="b")
    records = len(bench.kinds(run))
    assert control.stop(run.folder, bench.home) == []
    assert len(bench.kinds(run)) == records


def test_a_kill_ends_what_waits(bench: Bench, backend: PickyBackend) -> None:
    run = bench.launch(bench.tasks("a", "b"))
    run.stop(now=True)
    assert run.state is State.STOPPED
    ends = [task.end for task in run.facts.tasks.values()]
    assert [end[:3] for end in ends if end] == [(State.STOPPED, "cancelled", "killed by the user")] * 2
    assert backend.schedule() == 0
    assert run.reconcile() == []


def test_what_cannot_be_seen_is_left_alone(bench: Bench, backend: PickyBackend) -> None:
    run = bench.launch()
    backend.faults.is_hidden = True
    assert run.reconcile() == []
    run.stop()
    assert run.reconcile() == []
    assert run.state is State.STOPPING


def test_one_question_for_all_jobs_of_a_run(bench: Bench, backend: PickyBackend) -> None:
    run = bench.launch(bench.tasks("a", "b", "c"))
    assert run.reconcile() == []
    assert backend.num_observations == 1
    for task in ("a", "b", "c"):
        bench.say_ended(run, "succeeded", "ok", task=task)
    assert run.reconcile() == []
    assert backend.num_observations == 1


def test_a_lost_job_is_followed_by_the_next(bench: Bench, backend: PickyBackend) -> None:
    run = bench.launch({"run": "true", "retry": {"interrupted": 1}})
    backend.lose("main-1")
    message = "its job is gone before it started; no reason is known"
    assert run.reconcile() == [f"job 1 of main was lost: {message}", "submitted job 2 of main"]
    assert run.state is State.QUEUED
    backend.lose("main-2")
    assert run.reconcile() == [f"job 2 of main was lost: {message}", "main failed: unknown"]
    assert run.facts.state is State.FAILED
    assert backend.taken == ["main-1", "main-2"]
    assert run.reconcile() == []


@pytest.mark.parametrize("verb", ["retry", "resume"])
def test_a_run_in_motion_is_not_started_again(verb: str, bench: Bench, backend: PickyBackend) -> None:
    run = bench.launch()
    with pytest.raises(PreconditionError) as caught:
        getattr(run, verb)()
    assert caught.value.message == f"run {run.id} is queued and has not ended"
    assert caught.value.hint == f"stop it (windlass stop {run.id}), or follow it: windlass logs {run.id} --follow"
    assert caught.value.code == "run-active"
    assert backend.taken == ["main-1"]


@pytest.mark.parametrize(
    ("verb", "verdict", "cause", "remedy"),
    [
        ("retry", "succeeded", "ok", "start it again as a new run: windlass rerun {}"),
        ("resume", "succeeded", "ok", "start it again as a new run: windlass rerun {}"),
        ("resume", "failed", "user-error", "windlass retry {}"),
    ],
)
def test_nothing_to_start_again(
    verb: str, verdict: str, cause: str, remedy: str, bench: Bench, backend: PickyBackend
) -> None:
    run = bench.launch()
    bench.say_ended(run, verdict, cause)
    with pytest.raises(PreconditionError) as caught:
        getattr(run, verb)()
    assert caught.value.message == f"run {run.id} has nothing to {verb}: it {verdict}"
    assert caught.value.hint == remedy.format(run.id)
    assert caught.value.code == "nothing-to-do"
    assert backend.taken == ["main-1"]


def test_a_launch_that_died_before_all_was_in_place_has_nothing_to_go_on_with(
    bench: Bench, backend: PickyBackend
) -> None:
    run = bench.launch()
    bench.say_ended(run, "failed", "start-failed")
    (run.folder.path / "provenance.json").unlink()
    records = len(bench.kinds(run))
    with pytest.raises(PreconditionError) as caught:
        run.retry()
    assert caught.value.code == "run-damaged"
    assert len(bench.kinds(run)) == records


def test_retry_starts_what_failed_with_fresh_budgets(bench: Bench, backend: PickyBackend) -> None:
    run = bench.launch(bench.tasks("a", "b", "c"))
    for task, verdict, cause in (
        ("a", "succeeded", "ok"),
        ("b", "failed", "user-error"),
        ("c", "stopped", "cancelled"),
    ):
        bench.say_ended(run, verdict, cause, task=task)
    assert run.state is State.FAILED
    assert run.retry() == ["b", "c"]
    assert backend.taken[3:] == ["b-2", "c-2"]
    assert run.facts.task("b").jobs[2].resets_budgets
    assert {name: str(task.state) for name, task in run.facts.tasks.items()} == {
        "a": "succeeded",
        "b": "queued",
        "c": "queued",
    }


def test_resume_starts_what_was_stopped_and_budgets_go_on(bench: Bench, backend: PickyBackend) -> None:
    run = bench.launch(bench.tasks("a", "b"))
    bench.say_ended(run, "failed", "user-error", task="a")
    run.stop()
    assert run.resume() == ["b"]
    job = run.facts.task("b").jobs[2]
    assert job.token not in ("", run.facts.task("b").jobs[1].token)
    assert not job.resets_budgets
    assert not run.facts.task("b").is_stop_wanted
    assert run.facts.task("a").state is State.FAILED
    assert backend.taken[2:] == ["b-2"]


def test_a_secret_is_delivered_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_SECRET_TOKEN", "a-value-of-ours")
    run = bench.launch({"run": "true", "env": {"secrets": ["TOKEN"]}})
    bench.say_ended(run, "failed", "user-error")
    monkeypatch.delenv("WINDLASS_SECRET_TOKEN")
    with pytest.raises(Exception, match="no value for the secret `TOKEN`"):
        run.retry()
    assert run.state is State.FAILED
    assert run.facts.task("main").newest_job == 1
    monkeypatch.setenv("WINDLASS_SECRET_TOKEN", "a-value-of-ours")
    assert run.retry() == ["main"]
    run.stop(now=True)


def test_a_rerun_has_the_same_pins_and_a_new_id(bench: Bench) -> None:
    run = bench.launch({"run": "train ${params.lr}", "params": {"lr": 1}})
    again = run.rerun()
    assert again.id != run.id
    assert again.plan.plan_hash == run.plan.plan_hash
    assert again.facts.notes[-1][4] == f"rerun of {run.id}"
    changed = run.rerun(["params.lr=2"])
    assert changed.plan.pins == run.plan.pins
    assert changed.plan.task("main").argv[-1] == "train 2"
    assert changed.plan.overrides == ("params.lr=2",)


def test_what_a_rerun_keeps(bench: Bench) -> None:
    run = bench.launch()
    with pytest.raises(UsageError) as caught:
        run.rerun(["data.corpus=file:other"])
    assert caught.value.message == "`data.corpus=file:other` cannot change data: a rerun keeps the pins of the old run"
    assert caught.value.hint == "to pin again, start a new run: windlass launch FILE"
    assert caught.value.code == "rerun-pinned"
    with pytest.raises(SpecError, match="unknown key `nodez`"):
        run.rerun(["tasks.main.nodez=2"])
    assert bench.left() == [run.id]


def test_the_journal_of_a_client_is_made_when_it_has_something_to_say(bench: Bench) -> None:
    run = bench.launch()
    assert [path.name.partition("-")[0] for path in run.folder.journal.glob("*.wj")] == ["client"]
    assert bench.kinds(run).count(events.RUN_CREATED) == 1


# ------------------------------------------------------------------------------------------------------- leftovers


@pytest.mark.parametrize("can_sweep", [True, False])
def test_leftovers_are_only_called_killed_where_they_can_be(
    can_sweep: bool, bench: Bench, backend: PickyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a site whose machines cannot be reached from here, the next start must wait for what may still run."""
    if not can_sweep:
        monkeypatch.setattr(reconciler, "CanSweep", int)  # this backend is none
    run = bench.launch()
    with client_journal(run.folder.journal) as journal:
        started: dict[str, Any] = {
            "job": 1,
            "attempt": 1,
            "epoch": 1,
            "leader": "n",
            "address": "",
            "port": 1,
            "incarnation": "11.0",
        }
        journal.append(events.ATTEMPT_STARTED, task="main", **started)
        journal.append(events.PROCESS_STARTING, task="main", attempt=1, rank=0, incarnation="11.0")
    bench.say_ended(run, "failed", "node-lost")
    backend.lose("main-1")
    done = run.reconcile()
    killed, gone = (
        "killed leftover processes of job 1 of main",
        "recorded that job 1 of main is gone",
    )
    assert done == [killed if can_sweep else gone]
    replica = run.facts.task("main").attempts[1].replicas[0]
    assert replica.end is not None
    assert replica.end.cause == "node-lost"
    assert replica.is_certainly_over is can_sweep
    assert run.reconcile() == []
