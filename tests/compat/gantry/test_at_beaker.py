"""Whole launches through the genuine client against the fake Beaker: the job fetches the commit and runs the command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.gantry.conftest import Pushed
from windlass.backends.beaker import BeakerService
from windlass.backends.beaker.values import ExperimentRef
from windlass.cli.program import main
from windlass.cli.verbs.compat import gantry
from windlass.compat.gantry import Recipe
from windlass.core.errors import UnreachableError
from windlass.testing.beaker import FakeBeaker

pytestmark = pytest.mark.system

SHOW = 'printf "%s|" "$PWD" "$GITHUB_REPO" "$GIT_BRANCH" "$RESULTS_DIR" "$BEAKER_REPLICA_RANK" "$@"; cat README.md'


@pytest.fixture
def fake(
    tmp_path: Path, pushed: Pushed, monkeypatch: pytest.MonkeyPatch, clean_environment: None
) -> Iterator[FakeBeaker]:
    with FakeBeaker(tmp_path / "fake", environ=pushed.redirect) as fake:
        for name, value in {**fake.environ, **pushed.redirect}.items():
            monkeypatch.setenv(name, value)  # git's variables: whether the repository is public is asked of its remote
        yield fake


def run(*words: str) -> int:
    return main(["gantry", "run", "--runtime-dir", "/tmp/stage", "--results", "/tmp/results", *words])


def test_the_job_runs_the_commit_that_is_pushed(
    fake: FakeBeaker, pushed: Pushed, capfd: pytest.CaptureFixture[str]
) -> None:
    (pushed.folder / "untracked").write_text("does not come along")
    code = run("--name", "first", "--no-python", "--show-logs", "--", "bash", "-c", SHOW, "x", "a b", "$c")
    shown = capfd.readouterr()
    assert code == 0, shown
    assert "/tmp/stage|lab/project|main|/tmp/results||a b|$c|a project" in shown.out.replace("|0|", "||")
    assert "attempt 1 is running" in shown.err
    assert "first: succeeded with exit code 0" in shown.err
    experiment = fake.experiment("first")
    assert [each for each in experiment.spec["tasks"][0]["envVars"] if each.get("secret")] == []
    assert (fake.results(experiment) / ".gantry" / "logs" / "003_git_fetch.log").exists()


def test_a_failing_command_is_a_failing_launch(fake: FakeBeaker, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--no-python", "--show-logs", "--", "bash", "-c", "echo last words; exit 3") == 1
    shown = capfd.readouterr()
    assert "last words" in shown.out
    assert "failed with exit code 3" in shown.err


def test_the_name_is_free_and_the_id_is_printed(fake: FakeBeaker, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run("--name", "same", "--no-python", "--", "true") == 0
    ids = capfd.readouterr().out.split()
    assert [experiment.name for experiment in fake.experiments] == ["same", "same-2"]
    assert ids == [experiment.id for experiment in fake.experiments]


def test_setup_steps_and_secrets(fake: FakeBeaker, pushed: Pushed, capfd: pytest.CaptureFixture[str]) -> None:
    pushed.commit(setup__sh="export FROM_SETUP=set\n")
    pushed.push()
    fake.add_secret("TOKEN", "open sesame")
    words = ["--env-secret", "KEY=TOKEN", "--post-setup", "setup.sh", "--pre-setup", "export FIRST=1"]
    script = 'test "$KEY" = "open sesame" && echo "$FIRST $FROM_SETUP"'
    assert run(*words, "--no-python", "--show-logs", "--", "bash", "-c", script) == 0
    assert "1 set" in capfd.readouterr().out


def test_a_secret_from_here_is_written_first(
    fake: FakeBeaker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINE", "local value")
    words = ["--env-secret", "MINE", "--no-python", "--show-logs", "--", "bash", "-c", "echo ${#MINE}"]
    assert run("--dry-run", "--online", *words) == 0
    shown = capfd.readouterr()
    assert "would write: secret MINE_" in shown.err
    assert "local value" not in shown.out + shown.err
    assert fake.experiments == []
    assert run(*words) == 0
    shown = capfd.readouterr()
    assert "11\n" in shown.out
    assert "local value" not in shown.out + shown.err
    assert run("--env-secret", "NOWHERE", *words[2:]) == 5


def test_uploads_and_datasets_and_clusters(fake: FakeBeaker, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in {"up": "uploaded", "set": "dataset"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
    fake.add_dataset("data", tmp_path / "set")
    single = tmp_path / "single.txt"
    single.write_text("single")
    words = ["--upload", f"{tmp_path}/up:/tmp/up", "--upload", f"{single}:/tmp/single", "--dataset", "me/data:/tmp/set"]
    command = ["--cluster", "a*", "--no-python", "--show-logs", "--", "cat", "/tmp/up/file", "/tmp/single/single.txt"]
    for _ in range(2):  # the second time, everything is there already
        assert run(*words, *command, "/tmp/set/file") == 0
        assert "uploadedsingledataset" in capfd.readouterr().out
    assert fake.experiments[0].spec["tasks"][0]["constraints"] == {"cluster": ["lab/alpha"]}


def test_torchrun_gets_the_gang_it_would_get(
    fake: FakeBeaker, pushed: Pushed, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in = '#!/bin/sh\necho "torchrun $*"\n'
    pushed.commit(torchrun=stand_in)
    pushed.push()
    post = 'chmod +x torchrun; export PATH="$PWD:$PATH"'
    words = ["--name", "gang", "--gpus", "2", "--replicas", "2", "--torchrun", "--no-python", "--post-setup", post]
    assert run(*words, "--show-logs", "--", "train.py", "--lr", "1") == 0
    experiment = fake.experiment("gang")
    fake.wait(experiment)
    lines = sorted(line for job in experiment.jobs for line in job.text.splitlines() if line.startswith("torchrun"))
    spec = experiment.spec["tasks"][0]
    values = {each["name"]: each.get("value") for each in spec["envVars"]}
    for rank, line in enumerate(lines):
        assert line.split() == [
            "torchrun",
            "--nproc-per-node=2",
            "--nnodes=2:2",
            f"--node-rank={rank}",
            "--rdzv-backend=static",
            f"--rdzv-id={values['GANTRY_RDZV_ID']}",
            "--rdzv-conf=read_timeout=420",
            f"--rdzv-endpoint={line.partition('endpoint=')[2].partition(':')[0]}:{values['GANTRY_RDZV_PORT']}",
            "train.py",
            "--lr",
            "1",
        ]
    assert len(lines) == 2


def test_a_dry_run_asks_nobody(fake: FakeBeaker, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = sum(fake.calls.values())
    assert run("--emit", "beaker", "--cluster", "ai2/*", "--save-spec", str(tmp_path / "spec.yaml"), "--", "x") == 0
    assert sum(fake.calls.values()) == before
    from beaker import BeakerExperimentSpec

    read = BeakerExperimentSpec.from_file(tmp_path / "spec.yaml").to_json()
    assert read["tasks"][0]["arguments"] == ["x"]
    assert "version: v2" in capfd.readouterr().out


def test_a_silent_job_is_cancelled(fake: FakeBeaker, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--name", "silent", "--no-python", "--show-logs", "--inactive-timeout", "1s"]
    assert run(*words, "--", "sleep", "600") == 7
    assert fake.wait("silent").status.name == "CANCELED"
    assert "the experiment printed nothing for 1 s" in capfd.readouterr().err


def test_it_is_followed_over_a_preemption(fake: FakeBeaker, capfd: pytest.CaptureFixture[str]) -> None:
    fake.scenario.preempt("taken", after="first line")
    script = "if [ -e /weka/been ]; then echo again; else touch /weka/been; echo first line; sleep 600; fi"
    fake.add_cluster("lab/wet", tags=("storage:weka",))
    words = ["--name", "taken", "--weka", "bucket:/weka", "--no-python", "--show-logs"]
    assert run(*words, "--", "bash", "-c", script) == 0
    shown = capfd.readouterr()
    assert "first line\n" in shown.out
    assert shown.out.endswith("again\n")
    assert "attempt 1 ended (system preemption); Beaker restarts it" in shown.err
    assert "lab/wet" in fake.experiment("taken").spec["tasks"][0]["constraints"]["cluster"]


def test_a_lost_reply_makes_one_experiment(fake: FakeBeaker) -> None:
    fake.scenario.lose_next_reply("CreateExperiment")
    assert run("--name", "once", "--no-python", "--", "true") == 0
    assert [experiment.name for experiment in fake.experiments] == ["once"]


def test_no_token_no_launch(
    fake: FakeBeaker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BEAKER_TOKEN", "wrong")
    assert run("--no-python", "--", "true") == 5
    assert "[beaker-token]" in capfd.readouterr().err


def test_start_up_imports_no_client(fake: FakeBeaker) -> None:
    import subprocess
    import sys

    script = (
        "import sys; from windlass.cli.program import main; code = main(sys.argv[1:]);"
        "heavy = [m for m in sys.modules if m.split('.')[0] in ('beaker', 'grpc', 'gantry', 'requests')];"
        "import json; sys.stderr.write('HEAVY' + json.dumps([code, heavy]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "gantry", "run", "--emit", "beaker", "--", "x"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    assert json.loads(done.stderr.partition("HEAVY")[2]) == [0, []]


def test_an_end_that_could_not_be_told_to_beaker_is_told_to_the_user(capfd: pytest.CaptureFixture[str]) -> None:
    class Away:
        def cancel(self, experiment: str, reason: str) -> None:
            raise UnreachableError("Beaker cannot be reached", hint="", code="beaker-unreachable")

    made = [ExperimentRef(id="01X", name="run", url="")]
    assert gantry._interrupted(Away(), made) == 130  # type: ignore[arg-type]  # all that is asked of a service
    said = "could not cancel run: Beaker cannot be reached; run windlass beaker cancel 01X\n"
    assert capfd.readouterr().err == said


def test_a_launch_of_its_own_leaves_no_connection(fake: FakeBeaker, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[BeakerService] = []
    genuine = BeakerService.close

    def close(service: BeakerService) -> None:
        closed.append(service)
        genuine(service)

    monkeypatch.setattr(BeakerService, "close", close)
    Recipe(args=["true"], no_python=True, runtime_dir="/tmp/stage", results="/tmp/results").launch()
    assert len(closed) == len(fake.experiments) == 1
