"""`windlass beaker` as a person types it, against the fake Beaker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Windlass
from windlass.testing.beaker import FakeBeaker, Status

pytestmark = pytest.mark.system


@pytest.fixture
def beaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBeaker]:
    for name in ("BEAKER_TOKEN", "BEAKER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with FakeBeaker(tmp_path / "beaker") as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        yield fake


def spec_file(tmp_path: Path, line: str, **task: object) -> str:
    path = tmp_path / "spec.yaml"
    content = {
        "version": "v2",
        "tasks": [
            {
                "name": "main",
                "image": {"beaker": "me/image"},
                "command": ["/bin/sh", "-c", line],
                "result": {"path": "/results"},
                "context": {"priority": "normal"},
                "timeout": "5m",
                **task,
            }
        ],
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_a_folder_that_cannot_be_written_to_is_named(windlass: Windlass, beaker: FakeBeaker, tmp_path: Path) -> None:
    file = spec_file(tmp_path, "echo hi")
    windlass("beaker", "submit", file, "--name", "first")
    windlass("beaker", "logs", "-f", "me/first")
    for line in (("logs", "me/first", "--save", file), ("fetch", "me/first", f"{file}/in")):
        said = windlass("beaker", *line)
        assert said.code == 8
        assert f"cannot write to `{line[-1]}`" in said.err


def test_a_spec_is_submitted_watched_and_fetched(windlass: Windlass, beaker: FakeBeaker, tmp_path: Path) -> None:
    made = windlass("beaker", "submit", spec_file(tmp_path, "echo hi; echo x > /results/a"), "--name", "first")
    assert made.code == 0
    (experiment,) = beaker.experiments
    assert (made.out, experiment.name) == (f"{experiment.id}\n", "first")
    assert f"next: windlass beaker logs --follow {experiment.id}\n" in made.err
    assert windlass("beaker", "logs", "-f", "me/first").out == "hi\n"
    shown = windlass("beaker", "show", experiment.id)
    assert shown.out.splitlines()[0] == f"first  succeeded  {experiment.id}"
    assert "exit 0" in shown.out
    data = json.loads(windlass("beaker", "show", "me/first", "--json").out)
    assert (data["schema"], data["jobs"][0]["exit_code"]) == ("windlass.beaker.show/1", 0)
    fetched = windlass("beaker", "fetch", "me/first", str(tmp_path / "back"))
    assert fetched.out == f"{tmp_path / 'back' / 'a'}\n"
    assert (tmp_path / "back" / "a").read_text() == "x\n"
    assert windlass("beaker", "why", "me/first").err == "not waiting: succeeded\n"


def test_replicas_are_told_apart_and_kept(windlass: Windlass, beaker: FakeBeaker, tmp_path: Path) -> None:
    windlass("beaker", "submit", spec_file(tmp_path, "echo hi", replicas=2), "--name", "two")
    beaker.wait("two")
    assert windlass("beaker", "logs", "me/two").out == "[0.1] hi\n[1.1] hi\n"
    assert windlass("beaker", "logs", "me/two", "--replica", "1").out == "[1.1] hi\n"
    assert windlass("beaker", "logs", "me/two", "--save", str(tmp_path / "logs")).err.startswith("2 logs in ")
    assert sorted(path.name for path in (tmp_path / "logs").glob("main*")) == ["main-0.1.log", "main-1.1.log"]
    windlass("beaker", "logs", "me/two", "--save", str(tmp_path / "one"), "--replica", "1")
    assert [path.name for path in (tmp_path / "one").glob("main*")] == ["main-1.1.log"]


def test_tasks_are_told_apart(windlass: Windlass, beaker: FakeBeaker, tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    both = {"image": {"beaker": "me/image"}, "context": {"priority": "normal"}, "result": {"path": "/results"}}
    tasks = [{**both, "name": name, "command": ["echo", name]} for name in ("a", "b")]
    path.write_text(json.dumps({"version": "v2", "tasks": tasks}))
    windlass("beaker", "submit", str(path), "--name", "tasks")
    beaker.wait("tasks")
    assert windlass("beaker", "logs", "me/tasks").out == "[a 0.1] a\n[b 0.1] b\n"
    unclear = windlass("beaker", "fetch", "me/tasks", str(tmp_path / "back"))
    assert (unclear.code, "me/tasks has several tasks: a, b" in unclear.err) == (2, True)
    assert windlass("beaker", "fetch", "me/tasks", str(tmp_path / "back"), "--task", "b").code == 0
    assert windlass("beaker", "fetch", "me/tasks", str(tmp_path / "back"), "--task", "c").code == 4


def test_a_missing_secret_stops_the_submission(windlass: Windlass, beaker: FakeBeaker, tmp_path: Path) -> None:
    file = spec_file(tmp_path, "echo $KEY", envVars=[{"name": "KEY", "secret": "KEY"}])
    refused = windlass("beaker", "submit", file)
    assert refused.code == 5
    assert "has no secret `KEY` (variable KEY)" in refused.err
    assert beaker.experiments == []
    windlass("secret", "set", "KEY", stdin=b"value-4711\n")
    pushed = windlass("beaker", "secret", "push", "KEY")
    assert (pushed.code, pushed.err) == (0, "pushed KEY to lab/main\n")
    assert windlass("beaker", "secret", "ls").out == "KEY\n"
    assert windlass("beaker", "submit", file).code == 0


def test_why_and_cancel(windlass: Windlass, beaker: FakeBeaker, tmp_path: Path) -> None:
    beaker.scenario.slot_limit("no slots are left")
    windlass("beaker", "submit", spec_file(tmp_path, "sleep 600"), "--name", "slow")
    beaker.wait("slow", Status.QUEUED)
    assert windlass("beaker", "why", "me/slow").out.startswith("it is not scheduled: ")
    assert windlass("beaker", "cancel", "me/slow", "--reason", "enough").err == "me/slow is cancelled\n"
    assert "[cancelled: enough]" in windlass("beaker", "show", "me/slow").out


def test_workspaces_and_the_config_file(windlass: Windlass, beaker: FakeBeaker) -> None:
    made = windlass("beaker", "workspace", "create", "lab/mine", "--budget", "lab/budget")
    assert made.code == 0
    assert windlass("beaker", "workspace", "default", "lab/nowhere").code == 4
    assert windlass("beaker", "workspace", "default").out == "lab/main\n"
    assert windlass("beaker", "workspace", "default", "lab/mine").code == 0
    assert windlass("beaker", "workspace", "default").out == "lab/mine\n"
    checked = windlass("beaker", "config", "check").out.splitlines()
    assert checked == [
        f"config     {beaker.config_file}",
        f"token      from {beaker.config_file}",
        f"addresses  {beaker.address}, {beaker.rpc_address}",
        "workspace  lab/mine",
        "user       me",
    ]


def test_groups(windlass: Windlass, beaker: FakeBeaker, tmp_path: Path) -> None:
    assert (
        windlass("beaker", "groups").err
        == "no groups yet; add one with `windlass beaker groups --add GROUP EXPERIMENT...`\n"
    )
    windlass("beaker", "submit", spec_file(tmp_path, "exit 0"), "--name", "one")
    assert windlass("beaker", "groups", "--add", "sweep", "me/one").err == "added 1 to me/sweep\n"
    assert windlass("beaker", "groups").out.splitlines()[1].startswith("me/sweep")
    assert windlass("beaker", "groups", "--add", "sweep").code == 2


def test_a_dead_beaker_is_named(windlass: Windlass, beaker: FakeBeaker) -> None:
    beaker.stop()
    result = windlass("beaker", "show", "me/one")
    assert (result.code, "cannot connect to Beaker at" in result.err) == (6, True)


def test_an_expired_token_is_named(windlass: Windlass, beaker: FakeBeaker) -> None:
    beaker.scenario.expire_token()
    result = windlass("beaker", "config", "check")
    assert (result.code, "Beaker rejected the token" in result.err) == (5, True)


def test_a_missing_token_is_named(windlass: Windlass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BEAKER_TOKEN", raising=False)
    monkeypatch.setenv("BEAKER_CONFIG", str(tmp_path / "none.yml"))
    result = windlass("beaker", "show", "me/one")
    assert (result.code, "no token for Beaker" in result.err) == (5, True)
