"""What is sent to Beaker for a job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path, PurePath
from typing import Any

import pytest

from tests.backends.beaker.sample_jobs import job, site
from windlass.backends.beaker.backend import BeakerBackend
from windlass.backends.beaker.render import beaker_name, experiment_name, experiment_spec, fresh_name, work_of
from windlass.core.errors import InternalError
from windlass.supervise.job import ChainConfig, TaskSettings, TaskShape

FOLDER, ARCHIVE = PurePath("/weka/bucket/runs/demo-01234567/jobs/main-1"), PurePath("/weka/bucket/a/windlass.pyz")
SECOND = 1_000_000_000


def task_of(**options: Any) -> dict[str, Any]:
    (task,) = experiment_spec(job(**options), FOLDER, ARCHIVE)["tasks"]
    return dict(task)


def test_one_replica_asks_for_little() -> None:
    spec = experiment_spec(job(), FOLDER, ARCHIVE)
    command = spec["tasks"][0].pop("command")
    assert spec == {
        "version": "v2",
        "description": "windlass: demo-01234567, main, job 1",
        "budget": "lab/budget",
        "retry": {"allowedTaskRetries": 0},
        "tasks": [
            {
                "name": "main",
                "image": {"docker": "python:3.12"},
                "result": {"path": "/results"},
                "context": {"priority": "normal", "autoResume": True},
            }
        ],
    }
    assert command[:2] == ["/bin/sh", "-c"]
    assert command[3:] == ["windlass", str(ARCHIVE), str(FOLDER), "python3", "/results", ""]


def test_several_replicas_are_a_gang() -> None:
    task = task_of(num_replicas=3, settings=TaskSettings(ready_timeout_s=90.0))
    assert {key: task[key] for key in task if key not in ("name", "image", "command", "result", "context")} == {
        "replicas": 3,
        "leaderSelection": True,
        "hostNetworking": True,
        "propagateFailure": True,
        "propagatePreemption": True,
        "synchronizedStartTimeout": 90 * SECOND,
    }


def test_a_start_waits_at_most_as_long_as_beaker_takes() -> None:
    task = task_of(num_replicas=2, settings=TaskSettings(ready_timeout_s=7 * 24 * 3600.0))
    assert task["synchronizedStartTimeout"] == 48 * 3600 * SECOND


def test_everything_that_is_asked_for_is_said() -> None:
    ask = {
        "image": "beaker:me/image",
        "clusters": ("lab/alpha", "lab/beta"),
        "hostnames": ("a.example.org",),
        "priority": "high",
        "datasets": ({"mountPath": "/weka/bucket", "source": {"weka": "bucket"}},),
        "secrets": {"WINDLASS_FROM_BEAKER_HF_TOKEN": "me_HF_TOKEN"},
        "bundle": "01J8",
        "results": "/out",
        "groups": ("me/sweep",),
    }
    shape = TaskShape(gpus=8, cpus=15.5, memory_bytes=64 << 30, shared_memory_bytes=(1 << 30) + 1)
    spec = experiment_spec(job(ask=ask, shape=shape, settings=TaskSettings(per_job_s=3600.0)), FOLDER, ARCHIVE)
    (task,) = spec["tasks"]
    assert spec["groups"] == ["me/sweep"]
    assert task["image"] == {"beaker": "me/image"}
    assert task["constraints"] == {"cluster": ["lab/alpha", "lab/beta"], "hostname": ["a.example.org"]}
    assert task["datasets"] == [
        {"mountPath": "/weka/bucket", "source": {"weka": "bucket"}},
        {"mountPath": "/windlass-bundle", "source": {"beaker": "01J8"}},
    ]
    assert task["envVars"] == [{"name": "WINDLASS_FROM_BEAKER_HF_TOKEN", "secret": "me_HF_TOKEN"}]
    assert task["result"] == {"path": "/out"}
    assert task["resources"] == {"gpuCount": 8, "cpuCount": 15.5, "memory": "64GiB", "sharedMemory": "1025MiB"}
    assert task["timeout"] == 3600 * SECOND
    assert task["command"][-2:] == ["/out", "/windlass-bundle"]


@pytest.mark.parametrize(
    ("options", "context"),
    [
        ({"ask": {"is_preemptible": True}}, {"minRuntime": 0}),
        ({"ask": {"is_preemptible": True}, "settings": TaskSettings(per_job_s=60.0)}, {"minRuntime": 0}),
        ({"settings": TaskSettings(per_job_s=60.0, time_s=600.0)}, {"minRuntime": 60 * SECOND}),
        ({"settings": TaskSettings(time_s=600.0)}, {"minRuntime": 600 * SECOND}),
        ({}, {}),
    ],
)
def test_preemption_is_said_in_the_present_form(options: dict[str, Any], context: dict[str, Any]) -> None:
    assert task_of(**options)["context"] == {"priority": "normal", "autoResume": True, **context}


def test_the_users_own_keys_come_last() -> None:
    ask = {
        "experiment": {"description": "mine", "retry": None, "newKey": {"a": 1}},
        "task": {"context": {"minRuntime": 5, "autoResume": None}, "image": {"docker": None, "beaker": "me/image"}},
    }
    spec = experiment_spec(job(ask=ask), FOLDER, ARCHIVE)
    assert (spec["description"], spec["newKey"], "retry" in spec) == ("mine", {"a": 1}, False)
    assert spec["tasks"][0]["context"] == {"priority": "normal", "minRuntime": 5}
    assert spec["tasks"][0]["image"] == {"beaker": "me/image"}


def test_the_name_is_the_jobs_own() -> None:
    name = experiment_name(job())
    assert name.startswith("demo-01234567-main-1-")
    assert name == experiment_name(job())
    assert name != experiment_name(job(token="another-token"))
    assert "secret-token" not in name


def test_a_long_name_is_cut_and_stays_the_jobs_own() -> None:
    one, other = (experiment_name(job(run="r" * 300, token=token)) for token in ("a-token", "b-token"))
    assert len(one) == len(other) == 120
    assert one != other


@pytest.mark.parametrize(("text", "name"), [("a b/c", "a-b-c"), ("--x", "x"), ("\u00e9", "x"), ("a.b_c-d", "a.b_c-d")])
def test_a_name_is_made_of_what_beaker_takes(text: str, name: str) -> None:
    assert beaker_name(text, 10) == name


def test_a_fresh_name_is_never_the_same_twice() -> None:
    spec = {"tasks": [{"name": "train model"}]}
    assert fresh_name(spec) != fresh_name(spec)
    assert fresh_name(spec).startswith("train-model-")
    assert fresh_name({}).startswith("experiment-")


def test_work_is_what_runs_however_it_is_written() -> None:
    spec = {"tasks": [{"name": "a", "command": ["x", 1], "timeout": 5}]}
    assert work_of(spec) == work_of({"tasks": [{"name": "a", "command": ["x", "1"], "timeout": "5ns", "replicas": 1}]})
    assert work_of(spec) != work_of({"tasks": [{"name": "a", "command": ["x", "2"]}]})


def test_a_rendered_job_is_two_files_and_a_line(tmp_path: Path) -> None:
    document = job()
    rendered = BeakerBackend(site()).render(document, tmp_path / "jobs" / "main-1", Path("/a.pyz"))
    assert sorted(rendered.files) == ["beaker.json", "job.json"]
    assert json.loads(rendered.files["beaker.json"]) == json.loads(
        json.dumps(experiment_spec(document, FOLDER, PurePath("/a.pyz")))
    )
    name = experiment_name(document)
    assert rendered.argv == ("windlass", "beaker", "submit", "beaker.json", "--workspace=lab/main", f"--name={name}")


def test_a_job_without_a_workspace_is_not_beakers(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="names no Beaker workspace"):
        BeakerBackend(site()).render(job(ask={"workspace": ""}), tmp_path, Path("/a.pyz"))


def _run(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_an_image_without_python_says_so_everywhere(tmp_path: Path) -> None:
    for name in ("folder", "results", "bin"):
        (tmp_path / name).mkdir()
    document = job(ask={"results": str(tmp_path / "results")}, queue=job().queue)
    command = task_command(document, tmp_path)
    command[2] = (
        command[2]
        .replace("/usr/bin/", "/nowhere/")
        .replace("/usr/local/bin/", "/nowhere/")
        .replace("/opt/", "/nowhere/")
    )
    done = _run(command, PATH=str(tmp_path / "bin"))
    words = f"the image has no Python 3.9 or newer on its PATH ({tmp_path / 'bin'}), which the supervisor needs"
    assert (done.returncode, done.stderr) == (76, f"windlass: {words}\n")
    for name in ("folder", "results"):
        assert (tmp_path / name / "setup-failed.txt").read_text() == words + "\n"


def test_an_old_python_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "bin" / "python3"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    new = tmp_path / "bin" / "python"
    new.write_text('#!/bin/sh\n[ "$3" = -c ] && exit 0\necho "$@"\n')
    new.chmod(0o755)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "job.json").write_text("{}")
    (tmp_path / "windlass.pyz").write_text("")
    done = _run(task_command(job(), tmp_path), PATH=f"{tmp_path / 'bin'}")
    assert done.stdout == f"-I -S {tmp_path}/windlass.pyz beaker {tmp_path}/folder\n"


def test_a_cluster_without_the_storage_says_so(tmp_path: Path) -> None:
    done = _run(task_command(job(), tmp_path), PATH="/usr/bin:/bin")
    assert done.returncode == 76
    assert done.stderr.endswith("folder: do this cluster's machines have the storage mounted?\n")


def task_command(document: Any, tmp_path: Path) -> list[str]:
    spec = experiment_spec(document, PurePath(tmp_path / "folder"), PurePath(tmp_path / "windlass.pyz"))
    return list(spec["tasks"][0]["command"])


@pytest.mark.parametrize(("num_links", "resumes"), [(0, True), (1, False), (51, True)])
def test_what_may_start_only_once_is_not_started_again(num_links: int, resumes: bool) -> None:
    chain = ChainConfig(scheduler="beaker", mode="requeue", num_links=num_links)
    assert task_of(chain=chain)["context"]["autoResume"] is resumes
