"""A hundred scripted faults of EC2 while the head's fleet scales, with its monitor killed at random calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.cloud import CloudLab
from tests.system.cluster.scaling.fleet_faults import fleet_table, play_fleet

pytestmark = pytest.mark.soak

NUM_FAULTS = 100
FIRST_SEED = 1000


def test_a_hundred_faults_and_killed_monitors(
    tmp_path: Path, need: Callable[[str], None], evidence: Callable[[str, str], None]
) -> None:
    need("s3")  # moto
    pytest.importorskip("ray")
    lab = CloudLab(boots=False, name="fleet-faults")
    try:
        lab.up()
        outcome = play_fleet(lab, tmp_path, FIRST_SEED, NUM_FAULTS)
    finally:
        lab.down()
    text = fleet_table(outcome)
    print("\n" + text)  # noqa: T201 - the table is what `make soak` is for
    evidence("cluster-scaling-faults", text)
    assert outcome.problems == []
    assert (outcome.leaked, outcome.doubled, outcome.unknown) == (0, 0, 0)
    assert abs(outcome.cost_s - outcome.ledger_s) <= 0.01 * outcome.ledger_s
