from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError
from windlass.record.causes import Cause
from windlass.supervise.beaker.replica import (
    clean_environment,
    enter_start,
    hand_over_secrets,
    read_start,
    remove_delivery_folder,
)
from windlass.supervise.beaker.scheduler import BeakerScheduler
from windlass.supervise.chain.links import scheduler_of
from windlass.supervise.chain.scheduler import PastLink, SchedulerError
from windlass.supervise.job import (
    ChainConfig,
    JobDocument,
    JobPaths,
    JobSecret,
    ReplicaCommand,
    TaskSettings,
    TaskShape,
)
from windlass.supervise.remote.delivery import read_delivery

ALONE = {"BEAKER_WORKLOAD_ID": "01W", "BEAKER_JOB_ID": "01A"}


def job_in(folder: Path, nodes: int = 1, delivery: str = "", secrets: tuple[str, ...] = ()) -> JobDocument:
    job = JobDocument(
        run="r-1",
        task="t",
        job=1,
        token="t" * 32,
        paths=JobPaths(str(folder), delivery=delivery),
        shape=TaskShape(nodes=nodes),
        command=ReplicaCommand(("true",), cwd="/"),
        settings=TaskSettings(secrets=tuple(JobSecret(name) for name in secrets)),
        chain=ChainConfig(scheduler="beaker", mode="requeue"),
    )
    (folder / "job.json").write_text(json.dumps(job.to_data()))
    return job


def replica(rank: int, count: int, leader: str, workload: str = "01W") -> dict[str, str]:
    return {
        "BEAKER_WORKLOAD_ID": workload,
        "BEAKER_JOB_ID": f"{leader}{rank}",
        "BEAKER_REPLICA_RANK": str(rank),
        "BEAKER_REPLICA_COUNT": str(count),
        "BEAKER_LEADER_REPLICA_JOB_ID": leader,
        "BEAKER_ASSIGNED_CPU_COUNT": "15.5",
    }


def test_a_single_replica_is_its_own_leader(tmp_path: Path) -> None:
    job_in(tmp_path)
    start = read_start(tmp_path, ALONE)
    assert start is not None
    assert (start.rank, start.incarnation.name, start.incarnation.job_id) == (0, "01A.0", "01W")
    assert (tmp_path / "01A.0").is_dir()


def test_replicas_of_one_start_agree_and_the_next_start_counts_on(tmp_path: Path) -> None:
    job_in(tmp_path, nodes=3)
    names = []
    for leader in ("01L", "01M", "01L"):  # the last: a replica of the first start that comes late
        starts = [read_start(tmp_path, replica(rank, 3, leader)) for rank in (2, 0, 1)]
        names.append({start.incarnation.name for start in starts if start is not None})
    assert names == [{"01L.0"}, {"01M.1"}, {"01L.0"}]


def test_all_replicas_count_from_the_moment_of_the_first(tmp_path: Path) -> None:
    first, second = (enter_start(tmp_path, replica(rank, 2, "01L")) for rank in (0, 1))
    assert first is not None
    assert second is not None
    assert first.began_at == second.began_at


def test_another_experiment_of_the_same_job_leaves(tmp_path: Path) -> None:
    job_in(tmp_path)
    assert read_start(tmp_path, ALONE) is not None
    assert read_start(tmp_path, {**ALONE, "BEAKER_WORKLOAD_ID": "01X"}) is None


MISFITS = [
    (3, replica(0, 2, "01L"), "replica 0 of 2, but the job has 3"),
    (3, ALONE, "replica 0 of 1, but the job has 3"),
    (2, {**replica(0, 2, "01L"), "BEAKER_LEADER_REPLICA_JOB_ID": ""}, "BEAKER_LEADER_REPLICA_JOB_ID is not set"),
    (1, {**ALONE, "BEAKER_REPLICA_RANK": "two"}, "invalid number in BEAKER_REPLICA_RANK: `two`"),
    (1, {"BEAKER_JOB_ID": "01A"}, "not started by Beaker"),
    (1, {}, "not started by Beaker"),
]


@pytest.mark.parametrize(("nodes", "environ", "message"), MISFITS)
def test_variables_that_do_not_fit_are_named(tmp_path: Path, nodes: int, environ: dict[str, str], message: str) -> None:
    job_in(tmp_path, nodes=nodes)
    with pytest.raises(PreconditionError, match=message) as caught:
        read_start(tmp_path, environ)
    assert caught.value.code == "beaker-start"


def test_secrets_go_from_variables_into_a_private_file(tmp_path: Path) -> None:
    delivery = tmp_path / "memory" / "secrets.json"
    job_in(tmp_path, delivery=str(delivery), secrets=("HF_TOKEN",))
    environ = {**ALONE, "WINDLASS_FROM_BEAKER_HF_TOKEN": "hush", "HOME": "/root"}
    assert hand_over_secrets(tmp_path, environ)
    assert read_delivery(delivery) == {"HF_TOKEN": b"hush"}
    assert (delivery.parent.stat().st_mode & 0o777, delivery.stat().st_mode & 0o777) == (0o700, 0o600)
    assert clean_environment(environ) == {**ALONE, "HOME": "/root"}


def test_the_folder_of_the_secrets_goes_with_the_last_of_them(tmp_path: Path) -> None:
    delivery = tmp_path / "memory" / "secrets.json"
    job_in(tmp_path, delivery=str(delivery), secrets=("A",))
    assert hand_over_secrets(tmp_path, {"WINDLASS_FROM_BEAKER_A": "hush"})
    remove_delivery_folder(tmp_path)
    assert delivery.exists()
    delivery.unlink()
    remove_delivery_folder(tmp_path)
    assert not delivery.parent.exists()
    remove_delivery_folder(tmp_path)


def test_without_secrets_nothing_is_written(tmp_path: Path) -> None:
    job_in(tmp_path, delivery=str(tmp_path / "memory" / "secrets.json"))
    assert not hand_over_secrets(tmp_path, ALONE)
    assert not (tmp_path / "memory").exists()


def test_a_place_that_keeps_no_secrets_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    job_in(tmp_path, delivery=str(tmp_path / "file" / "secrets.json"), secrets=("A",))
    with pytest.raises(PreconditionError) as caught:
        hand_over_secrets(tmp_path, {"WINDLASS_FROM_BEAKER_A": "hush"})
    assert caught.value.code == "beaker-start"
    assert "hush" not in str(caught.value)


def test_beaker_is_asked_for_nothing_from_inside(tmp_path: Path) -> None:
    scheduler = scheduler_of(job_in(tmp_path))
    assert isinstance(scheduler, BeakerScheduler)
    assert scheduler.queued() == {}
    assert scheduler.explain_notice()[0] is Cause.PREEMPTED
    assert not scheduler.is_end_confirmed(PastLink("01A", 0.0, ""))
    assert scheduler.how_ended(PastLink("01A", 0.0, "")) == (
        Cause.NODE_LOST,
        "its job ended without recording a result",
    )
    with pytest.raises(SchedulerError):
        scheduler.queue(2, [])
