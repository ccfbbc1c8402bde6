"""The job that builds an environment: its script, and what the scheduler's answers mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.backends.slurm.fake_shell import FakeShell, listing
from tests.backends.slurm.test_backend import DOWN, NOBODY, REFUSED
from windlass.backends.site_shell import ShellResult
from windlass.backends.slurm.build_job import BuildJob, build_script, ensure_build_queued
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.sites.profile import Exclusion, Partition, Profile, SiteEnvironment, SiteScheduler

JOB = BuildJob(
    key="k" * 32,
    recipe=PurePosixPath("/shared/my envs/k.recipe.json"),
    envs=PurePosixPath("/shared/my envs"),
    archive=PurePosixPath("/shared/windlass.pyz"),
    partition="gpu",
    account="proj",
)


def site(**scheduler: Any) -> Profile:
    return Profile(
        name="lab",
        partitions={"gpu": Partition(gpus=4, gres="gh200", cpus=288, memory=460 << 30, time_max=3600.0)},
        scheduler=SiteScheduler(**{"version": "22.05.8", **scheduler}),
        env=SiteEnvironment(python="/usr/bin/python3"),
    )


def ensure(profile: Profile, **replies: Any) -> tuple[str, list[tuple[str, ...]]]:
    shell = FakeShell("lab", **{"squeue": listing(), "sbatch": ShellResult(0, "71;lab\n", ""), **replies})
    return ensure_build_queued(JOB, profile, shell, {}), shell.asked


def test_the_script_of_a_build_job() -> None:
    profile = site(
        options=("--network=single_node_vni", '--licenses=a "b" c\\d'),
        bin="/opt/slurm/bin",
        exclude=(Exclusion(host="n3"), Exclusion(host="n[7-8]")),
    )
    builder = "/usr/bin/python3 -I -S /shared/windlass.pyz build '/shared/my envs/k.recipe.json' '/shared/my envs'"
    assert build_script(JOB, profile).split("\n") == [
        "#!/bin/sh",
        f"#SBATCH --job-name=windlass-build-{'k' * 16}",
        f'#SBATCH --output="/shared/my envs/{"k" * 32}.job.log"',
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --export=HOME,USER,LOGNAME,PATH,SHELL,LANG,UV_CACHE_DIR,UV_OFFLINE,UV_PYTHON_INSTALL_DIR",
        "#SBATCH --time=0-01:00:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=proj",
        "#SBATCH --exclude=n3,n[7-8]",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --gres=gpu:gh200:1",
        "#SBATCH --mem=65536M",
        "#SBATCH --network=single_node_vni",
        '#SBATCH --licenses="a \\"b\\" c\\\\d"',
        f"exec /opt/slurm/bin/srun --nodes=1 --ntasks=1 --export=ALL {builder}",
        "",
    ]


def test_it_is_queued_once() -> None:
    number, asked = ensure(site())
    assert number == "71"
    assert asked[-1] == ("sbatch", "--parsable")
    rows = [["69", "COMPLETED", *[""] * 6], ["70", "RUNNING", *[""] * 6]]
    assert ensure(site(), squeue=listing(*rows))[0] == "70"


def test_an_old_slurm_is_asked_with_old_options() -> None:
    _, asked = ensure(site(version="19.05.8"), id=ShellResult(0, "ada\n", ""))
    assert "--user=ada" in asked[1]
    assert not any("--me" in argv for argv in asked)


@pytest.mark.parametrize("replies", [{"squeue": DOWN}, {"sbatch": NOBODY}])
def test_a_controller_that_is_down_refuses_nothing(replies: dict[str, ShellResult]) -> None:
    with pytest.raises(UnreachableError, match="Slurm at lab does not respond"):
        ensure(site(), **replies)


@pytest.mark.parametrize(
    ("named", "hint"),
    [("gpu", "of the profile is `gpu`"), ("", "of the profile is not set, so the tasks' partition is used")],
)
def test_a_refusal_says_which_partition_it_was(named: str, hint: str) -> None:
    profile = site()
    profile = replace(profile, env=replace(profile.env, build_partition=named))
    with pytest.raises(PreconditionError, match="partition `gpu`") as caught:
        ensure(profile, sbatch=REFUSED)
    assert caught.value.code == "slurm-refused"
    assert caught.value.hint.endswith(hint)
