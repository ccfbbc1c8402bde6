"""Reasons and refusals, from the words of real Slurms."""

from __future__ import annotations

import pytest

from tests.backends.slurm.dressing import lab_profile
from tests.backends.slurm.test_render import document
from windlass.backends.site_shell import ShellResult
from windlass.backends.slurm.errors import refusal
from windlass.backends.slurm.explain import can_start, why_it_waits
from windlass.backends.slurm.version import SlurmVersion
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.supervise.slurm.job_listing import SlurmJob


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "jobs with a higher priority are ahead of it"),
        ("Dependency", "it waits for an earlier link"),
        ("QOSMaxGRESPerUser", "its QOS limits the GPUs that one user may use at once"),
        ("QOSMaxCpuPerUserLimit", "its QOS limits the CPUs that one user may use at once"),
        ("QOSGrpNodeLimit", "its QOS limits the nodes that the whole group may use at once"),
        ("AssocGrpGRES", "your account limits the GPUs that the whole group may use at once"),
        ("AssocGrpCPUMinutesLimit", "your account limits the time on CPUs that the whole group may use at once"),
        ("AssocMaxJobsLimit", "your account limits the jobs that one user may use at once"),
        ("QOSMaxJobsPerUserLimit", "its QOS limits the jobs that one user may use at once"),
        ("ReqNodeNotAvail, UnavailableNodes:n4", "a required node is not available (n4)"),
        ("ReqNodeNotAvail, Reserved for maintenance", "a required node is not available: down"),
        ("BeginTime", "it waits for its begin time"),
        ("JobHeldUser", "release it with `scontrol release 7`"),
        ("job requeued in held state", "release it with `scontrol release 7`"),
        ("launch failed requeued held", "a node failed to start it"),
        ("SomethingOfNextYear", "other reason (Slurm: SomethingOfNextYear)"),
    ],
)
def test_a_reason_is_said_in_words(reason: str, words: str) -> None:
    job = SlurmJob("7", "PENDING", reason)
    assert words in why_it_waits(job)
    assert f"(Slurm: {reason})" in why_it_waits(job)
    assert can_start(job)


@pytest.mark.parametrize(
    "reason", ["PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "QOSMaxNodePerJobLimit", "QOSMinGRES"]
)
def test_a_job_that_never_starts_is_told_apart(reason: str) -> None:
    job = SlurmJob("7", "PENDING", reason, "2026-11-21T09:30:00")
    assert not can_start(job)
    assert "expected" not in why_it_waits(job)


def test_a_new_job_has_no_reason_yet() -> None:
    assert why_it_waits(SlurmJob("7", "PENDING")) == "Slurm has not considered it yet"


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ("invalid partition specified: mian\nsbatch: error: Batch job submission failed: Invalid partition name specified", "no partition `mian`", "did you mean `main`?"),
        ("Batch job submission failed: Invalid account or account/partition combination specified", "account `lub` may not be used in partition `mian`", "sacctmgr"),
        ("Batch job submission failed: Invalid qos specification", "no QOS `fast`", "sacctmgr"),
        ("Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", "a walltime of 10 min", "limit.per_job"),
        ("Batch job submission failed: Requested node configuration is not available", "there are no 2 x (9 GPUs, 1 CPUs, 300MiB memory) in partition `mian`", "sinfo"),
        ("Memory specification can not be satisfied\nsbatch: error: Batch job submission failed: Requested node configuration is not available", "300", "less per node"),
        ("Batch job submission failed: Invalid generic resource (gres) specification", "9 GPUs", "sinfo"),
        ("Batch job submission failed: Invalid feature specification", "feature `quick`", "features"),
        ("Batch job submission failed: Invalid node name specified", "a node of n9", "sinfo"),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "the limits of account `lub` and QOS `fast`", "sacctmgr"),
        ("Batch job submission failed: User's group not permitted to use this partition", "you may not use partition `mian`", "where"),
        ("unrecognized option '--no-such'", "invalid option", "scheduler.options"),
        ("Batch job submission failed: Something of next year", "Something of next year", "windlass site check lab"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_users_value_and_what_to_do(said: str, message: str, hint: str) -> None:
    job = document(partition="mian", account="lub", qos="fast", gpus_per_node=9, constraint="quick", nodelist=("n9",))
    error = refusal(ShellResult(1, "", f"sbatch: error: {said}\n"), job.queue, job.num_replicas, lab_profile())
    assert isinstance(error, PreconditionError)
    assert message in error.message
    assert hint in error.hint
    assert "sbatch:" not in error.message


@pytest.mark.parametrize(
    "said",
    [
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "Batch job submission failed: Socket timed out on send/recv operation",
        "Batch job submission failed: Slurm backup controller in standby mode",
        "Batch job submission failed: Zero Bytes were transmitted or received",
        "Slurm temporarily unable to accept job, sleeping and retrying",
        "Batch job submission failed: Protocol authentication error",
        "resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\nsbatch: fatal: Could not establish a configuration source",
    ],
)
def test_silence_is_no_refusal(said: str) -> None:
    error = refusal(ShellResult(1, "", f"sbatch: error: {said}\n"), document().queue, 2, lab_profile())
    assert isinstance(error, UnreachableError)
    assert error.code == "slurm-down"


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm-wlm 22.05.8\n", "22.05.8"), ("slurm 24.11.5", "24.11.5"), ("slurm 25.05.0-0rc1", "25.05.0"), ("23.02", "23.02.0")],
)  # fmt: skip
def test_versions_are_read(text: str, version: str) -> None:
    assert str(SlurmVersion.parse(text)) == version


def test_what_is_no_version_is_none() -> None:
    assert SlurmVersion.parse("command not found") is None
    assert SlurmVersion.parse("") is None
