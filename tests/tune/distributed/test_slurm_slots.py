"""The same for slots on Slurm: 64 trials, a node killed and another one added, the head killed twice."""

from __future__ import annotations

import random
import sys

import pytest

from tests.system.slurm.slurm_stage import SITE
from tests.system.stage import until
from tests.tune.sweep.test_sweeps_on_slurm import (  # noqa: F401  the fixture is found by its name
    SLOT,
    SlurmHill,
    a_busy_node,
    check_all_there,
    kill_heads,
    slurm_hill,
)
from windlass.tune.sweep.handle import SweepHandle

pytestmark = pytest.mark.soak


def test_sixty_four_trials_survive_a_node_and_their_heads(slurm_hill: SlurmHill) -> None:  # noqa: F811
    hill = slurm_hill
    assert sys.executable in SLOT
    sweep = {"samples": 64, "trainable": "climbing:Climber", "slots": 4, "keep": {"best": 1}}
    task = {"main": {"run": SLOT, "cpus": 1, "vars": {"PAUSE_S": "0.1"}}}
    path = hill.file(sweep, tasks=task, params={}, name="pull")
    handle = SweepHandle(hill.prepare(path, "far", on=SITE).create())
    head = hill.head(handle)
    until(lambda: bool(handle.row.counts) and bool(a_busy_node(handle)), "trials run", timeout_s=300)
    node = a_busy_node(handle)
    hill.lab.kill(node)
    hill.kill_head(head)
    before = {trial.id: len(trial.attempts) for trial in handle.history.trials.values() if trial.status.is_over}
    hill.lab.start(node)
    head = kill_heads(hill, handle, 1, random.Random(5))
    assert head.wait(300) == 0, hill.words(handle)
    check_all_there(handle, 64, 8)
    after = handle.history.trials
    assert {trial: len(after[trial].attempts) for trial in before} == before, "a finished trial ran again"
    hill.wait_until_queue_is_empty()
