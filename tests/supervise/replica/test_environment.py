from __future__ import annotations

from windlass.supervise.job import JobDocument, JobPaths, ReplicaCommand, SiteSettings
from windlass.supervise.replica.environment import user_environment


def test_the_working_folder_is_the_jobs_and_not_the_launchers() -> None:
    job = JobDocument(
        run="r", task="t", job=1, token="x", paths=JobPaths("/r"), command=ReplicaCommand(("true",), cwd="/code")
    )
    env = user_environment(job, tokens={}, ours={}, secrets={}, base={"PWD": "/elsewhere", "HOME": "/h", "X": "1"})
    assert env == {"PWD": "/code", "HOME": "/h"}


def test_what_a_site_takes_away_is_not_inherited() -> None:
    job = JobDocument(
        run="r",
        task="t",
        job=1,
        token="x",
        paths=JobPaths("/r"),
        command=ReplicaCommand(("true",), cwd="/code", unset=("NCCL_DEBUG", "TMPDIR"), env={"TMPDIR": "/own"}),
        site=SiteSettings(inherit=("NCCL_*",)),
    )
    base = {"NCCL_DEBUG": "INFO", "NCCL_NET": "ofi", "TMPDIR": "/site"}
    env = user_environment(job, tokens={}, ours={}, secrets={}, base=base)
    assert env == {"PWD": "/code", "NCCL_NET": "ofi", "TMPDIR": "/own"}
