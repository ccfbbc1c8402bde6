"""Commands that look change nothing: no verb but those that act submits, cancels, ends or records anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.launcher.bench import Bench, PickyBackend
from windlass import Run
from windlass.backends import Rendered, Submission
from windlass.cli import main
from windlass.cli.catalogue import LazyGroup
from windlass.cli.completion.runs import complete_runs
from windlass.launcher.client import client_journal
from windlass.record import events
from windlass.record.journal import read_journal
from windlass.record.state import State

LOOKING: dict[str, tuple[str, ...]] = {
    "ps": ("--all", "--json"),
    "show": ("RUN",),
    "logs": ("RUN", "--attempt", "all"),
    "outputs fetch": ("RUN",),
    "outputs ls": ("RUN",),
    "outputs pull": ("RUN", "main", "--to", "pulled"),
    "outputs push": ("RUN", "file:///nonexistent"),
    "diff": ("RUN", "RUN"),
    "verify": ("--quick", "RUN"),
    "archive export": ("RUN", "-o", "run.tar"),
    "plan": ("play.yaml",),
    "sweep ls": (),
    "sweep show": ("RUN",),
    "sweep best": ("RUN",),
    "sweep why": ("RUN", "1"),
    "sweep export": ("RUN", "x.csv"),
    "train samples": ("RUN",),
    "ckpt ls": (".",),
    "ckpt verify": (".",),
    "ckpt diff": (".", "."),
    "ckpt compare-loss": (".", "."),
    "ckpt evaluate": (".", "rows.jsonl"),
    "ckpt export": (".",),
    "ckpt generate": (".",),
    "cluster ls": (),
    "cluster show": ("lab",),
    "cluster logs": ("lab",),
    "cluster monitor": ("lab",),
    "cluster dashboard": ("lab",),
    "cluster get-head-ip": ("lab",),
    "cluster get-worker-ips": ("lab",),
    "cluster import": ("play.yaml",),
    "doctor": (),
    "secret ls": (),
    "data ls": (),
    "data show": ("nothing",),
    "site ls": (),
    "site show": ("local",),
    "image ls": (),
    "image show": ("nothing",),
    "config schema": (),
    "explain": ("unknown-key",),
    "completion": ("bash",),
}
"""Verbs that look, each with arguments; `RUN` stands for a run."""

ALSO_LOOKING = (
    ("ps",),
    ("ps", "--state", "running"),
    ("show", "RUN", "--json"),
    ("show", "RUN", "--provenance"),
    ("show", "RUN", "--provenance", "--json"),
    ("show", "RUN", "--graph", "mermaid"),
    ("logs", "RUN", "--json"),
    ("logs", "RUN", "--task", "main", "--replica", "0"),
    ("gc",),
    ("gc", "--json"),
    ("rerun", "RUN", "--render"),
    ("launch", "play.yaml", "--render"),
)

ACTING = frozenset(
    {
        *("init", "launch", "train", "train worker", "stop", "retry", "resume", "rerun", "gc", "mason", "gantry run"),
        *("sweep launch", "sweep resume", "sweep stop", "sweep extend", "ckpt import", "archive import"),
        *("secret set", "secret rm", "site add", "site check", "image build"),
        *("cluster up", "cluster down", "cluster submit", "cluster exec", "cluster attach", "cluster reconcile"),
        *("cluster sync", "cluster rsync-up", "cluster rsync-down"),
        *("data add", "data build", "data gc", "data pull", "data push", "data rm"),
    }
)
"""Verbs that do what their name says; of runs, only those that they are told of."""


def leaves(command: click.Command, *path: str) -> Iterator[str]:
    for name, member in getattr(command, "members", {}).items():
        yield from leaves(member, *path, name)
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        member = command.get_command(context, name)
        assert member is not None
        yield from leaves(member, *path, name)


def test_every_verb_is_known_to_look_or_to_act() -> None:
    found = {name for name in leaves(LazyGroup("windlass")) if not name.startswith("beaker ")}
    assert found == {*LOOKING, *ACTING}


def says(run: Run, kind: str, **data: Any) -> None:
    with client_journal(run.folder.journal) as journal:
        journal.append(kind, **data)


def starts(run: Run) -> None:
    says(
        run,
        events.ATTEMPT_STARTED,
        task="main",
        job=1,
        attempt=1,
        epoch=1,
        leader=0,
        address="a",
        port=1,
    )
    says(run, events.PROCESS_STARTING, task="main", attempt=1, rank=0)


def ends(run: Run, verdict: State, cause: str) -> None:
    end = {"cause": cause}
    says(run, events.PROCESS_ENDED, task="main", attempt=1, rank=0, end=end)
    says(run, events.ATTEMPT_ENDED, task="main", job=1, attempt=1, epoch=1, end=end)
    says(run, events.TASK_ENDED, task="main", job=1, attempt=1, verdict=str(verdict), cause=cause, message="")


def lost(bench: Bench, backend: PickyBackend) -> Run:
    run = bench.launch()
    starts(run)
    backend.lose("main-1")
    return run


def lost_for_the_last_time(bench: Bench, backend: PickyBackend) -> Run:
    run = bench.launch({"run": "true", "retry": {"interrupted": 0}})
    starts(run)
    backend.lose("main-1")
    return run


def not_submitted(bench: Bench, backend: PickyBackend) -> Run:
    backend.faults.lost_requests = 1
    with pytest.raises(Exception, match="did not answer"):
        bench.launch()
    return bench.only_run()


def stopped_in_the_queue(bench: Bench, backend: PickyBackend) -> Run:
    run = bench.launch()
    says(run, events.STOP_REQUESTED, tasks={"main": 1}, reason="by hand", is_checkpoint_wanted=False)
    return run


def between_jobs(bench: Bench, backend: PickyBackend) -> Run:
    run = bench.launch()
    starts(run)
    says(run, events.ATTEMPT_ENDED, task="main", job=1, attempt=1, epoch=1, end={"cause": "preempted"})
    backend.lose("main-1")
    return run


def with_loose_ends(bench: Bench, backend: PickyBackend) -> Run:
    run = bench.launch()
    starts(run)
    says(run, events.TASK_ENDED, task="main", job=1, attempt=1, verdict="failed", cause="node-lost", message="")
    backend.lose("main-1")
    return run


def with_a_job_left_in_the_queue(bench: Bench, backend: PickyBackend) -> Run:
    run = bench.launch()
    (token,) = backend._jobs
    says(run, events.JOB_INTENDED, task="main", job=2, token="t2", backend="slurm", resets_budgets=False)
    says(run, events.JOB_SUBMITTED, task="main", job=2, backend_id=token, locator="")
    starts(run)
    ends(run, State.SUCCEEDED, "ok")
    return run


def without_its_launch(bench: Bench, backend: PickyBackend) -> Run:
    run = bench.launch()
    for path in run.folder.journal.iterdir():
        path.unlink()
    shutil.rmtree(run.folder.jobs)
    run.folder.jobs.mkdir()
    return run


def damaged(bench: Bench, backend: PickyBackend) -> Run:
    run = bench.launch()
    for path in run.folder.journal.iterdir():
        path.unlink()
    (run.folder.jobs / "main-1").mkdir(exist_ok=True)
    return run


SITUATIONS: dict[str, Callable[[Bench, PickyBackend], Run]] = {
    make.__name__: make
    for make in (
        *(lost, lost_for_the_last_time, not_submitted, stopped_in_the_queue, between_jobs, with_loose_ends),
        *(with_a_job_left_in_the_queue, without_its_launch, damaged),
    )
}
NEEDS = {
    "lost": "submits job 2",
    "lost_for_the_last_time": "records that and its end: failed (unknown)",
    "not_submitted": "submits job 1",
    "stopped_in_the_queue": "cancels it",
    "between_jobs": "submits job 2",
    "with_a_job_left_in_the_queue": "cancels it",
    "damaged": "no record of job 1 of main",
}
"""What `windlass show` says that it needs; some have ended, and a look at those is not worth the time."""


class Untouched:
    """Fails a test that does anything to a run or to its place."""

    def __init__(self, run: Run, backend: PickyBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run, self.calls = run, list[str]()
        for name in ("submit", "cancel", "sweep", "let_go", "unqueue"):
            monkeypatch.setattr(type(backend), name, self._refusal(name), raising=False)
        self._records = self._said()

    def _refusal(self, name: str) -> Callable[..., None]:
        def refuse(backend: PickyBackend, job: Submission | Rendered) -> None:
            self.calls.append(name)
            raise AssertionError(f"a command that looks called `{name}`")

        return refuse

    def _said(self) -> list[str]:
        return sorted(
            f"{record.writer} {record.seq} {record.kind}" for record in read_journal(self._run.folder.journal)
        )

    def check(self, words: object) -> None:
        assert self.calls == [], words
        assert self._said() == self._records, words


@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_verb_that_looks_changes_anything(
    situation: str, bench: Bench, backend: PickyBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("play.yaml").write_text("name: play\nrun: 'true'\n")
    run = SITUATIONS[situation](bench, backend)
    untouched = Untouched(run, backend, monkeypatch)
    for verb, arguments in LOOKING.items():
        words = [*verb.split(), *(run.id if word == "RUN" else word for word in arguments)]
        main(words)
        untouched.check(words)
    for line in ALSO_LOOKING:
        words = [run.id if word == "RUN" else word for word in line]
        main(words)
        untouched.check(words)
    assert complete_runs(click.Context(LazyGroup("windlass")), click.Argument(["run"]), "play")
    untouched.check("completion")


@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_property_in_python_changes_anything(
    situation: str, bench: Bench, backend: PickyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SITUATIONS[situation](bench, backend)
    untouched = Untouched(run, backend, monkeypatch)
    found = Run.find(run.id, bench.home)
    for name in ("id", "facts", "state", "plan", "outputs"):
        getattr(found, name)
        untouched.check(name)
    for use in (repr, Run.check, Run.provenance, lambda one: one.metrics("loss"), lambda one: one.diff(one)):
        use(found)
        untouched.check(use)


@pytest.mark.parametrize(("situation", "words"), NEEDS.items())
def test_show_says_what_a_run_needs(
    situation: str, words: str, bench: Bench, backend: PickyBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SITUATIONS[situation](bench, backend)
    capsys.readouterr()
    assert main(["show", run.id]) == 0
    said = capsys.readouterr().out
    assert words in said
    assert ("--reconcile" in said) == (situation != "damaged")


@pytest.mark.parametrize("verb", [("ps", "--reconcile"), ("show", "RUN", "--reconcile")])
def test_with_reconcile_a_lost_run_goes_on(
    verb: tuple[str, ...], bench: Bench, backend: PickyBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lost(bench, backend)
    assert main([run.id if word == "RUN" else word for word in verb]) == 0
    assert "submitted job 2 of main" in capsys.readouterr().err
    assert backend.taken == ["main-1", "main-2"]


def test_with_reconcile_what_is_left_of_a_run_that_ended_is_cancelled_once(
    bench: Bench, backend: PickyBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    run = with_a_job_left_in_the_queue(bench, backend)
    assert run.reconcile() == ["cancelled job 2 of main"]
    assert run.facts.task("main").jobs[2].is_gone
    num_observations = backend.num_observations
    assert run.reconcile() == []
    assert backend.num_observations == num_observations
    assert run.state is State.SUCCEEDED


def test_cron_goes_on_with_a_run_that_was_lost(
    bench: Bench, backend: PickyBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--if-changed` on a run that died with its machine: it goes on, and no second one is made."""
    (bench.code / "play.yaml").write_text("name: play\nrun: 'true'\n")
    monkeypatch.chdir(bench.code)
    argv = ["launch", "play.yaml", "--allow-dirty", "-d", "--if-changed"]
    assert main(argv) == 0
    run = bench.only_run()
    starts(run)
    backend.lose("main-1")
    assert main(argv) == 0
    assert bench.only_run().id == run.id
    assert backend.taken == ["main-1", "main-2"]
    assert f"unchanged: {run.id} queued" in capsys.readouterr().err


def test_nothing_is_done_for_a_run_whose_record_is_damaged(bench: Bench, backend: PickyBackend) -> None:
    run = damaged(bench, backend)
    backend.lose("main-1")
    (said,) = run.reconcile()
    assert said.startswith(f"nothing was done for {run.id}: ")
    assert "no record of job 1 of main" in said
    assert backend.taken == ["main-1"]


def test_a_run_with_jobs_whose_provenance_was_deleted_is_not_an_interrupted_launch(
    bench: Bench, backend: PickyBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    run = bench.launch()
    starts(run)
    (run.folder.path / "provenance.json").unlink()
    capsys.readouterr()
    assert main(["show", run.id]) == 0
    assert "staged" not in capsys.readouterr().out
    assert run.reconcile() == []
    assert run.state is State.RUNNING
    backend.lose("main-1")
    assert run.reconcile() == [
        "job 1 of main was lost: its job is gone; no reason is known",
        "submitted job 2 of main",
    ]
