from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.bench import Bench, PickyBackend, commit
from windlass import Options, launch
from windlass.core.errors import AccessError, NotFoundError, PreconditionError, UnreachableError, WindlassError
from windlass.core.files import lock
from windlass.launcher import client, prepare
from windlass.launcher.client import launch_lock
from windlass.launcher.prepare import Prepared
from windlass.launcher.reconcile.reconciler import reconcile_run
from windlass.launcher.stage import stage
from windlass.pin.code import checkouts
from windlass.record import events
from windlass.record.state import State
from windlass.runs.store import RunFolder, create
from windlass.secrets.delivery import delivery_folders
from windlass.secrets.vault import Vault
from windlass.supervise.remote.delivery import read_delivery

VALUE = b"xK9-planted/value"


def deliveries(bench: Bench) -> list[Path]:
    return [path for folder in delivery_folders(bench.home.path) if folder.is_dir() for path in folder.iterdir()]


# ------------------------------------------------------------------------------------------------------- a launch


def test_everything_is_intended_before_anything_is_made(bench: Bench, backend: PickyBackend) -> None:
    run = bench.launch(bench.tasks("a", "b"))
    assert bench.kinds(run) == [
        events.RUN_CREATED,
        events.NOTE,
        events.JOB_INTENDED,
        events.JOB_INTENDED,
        events.JOB_SUBMITTED,
        events.JOB_SUBMITTED,
    ]
    assert backend.taken == ["a-1", "b-1"]
    jobs = [task.jobs[1] for task in run.facts.tasks.values()]
    assert len({job.token for job in jobs}) == 2
    assert all(len(job.token) == 32 and job.backend == "local" and job.resets_budgets for job in jobs)
    assert run.state is State.QUEUED
    assert repr(run) == f"<Run {run.id}: queued>"
    assert run.facts.plan_hash == run.plan.plan_hash
    assert bench.left() == [run.id]
    assert run.reconcile() == []


def test_a_launch_opens_the_repository_once_and_makes_each_document_once(
    bench: Bench, backend: PickyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.code / "train.py").write_text("")
    commit(bench.code)
    calls: list[str] = []
    for module, name in ((prepare, "open_repository"), (checkouts, "open_repository"), (client, "job_document")):
        made = getattr(module, name)

        def count(*given: Any, name: str = name, made: Callable[..., Any] = made, **more: Any) -> Any:
            calls.append(name)
            return made(*given, **more)

        monkeypatch.setattr(module, name, count)
    run = launch(bench.prepare(bench.tasks("a", "b"), Options()))
    assert (run.folder.code / "train.py").exists()
    assert calls == ["open_repository", "job_document", "job_document"]
    assert backend.taken == ["a-1", "b-1"]


def test_notes_of_the_plan_are_on_record(bench: Bench) -> None:
    run = bench.launch({"run": "true", "context": {"group": "team"}})
    assert [note[4] for note in run.facts.notes] == [
        "context.group=team: recorded",
        "the code runs in place and is not pinned: later edits reach attempts that start after them",
    ]


def test_provenance_says_what_the_run_was_made_from(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_SECRET_TOKEN", VALUE.decode())
    (bench.code / "corpus.txt").write_text("words")
    (bench.code / "train.py").write_text("")
    commit(bench.code)
    data = {
        "run": "python train.py ${params.seed}",
        "params": {"seed": 7},
        "data": {"corpus": "file:corpus.txt"},
        "env": {"vars": {"A": "1"}, "secrets": ["TOKEN"]},
    }
    run = launch(bench.prepare(data, Options()))
    record: dict[str, Any] = run.folder.provenance()
    assert record["run"] == run.id
    assert record["plan_hash"] == run.plan.plan_hash
    assert record["base"] == str(bench.code)
    assert record["seeds"] == {"seed": 7}
    assert record["secrets"] == ["TOKEN"]
    assert record["code"]["kind"] == "commit"
    assert len(record["code"]["commit"]) == 40
    assert record["data"][0]["size_bytes"] == 5
    (replica,) = record["replicas"]
    assert (replica["task"], replica["rank"]) == ("main", 0)
    assert replica["command"][-1] == "python train.py 7"
    assert replica["variables"]["A"] == "1"
    assert record["host"]["windlass_version"]
    assert (run.folder.code / "train.py").exists()


def test_a_secrets_value_is_in_no_file_of_the_run(bench: Bench) -> None:
    Vault(bench.home.vault).set("TOKEN", VALUE)
    run = bench.launch({"run": "true", "env": {"secrets": ["TOKEN"]}})
    texts = {path.name: path.read_bytes() for path in run.folder.path.rglob("*") if path.is_file()}
    assert {"plan.json", "provenance.json", "places.json"} <= set(texts)
    assert not [name for name, text in texts.items() if VALUE in text]
    assert b"TOKEN" in texts["provenance.json"]
    (delivered,) = deliveries(bench)
    assert delivered.stat().st_mode & 0o777 == 0o600
    run.stop(now=True)
    assert run.state is State.STOPPED
    assert deliveries(bench) == []


def test_a_secret_of_another_name_reaches_its_variable(bench: Bench) -> None:
    Vault(bench.home.vault).set("me_TOKEN", VALUE)
    run = bench.launch({"run": "true", "env": {"secrets": [{"name": "TOKEN", "from": "me_TOKEN"}]}})
    (delivered,) = deliveries(bench)
    assert read_delivery(delivered) == {"TOKEN": VALUE}
    assert run.folder.provenance()["secrets"] == ["me_TOKEN"]
    run.stop(now=True)


# --------------------------------------------------------------------------------- what fails before the first job


def change_the_data(bench: Bench, prepared: Prepared) -> None:
    (bench.code / "corpus.txt").write_text("other words")


def remove_the_data(bench: Bench, prepared: Prepared) -> None:
    (bench.code / "corpus.txt").unlink()


def remove_the_commit(bench: Bench, prepared: Prepared) -> None:
    (bench.code / ".git").rename(bench.code / "gone")
    for path in bench.home.cache.glob("code.git"):
        path.rename(path.with_name("gone.git"))


def remove_the_secret(bench: Bench, prepared: Prepared) -> None:
    Vault(bench.home.vault).remove("TOKEN")


@pytest.mark.parametrize(
    ("spoil", "kind", "slug"),
    [
        (change_the_data, PreconditionError, "input-changed"),
        (remove_the_data, NotFoundError, "file-not-found"),
        (remove_the_commit, WindlassError, ""),
        (remove_the_secret, AccessError, "secret-missing"),
    ],
)
def test_what_is_spoilt_after_the_plan_leaves_no_run_behind(
    spoil: Callable[[Bench, Prepared], None],
    kind: type[WindlassError],
    slug: str,
    bench: Bench,
    backend: PickyBackend,
) -> None:
    (bench.code / "corpus.txt").write_text("words")
    commit(bench.code)
    Vault(bench.home.vault).set("TOKEN", VALUE)
    data = {"run": "true", "data": {"corpus": "file:corpus.txt"}, "env": {"secrets": ["TOKEN"]}}
    prepared = bench.prepare(data, Options())
    spoil(bench, prepared)
    with pytest.raises(kind) as caught:
        launch(prepared)
    assert slug in ("", caught.value.code)
    assert bench.left() == []
    assert backend.taken == []
    assert deliveries(bench) == []


@pytest.mark.parametrize("failure", [PreconditionError("the build failed", code="build-failed"), KeyboardInterrupt()])
def test_an_environment_that_cannot_be_built_leaves_no_run_behind(
    failure: BaseException, bench: Bench, backend: PickyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_more: object) -> object:
        raise failure

    monkeypatch.setattr(stage, "ensure_environment", fail)
    with pytest.raises(type(failure)):
        bench.launch()
    assert bench.left() == []
    assert backend.taken == []


# ------------------------------------------------------------------------------------------- what is lost on the way


@pytest.mark.parametrize("fault", ["lost_replies", "lost_requests"])
def test_no_answer_and_the_next_look_goes_on(fault: str, bench: Bench, backend: PickyBackend) -> None:
    setattr(backend.faults, fault, 1)
    with pytest.raises(UnreachableError, match="the fake scheduler did not answer"):
        bench.launch(bench.tasks("a", "b"))
    run = bench.only_run()
    assert [job.is_submitted for task in run.facts.tasks.values() for job in task.jobs.values()] == [False, False]
    assert run.reconcile() == ["submitted job 1 of a again", "submitted job 1 of b again"]
    assert sorted(backend.taken) == ["a-1", "b-1"]
    assert run.reconcile() == []


def test_a_launch_in_progress_is_left_alone(bench: Bench, backend: PickyBackend) -> None:
    backend.faults.lost_requests = 1
    with pytest.raises(UnreachableError):
        bench.launch()
    run = bench.only_run()
    with lock(launch_lock(bench.home, run.id)):
        assert run.reconcile() == []
    assert backend.taken == []
    assert run.reconcile() == ["submitted job 1 of main again"]


def planned(bench: Bench) -> RunFolder:
    """A run whose launching command died right after it had made the folder."""
    prepared = bench.prepare(bench.tasks("a", "b"))
    return create(bench.home, "play-00000000", {"plan.json": json.dumps(prepared.plan.to_data()).encode()})


def test_a_run_without_its_things_fails(bench: Bench, backend: PickyBackend) -> None:
    run = planned(bench)
    assert reconcile_run(run, bench.home) == ["the command that launched it ended before all files were staged"]
    facts = run.facts()
    assert facts.state is State.FAILED
    assert facts.cause == "start-failed"
    assert backend.taken == []
    assert reconcile_run(run, bench.home) == []


def test_a_staged_run_is_taken_over(bench: Bench, backend: PickyBackend) -> None:
    run = planned(bench)
    stage.stage_run(bench.prepare(bench.tasks("a", "b")), run, lambda line: None)
    done = reconcile_run(run, bench.home)
    assert done == [
        "took over an interrupted launch",
        "submitted job 1 of a",
        "submitted job 1 of b",
    ]
    assert backend.taken == ["a-1", "b-1"]
    assert run.facts().state is State.QUEUED


def test_a_folder_without_a_plan_is_none_of_ours(bench: Bench) -> None:
    run = create(bench.home, "play-00000000")
    assert reconcile_run(run, bench.home) == []
    assert run.facts().state is State.PLANNED


# ------------------------------------------------------------------------------------------------------- refusals


def test_a_refused_task_takes_the_others_with_it(bench: Bench, backend: PickyBackend) -> None:
    backend.refuses = {"b"}
    with pytest.raises(PreconditionError, match="no node can hold b") as caught:
        bench.launch(bench.tasks("a", "b", "c", "d"))
    assert caught.value.code == "unschedulable"
    assert backend.taken == ["a-1"]
    run = bench.only_run()
    assert {name: str(task.state) for name, task in run.facts.tasks.items()} == {
        "a": "stopped",
        "b": "failed",
        "c": "stopped",
        "d": "stopped",
    }
    ends = {name: task.end[1:3] for name, task in run.facts.tasks.items() if task.end}
    reason = "task b was refused: no node can hold b"
    assert ends == {
        "a": ("cancelled", reason),
        "b": ("start-failed", "no node can hold b"),
        "c": ("cancelled", reason),
        "d": ("cancelled", reason),
    }
    backend.refuses = set()
    assert run.reconcile() == []
    run.stop(now=True)
    assert run.state is State.FAILED
    assert run.facts.cause == "start-failed"
    assert backend.taken == ["a-1"]


def test_a_refused_run_can_be_tried_again(bench: Bench, backend: PickyBackend) -> None:
    backend.refuses = {"a"}
    with pytest.raises(PreconditionError, match="no node can hold a"):
        bench.launch(bench.tasks("a", "b"))
    run = bench.only_run()
    assert run.state is State.FAILED
    backend.refuses = {"b"}
    with pytest.raises(PreconditionError, match="no node can hold b"):
        run.retry()
    assert backend.taken == ["a-2"]
    assert run.facts.task("a").state is State.STOPPED
    backend.refuses = set()
    run.stop(now=True)
    assert run.retry() == ["a", "b"]
    assert backend.taken == ["a-2", "a-3", "b-3"]
    assert {task.state for task in run.facts.tasks.values()} == {State.QUEUED}


def test_a_refusal_met_by_a_look_is_told_and_not_raised(bench: Bench, backend: PickyBackend) -> None:
    backend.faults.lost_requests = 1
    with pytest.raises(UnreachableError):
        bench.launch()
    run = bench.only_run()
    backend.refuses = {"main"}
    assert run.reconcile() == ["the place refused job 1 of main: no node can hold main", "main failed: start-failed"]
    assert run.state is State.FAILED
    assert run.reconcile() == []
