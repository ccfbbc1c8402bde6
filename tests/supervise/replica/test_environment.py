from __future__ import annotations

from windlass.supervise.job import JobDocument, ReplicaCommand
from windlass.supervise.replica.environment import user_environment


def test_the_working_folder_is_the_jobs_and_not_the_launchers() -> None:
    job = JobDocument(
        run="r", task="t", job=1, token="x", run_dir="/r", replicas=(ReplicaCommand(("true",)),), cwd="/code"
    )
    env = user_environment(job, 0, tokens={}, ours={}, secrets={}, base={"PWD": "/elsewhere", "HOME": "/h", "X": "1"})
    assert env == {"PWD": "/code", "HOME": "/h"}


def test_what_a_site_takes_away_is_not_inherited() -> None:
    job = JobDocument(
        run="r",
        task="t",
        job=1,
        token="x",
        run_dir="/r",
        replicas=(ReplicaCommand(("true",)),),
        cwd="/code",
        inherit=("NCCL_*",),
        unset=("NCCL_DEBUG", "TMPDIR"),
        env={"TMPDIR": "/own"},
    )
    base = {"NCCL_DEBUG": "INFO", "NCCL_NET": "ofi", "TMPDIR": "/site"}
    env = user_environment(job, 0, tokens={}, ours={}, secrets={}, base=base)
    assert env == {"PWD": "/code", "NCCL_NET": "ofi", "TMPDIR": "/own"}
