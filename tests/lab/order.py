"""In which order system tests go to the workers: long ones first, so that none begins one when the others are done.

A file's tests stay together on one worker, for they may share a fixture; those of `SPLIT` share nothing and are dealt
one by one. `make test` asks for both by `--dist loadfile --no-loadscope-reorder`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

__all__ = ["SPLIT", "WHOLE", "long_first", "make_scheduler", "unit_of"]

SPLIT = (
    "tests/system/cluster/test_tune_spot.py",
    "tests/examples/test_grpo_slurm.py",
    "tests/system/slurm/test_chain.py",
    "tests/system/slurm/test_rollouts.py",
    "tests/system/slurm/test_ends.py",
    "tests/system/slurm/test_faults.py",
    "tests/examples/test_torch_ddp.py",
    "tests/system/slurm/test_preemption.py",
    "tests/examples/test_provable.py",
    "tests/system/slurm/test_remote.py",
    "tests/train/system/test_kill_and_resume.py",
    "tests/system/slurm/test_torchrun.py",
    "tests/train/parallel/test_equality.py",
    "tests/system/slurm/test_secrets.py",
    "tests/system/test_ray.py",
    "tests/tune/sweep/test_sweeps_on_slurm.py",
    "tests/examples/test_train_llama.py",
    "tests/system/slurm/test_ray.py",
    "tests/system/images/test_many_builders.py",
    "tests/system/test_commits.py",
    "tests/system/test_kills.py",
    "tests/examples/test_tune_examples.py",
)
"""The longest first, those that compute between those that wait: three Rays and torches at once are more than two cores
start in time. Where a file should stand is seen in build/tests-system.xml; a wrong place costs time and no more."""

WHOLE = (
    "tests/tune/executors/ray/test_notices.py",
    "tests/system/cluster/test_aws.py",
    "tests/system/cluster/test_cluster_faults.py",
    "tests/system/cluster/test_ray_versions.py",
    "tests/system/cluster/test_sweep.py",
    "tests/examples/test_train_tiny.py",
    "tests/system/slurm/test_bad_input.py",
    "tests/cli/test_runs.py",
    "tests/backends/slurm/test_slurm_lab.py",
    "tests/lab/test_slurm_lab.py",
    "tests/lab/test_cloud_lab.py",
    "tests/system/test_sites.py",
    "tests/tune/executors/ray/test_on_ray.py",
    "tests/system/images/test_registries.py",
    "tests/system/images/test_building_images.py",
    "tests/system/test_gang.py",
    "tests/launcher/test_mirror_ssh.py",
    "tests/backends/slurm/test_conformance.py",
    "tests/train/optim/test_sharded.py",
    "tests/system/beaker/test_faults.py",
    "tests/launcher/test_archiving.py",
    "tests/supervise/builds/test_build.py",
    "tests/system/data/test_s3.py",
)
"""Behind those: long files whose tests stay together."""

_PLACES = {path: place for place, path in enumerate((*SPLIT, *WHOLE))}


def unit_of(nodeid: str) -> str:
    """What a worker takes at once: a file, or one test of a file in `SPLIT`."""
    path = nodeid.partition("::")[0]
    return nodeid if path in SPLIT else path


def long_first(nodeids: Iterable[str]) -> list[int]:
    """The places of the tests in the order to run them; files that are not listed keep theirs, behind the others."""
    places = [_PLACES.get(nodeid.partition("::")[0], len(_PLACES)) for nodeid in nodeids]
    return sorted(range(len(places)), key=places.__getitem__)


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What deals the tests to the workers of `--dist loadfile`."""
    # lazy: only the process that deals needs it
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler
