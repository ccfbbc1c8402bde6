"""What goes wrong on command, seen through the genuine client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pytest
import requests
from beaker import Beaker, beaker_pb2
from beaker.exceptions import BeakerError, BeakerPermissionsError, BeakerServerUnavailableError

from tests.testing.beaker.conftest import Submit, make_spec
from windlass.testing.beaker import FakeBeaker, Status
from windlass.testing.beaker.records import CancelCode, StoredJob

pytestmark = pytest.mark.system

ONCE = {"mountPath": "/once", "source": {"weka": "once"}}
# It waits for ever when it runs for the first time.
COUNT_SCRIPT = """
[ -e /once/done ] && again=1
: > /once/done
trap 'echo told; exit 3' TERM; echo line 1; echo line 2
[ $again ] || { sleep 1000 & wait; }
echo line 3
"""
COUNT = ("sh", "-c", COUNT_SCRIPT)
SLEEP = ("sh", "-c", "echo up; sleep 1000")


def outcomes(jobs: list[StoredJob]) -> list[tuple[Status, CancelCode | None]]:
    return [(job.status, job.canceled_code) for job in jobs]


def test_preempted_after_a_line_then_resumed(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    fake.scenario.preempt("run", after="line 2")
    workload = submit(*COUNT, datasets=[ONCE])
    first, second = fake.wait("run").jobs
    assert outcomes([first, second]) == [
        (Status.CANCELED, CancelCode.SYSTEM_PREEMPTION),
        (Status.SUCCEEDED, None),
    ]
    assert first.text.endswith("told\n")
    assert "line 3" not in first.text
    assert first.exit_code == 3
    assert second.text == "line 1\nline 2\nline 3\n"
    seen = list(client.job.list(task=workload.experiment.tasks[0]))
    assert [job.id for job in seen] == [second.id, first.id]
    assert seen[0].retry_ancestor_id == first.id


def test_preempted_at_once_and_as_often_as_asked(fake: FakeBeaker, submit: Submit) -> None:
    fake.scenario.preempt(times=2)
    submit("sleep", "0.2")
    codes = [job.canceled_code for job in fake.wait("run").jobs]
    assert codes == [CancelCode.SYSTEM_PREEMPTION, CancelCode.SYSTEM_PREEMPTION, None]


def test_preempted_after_a_time(fake: FakeBeaker, submit: Submit) -> None:
    fake.scenario.preempt(after_s=0.05)
    submit(*SLEEP, auto_resume=False)
    (job,) = fake.wait("run").jobs
    assert job.canceled_code == CancelCode.SYSTEM_PREEMPTION
    assert job.canceled_ns - job.started_ns >= 50_000_000


def test_a_spec_that_says_preemptible_is_not_resumed(fake: FakeBeaker, submit: Submit) -> None:
    fake.scenario.preempt(after="line 1")
    with pytest.warns(DeprecationWarning, match="preemptible"):
        submit(*COUNT, preemptible=True, datasets=[ONCE])
    assert outcomes(fake.wait("run").jobs) == [(Status.CANCELED, CancelCode.SYSTEM_PREEMPTION)]


def test_one_preempted_all_preempted_and_started_together(fake: FakeBeaker, submit: Submit) -> None:
    fake.scenario.preempt(rank=1, after="up")
    # Replica 1 makes a note of each leader; with the second note the work is done.
    script = (
        "me=$BEAKER_LEADER_REPLICA_JOB_ID; [ $BEAKER_REPLICA_RANK = 0 ] || : > /once/$me; echo up $me;"
        "while [ ! -e /once/$me ]; do sleep 0.02; done; [ $(ls /once | wc -l) = 2 ] || sleep 1000"
    )
    submit(
        "sh", "-c", script, replicas=2, leader_selection=True, propagate_preemption=True,
        datasets=[ONCE],
    )  # fmt: skip
    experiment = fake.wait("run")
    codes = [[job.canceled_code for job in task.jobs] for task in experiment.tasks]
    assert codes == [[CancelCode.SIBLING_TASK_PREEMPTION, None], [CancelCode.SYSTEM_PREEMPTION, None]]
    leader = experiment.tasks[0]
    assert [task.jobs[1].text for task in experiment.tasks] == [f"up {leader.jobs[1].id}\n"] * 2


def test_a_replica_that_is_never_ready(fake: FakeBeaker, submit: Submit) -> None:
    fake.scenario.never_ready(1)
    submit("true", replicas=2, leader_selection=True, synchronized_start_timeout="200ms")
    experiment = fake.wait("run")
    assert [task.job.canceled_code for task in experiment.tasks] == [CancelCode.TIMEOUT] * 2
    assert [bool(task.job.ready_ns) for task in experiment.tasks] == [True, False]
    assert not any(task.job.started_ns for task in experiment.tasks)
    assert "[1] did not become ready" in experiment.tasks[0].job.canceled_for


def test_a_slot_limit_and_its_reason(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    fake.scenario.slot_limit("workspace lab/main has reached its limit of 8 slots")
    workload = submit("true")
    job = client.workload.get_latest_job(workload)
    assert job is not None
    events = [(event.status, event.latest_message) for event in client.job.list_summarized_events(job)]
    assert events == [("unscheduled", "workspace lab/main has reached its limit of 8 slots")]
    assert fake.experiment("run").status == Status.QUEUED
    fake.scenario.slot_limit("")
    assert fake.wait("run").status == Status.SUCCEEDED


def test_more_accelerators_than_any_node_has(fake: FakeBeaker, submit: Submit) -> None:
    submit("true", cluster="lab/beta", resources={"gpuCount": 8})
    job = fake.wait("run").tasks[0].job
    assert job.canceled_code == CancelCode.IMPOSSIBLE_TO_SCHEDULE
    assert job.scheduling_message == "no node of the given clusters and hosts has 8 GPUs"


def test_a_node_is_lost(fake: FakeBeaker, submit: Submit) -> None:
    fake.scenario.lose_node(after="up", resumes=False)
    submit("sh", "-c", "trap 'echo told' TERM; echo up; sleep 1000; true")
    (job,) = fake.wait("run").jobs
    assert (job.canceled_code, job.exit_code, job.text) == (CancelCode.NODE_UNAVAILABLE, 137, "up\n")


def test_failures_are_retried_as_often_as_allowed(fake: FakeBeaker, client: Beaker) -> None:
    client.experiment.create(spec=make_spec("sh", "-c", "exit 4", retries=2), name="run")
    jobs = fake.wait("run").jobs
    assert [job.exit_code for job in jobs] == [4, 4, 4]
    assert [job.retry_ancestor for job in jobs] == ["", jobs[0].id, jobs[1].id]


def test_a_failure_ends_the_others(fake: FakeBeaker, submit: Submit) -> None:
    submit(
        "sh", "-c", "[ $BEAKER_REPLICA_RANK = 1 ] && exit 5; sleep 1000",
        replicas=2, leader_selection=True, propagate_failure=True,
    )  # fmt: skip
    experiment = fake.wait("run")
    assert experiment.tasks[0].job.canceled_code == CancelCode.SIBLING_TASK_FAILED
    assert (experiment.tasks[1].job.exit_code, experiment.status) == (5, Status.FAILED)


def test_a_task_has_a_time_limit(fake: FakeBeaker, submit: Submit) -> None:
    submit(*SLEEP, timeout="100ms")
    (job,) = fake.wait("run").jobs
    assert (job.status, job.canceled_code) == (Status.CANCELED, CancelCode.TIMEOUT)


def test_refusals_reach_the_client_on_both_transports(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    fake.scenario.refuse("CreateExperiment", "no room", status=403)
    with pytest.raises(BeakerPermissionsError, match="no room"):
        submit("true")
    assert fake.experiments == []
    fake.scenario.refuse("GetUser", "not today", status=403)
    with pytest.raises(BeakerPermissionsError, match="not today"):
        client.user.get()
    assert client.user.get().name == "me"


@pytest.mark.parametrize("method", ["CreateExperiment", "CancelWorkloads"])
def test_a_lost_reply_means_done_and_not_told(method: str, fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    fake.scenario.lose_next_reply(method)
    if method == "CreateExperiment":
        with pytest.raises(requests.ConnectionError):
            submit("true")
        assert [experiment.name for experiment in fake.experiments] == ["run"]
        return
    workload = submit(*SLEEP)
    with pytest.raises(BeakerServerUnavailableError):
        client.workload.cancel(workload)
    assert fake.wait("run").tasks[0].job.canceled_code == CancelCode.MANUAL


def test_an_answer_that_never_comes(fake: FakeBeaker, client: Beaker, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = client.workspace.get()
    fake.scenario.lose_next_reply("GetUser", how="hang")
    fake.scenario.delay("CreateExperiment", 1000)
    monkeypatch.setattr(client, "TIMEOUT", 0.1)
    with pytest.raises(requests.Timeout):
        client.experiment.create(spec=make_spec("true"), name="run", workspace=workspace)
    token = [("authorization", f"bearer {fake.token}")]
    with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
        client.service.GetUser(beaker_pb2.GetUserRequest(), metadata=token, timeout=0.1)


def test_an_expired_token(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    workspace = client.workspace.get()
    fake.scenario.expire_token()
    with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
        client.user.get()
    with pytest.raises(BeakerError, match="code=401"):
        client.experiment.create(spec=make_spec("true"), name="run", workspace=workspace)
    fake.scenario.renew_token()
    submit("true")


def test_a_server_that_dies_and_comes_back_remembers(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    workload = submit("sh", "-c", "echo up; sleep 0.2; echo still")
    fake.wait_for_line("run", "up")
    address = fake.address, fake.rpc_address
    fake.scenario.stop()
    with pytest.raises(requests.ConnectionError):
        requests.get(fake.address, timeout=60)
    assert fake.wait("run").tasks[0].job.text == "up\nstill\n"
    fake.scenario.start()
    assert (fake.address, fake.rpc_address) == address
    job = client.workload.get_latest_job(workload)
    assert job is not None
    assert [log.message for log in client.job.logs(job)] == [b"up", b"still"]


def test_a_disk_that_fills_up(need: Callable[[str], None], fake: FakeBeaker, submit: Submit) -> None:
    need("tmpfs")
    fake.scenario.fill_disk(size_bytes=16 * 1024)
    fake.scenario.fill_disk("bucket", size_bytes=16 * 1024)
    write = "head -c 100000 /dev/zero > {}/big 2>&1 || echo full {}"
    submit(
        "sh", "-c", f"{write.format('/out', '/out')}; {write.format('/weka', '/weka')}", result_path="/out",
        datasets=[{"mountPath": "/weka", "source": {"weka": "bucket"}}],
    )  # fmt: skip
    text = fake.wait("run").tasks[0].job.text
    assert "full /out" in text
    assert "full /weka" in text
    assert 0 < (fake.weka("bucket") / "big").stat().st_size <= 16 * 1024
    fake._disks.close()
    assert str(fake.folder) not in Path("/proc/self/mounts").read_text()
