"""Jobs through the genuine client: they really run, and what the client reads is what happened."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
from beaker import Beaker, BeakerCancelationCode, BeakerSortOrder, BeakerWorkloadStatus
from beaker.exceptions import BeakerExperimentConflict, BeakerJobNotFound, BeakerWorkloadNotFound

from tests.testing.beaker.conftest import Submit, make_spec
from windlass.testing.beaker import FakeBeaker, Status
from windlass.testing.beaker.records import CancelCode

pytestmark = pytest.mark.system


def test_three_replicas_with_a_leader_run_and_are_followed(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    say = "echo $BEAKER_REPLICA_RANK of $BEAKER_REPLICA_COUNT by $BEAKER_LEADER_REPLICA_HOSTNAME on $(hostname); exit $BEAKER_REPLICA_RANK"
    workload = submit("sh", "-c", say, replicas=3, leader_selection=True, host_networking=True)
    tasks = workload.experiment.tasks
    assert [task.system_details.replica_group_details.rank for task in tasks] == [0, 1, 2]
    assert [task.system_details.replica_group_details.is_leader_replica for task in tasks] == [True, False, False]
    jobs = [client.workload.get_latest_job(workload, task=task) for task in tasks]
    assert all(job is not None for job in jobs)
    lines = [log.message.decode() for job in jobs if job is not None for log in client.job.logs(job, follow=True)]
    leader = fake.experiments[0].tasks[0].job.node
    assert leader is not None
    assert lines == [f"{rank} of 3 by {leader.hostname} on alpha-{rank}.fake" for rank in range(3)]
    ended = [client.job.get(job.id) for job in jobs if job is not None]
    assert [job.status.exit_code for job in ended] == [0, 1, 2]
    assert client.workload.get(workload.experiment.id).status == int(BeakerWorkloadStatus.failed)


def test_a_job_sees_what_beaker_would_show_it(
    fake: FakeBeaker, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CLIENT", "1")
    fake.add_secret("me_TOKEN", "very-secret")
    workload = submit(
        "env",
        env_vars=[{"name": "GIVEN", "value": "a b"}, {"name": "TOKEN", "secret": "me_TOKEN"}, {"name": "EMPTY"}],
        result_path="/results",
    )
    experiment = fake.wait(workload.experiment.id)
    job = experiment.tasks[0].job
    seen = dict(line.split("=", 1) for line in job.text.splitlines())
    assert (seen["GIVEN"], seen["TOKEN"]) == ("a b", "very-secret")
    assert seen["EMPTY"] == ""
    assert job.node is not None
    assert job.results is not None
    assert {name: value for name, value in seen.items() if name.startswith("BEAKER_")} == {
        "BEAKER_WORKLOAD_ID": experiment.id,
        "BEAKER_EXPERIMENT_ID": experiment.id,
        "BEAKER_TASK_ID": experiment.tasks[0].id,
        "BEAKER_JOB_ID": job.id,
        "BEAKER_JOB_KIND": "batch",
        "BEAKER_NODE_ID": job.node.id,
        "BEAKER_NODE_HOSTNAME": job.node.hostname,
        "BEAKER_WORKSPACE_ID": experiment.workspace_id,
        "BEAKER_USER_ID": seen["BEAKER_USER_ID"],
        "BEAKER_RESULT_DATASET_ID": job.results.id,
        "BEAKER_ASSIGNED_GPU_COUNT": "0",
        "BEAKER_ASSIGNED_CPU_COUNT": "15.5",
    }
    assert "OF_THE_CLIENT" not in seen


def test_results_are_seen_while_the_job_runs(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    os.mkfifo(fake.weka("bucket") / "gate")
    workload = submit(
        "sh", "-c", "mkdir /out/a; echo first > /out/a/b; echo go; read x < /weka/gate; printf $x > /out/c",
        result_path="/out", datasets=[{"mountPath": "/weka", "source": {"weka": "bucket"}}],
    )  # fmt: skip
    fake.wait_for_line("run", "go")
    dataset = client.workload.get_results(workload)
    assert dataset is not None
    assert not dataset.HasField("committed")
    assert [(file.path, file.size) for file in client.dataset.list_files(dataset)] == [("a/b", 6)]
    (fake.weka("bucket") / "gate").write_text("later\n")
    fake.wait("run")
    dataset = client.dataset.get(dataset.id)
    assert dataset.HasField("committed")
    assert b"".join(client.dataset.stream_file(dataset, "c")) == b"later"
    assert b"".join(client.dataset.stream_file(dataset, "c", offset=2)) == b"ter"
    assert b"".join(client.dataset.stream_file(dataset, "c", offset=1, length=2)) == b"at"
    assert Path(fake.results("run") / "c").read_text() == "later"


def test_mounts_of_every_kind(fake: FakeBeaker, submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "data" / "part").mkdir(parents=True)
    (tmp_path / "data" / "part" / "x").write_text("of the dataset")
    (tmp_path / "shared").mkdir()
    fake.add_dataset("data", tmp_path / "data")
    fake.add_secret("KEY", "of the secret")
    (fake.weka("bucket") / "old").write_text("of the bucket")
    script = (
        "cat /input/x /run/keys/one /weka/bucket/old; echo; echo new > /weka/bucket/new; echo new > /net/a/b/new;"
        f"echo new > {tmp_path}/deep/er/new; touch /input/y || echo read-only"
    )
    submit(
        "sh", "-c", script,
        datasets=[
            {"mountPath": "/input", "subPath": "part", "source": {"beaker": "me/data"}},
            {"mountPath": "/run/keys/one", "source": {"secret": "KEY"}},
            {"mountPath": "/weka/bucket", "source": {"weka": "bucket"}},
            {"mountPath": "/net/a/b", "source": {"hostPath": str(tmp_path / "shared")}},
            {"mountPath": f"{tmp_path}/deep/er", "source": {"hostPath": "/nowhere/on/this/machine"}},
        ],
    )  # fmt: skip
    job = fake.wait("run").tasks[0].job
    assert job.text.splitlines()[0] == "of the datasetof the secretof the bucket"
    assert job.text.splitlines()[-1] == "read-only"
    assert job.exit_code == 0
    assert (fake.weka("bucket") / "new").exists()
    assert (tmp_path / "shared" / "new").exists()
    for path in (Path("/weka"), Path("/net"), Path("/input"), tmp_path / "deep"):
        assert not path.exists()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_what_a_job_makes_in_tmp_is_its_own(fake: FakeBeaker, submit: Submit, tmp_path: Path) -> None:
    name = f"of-a-job-{os.getpid()}"
    submit("sh", "-c", f"touch /tmp/{name} /dev/shm/{name} {tmp_path}/seen; ls /tmp/{name} /dev/shm/{name}", replicas=2)
    experiment = fake.wait("run")
    assert [task.job.text for task in experiment.tasks] == [f"/dev/shm/{name}\n/tmp/{name}\n"] * 2
    assert (tmp_path / "seen").exists()
    assert not Path(f"/tmp/{name}").exists()
    assert not Path(f"/dev/shm/{name}").exists()


def test_folders_can_be_hidden_from_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("x")
    with FakeBeaker(tmp_path / "beaker", hidden=[tmp_path]) as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        with Beaker.from_env(check_for_upgrades=False) as client:
            mount = {"mountPath": str(tmp_path / "shared"), "source": {"weka": "bucket"}}
            spec = make_spec("sh", "-c", f"ls {tmp_path}; pwd; touch $HOME/x {tmp_path}/shared/y", datasets=[mount])
            client.experiment.create(spec=spec, name="run")
        job = fake.wait("run").tasks[0].job
        assert job.text.splitlines()[:2] == ["beaker", "shared"]
        assert job.exit_code == 0
        assert (fake.weka("bucket") / "y").exists()


def test_logs_from_a_time_on_and_the_last_lines(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    workload = submit("sh", "-c", "seq 1 2500")
    fake.wait("run")
    job = client.workload.get_latest_job(workload)
    assert job is not None
    every = list(client.job.logs(job))
    assert [log.message for log in every] == [str(number).encode() for number in range(1, 2501)]
    assert len({log.timestamp.ToNanoseconds() for log in every}) == 2500
    since = dt.datetime.fromtimestamp(every[2000].timestamp.ToNanoseconds() / 1e9 + 0.000001, tz=dt.UTC)
    assert len(list(client.job.logs(job, since=since))) < 2500
    assert [log.message for log in client.job.logs(job, tail_lines=2)] == [b"2499", b"2500"]
    with pytest.raises(BeakerJobNotFound):
        list(client.job.logs(type(job)(id="none")))


def test_cancelling_ends_every_process(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    fake.scenario.grace_s = 0.2
    script = "trap '' TERM; (setsid sleep 1000 &) ; echo up; while :; do sleep 1; done"
    workload = submit("sh", "-c", script)
    fake.wait_for_line("run", "up")
    process = fake.experiment("run").tasks[0].job.process
    assert list(client.workload.cancel(workload)) == [workload.experiment.id]
    job = fake.wait("run").tasks[0].job
    assert (job.status, job.canceled_code, job.exit_code) == (Status.CANCELED, CancelCode.MANUAL, 137)
    assert process is not None
    assert process.returncode is not None
    seen = client.job.get(job.id)
    assert seen.status.canceled_code == int(BeakerCancelationCode.manual)
    assert seen.status.canceled_for == "canceled by me"
    assert client.workload.get(workload.experiment.id).experiment.HasField("canceled")


def test_names_are_unique_and_lists_are_long(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    fake.scenario.slot_limit("nothing need run here")
    for number in range(53):
        submit("true", name=f"run-{number}")
    with pytest.raises(BeakerExperimentConflict):
        submit("true", name="run-7")
    assert len(fake.experiments) == 53
    listed = list(client.workload.list(workspace=client.workspace.get(), sort_order=BeakerSortOrder.ascending))
    assert [workload.experiment.name for workload in listed] == [f"run-{number}" for number in range(53)]
    assert client.workload.get("me/run-7").experiment.id == fake.experiment("run-7").id
    with pytest.raises(BeakerWorkloadNotFound):
        client.workload.get("me/none")


def test_the_spec_comes_back_as_it_was_sent(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    spec = make_spec("true", replicas=2, timeout="1h", cluster=["lab/alpha", "lab/beta"], retries=3)
    workload = client.experiment.create(spec=spec, name="run")
    assert client.experiment.get_spec(workload).to_json() == spec.to_json() == fake.experiments[0].spec


def test_a_program_that_is_not_there(fake: FakeBeaker, submit: Submit) -> None:
    submit("no-such-program", "x")
    job = fake.wait("run").tasks[0].job
    assert (job.status, job.message) == (Status.FAILED, "no-such-program: No such file or directory")
    assert job.exit_code is None


def test_a_secret_that_is_not_there_fails_the_job(fake: FakeBeaker, submit: Submit) -> None:
    submit("true", env_vars=[{"name": "A", "secret": "NONE"}])
    job = fake.wait("run").tasks[0].job
    assert (job.status, job.message) == (Status.FAILED, "secret 'NONE' not found")


def test_results_of_one_task_are_the_input_of_another(fake: FakeBeaker, client: Beaker) -> None:
    spec = make_spec("sh", "-c", "sleep 0.1; echo made > /out/x", result_path="/out", task_name="first")
    second = make_spec(
        "cat", "/in/x", task_name="second", datasets=[{"mountPath": "/in", "source": {"result": "first"}}]
    )
    client.experiment.create(spec=spec.with_task(second.tasks[0]), name="run")
    experiment = fake.wait("run")
    assert [task.job.text for task in experiment.tasks] == ["", "made\n"]


def test_nothing_outlives_the_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    before = set(threading.enumerate())
    with FakeBeaker(tmp_path / "beaker") as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        with Beaker.from_env(check_for_upgrades=False) as client:
            client.experiment.create(spec=make_spec("sleep", "1000"), name="run")
            fake.wait("run", Status.RUNNING)
        process = fake.experiment("run").tasks[0].job.process
    assert process is not None
    assert process.returncode is not None
    for thread in set(threading.enumerate()) - before:  # an answer may be on its way yet
        thread.join(120)
        assert not thread.is_alive(), thread.name
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
