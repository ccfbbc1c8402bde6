"""Five scripted faults of EC2 while the head's fleet scales, whose monitor is killed; a hundred are in tests/soak."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.cloud import CloudLab
from tests.system.cluster.scaling.fleet_faults import fleet_table, play_fleet

pytestmark = pytest.mark.system

FIRST_SEED = 1


def test_five_faults_and_killed_monitors(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("s3")  # moto
    pytest.importorskip("ray")
    lab = CloudLab(boots=False, name="fleet-faults")
    try:
        lab.up()
        outcome = play_fleet(lab, tmp_path, FIRST_SEED, 5)
    finally:
        lab.down()
    assert outcome.problems == [], fleet_table(outcome)
    assert outcome.faults.total() >= 5
    # EC2 states times in whole seconds, and a busy machine is late: machines that live for seconds are off by a part of them
    assert abs(outcome.cost_s - outcome.ledger_s) <= max(0.5 * outcome.machines, 0.01 * outcome.ledger_s), fleet_table(
        outcome
    )
