"""Twenty scripted faults of EC2 with clients that are killed; two hundred are in tests/soak/test_cluster_faults.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.cloud import CloudLab
from tests.system.cluster.cloud_faults import play, table

pytestmark = pytest.mark.system

FIRST_SEED = 1


def test_twenty_faults_and_killed_clients(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("s3")  # moto
    lab = CloudLab(boots=False, name="faults")
    try:
        lab.up()
        outcome = play(lab, tmp_path, FIRST_SEED, 20)
    finally:
        lab.down()
    assert outcome.problems == [], table(outcome)
    assert outcome.faults.total() >= 20
    assert outcome.kills.total() >= 2
    # EC2 states times in whole seconds: machines that live for seconds are off by a part of one each
    allowed_s = max(0.25 * outcome.machines, 0.01 * outcome.ledger_s) + outcome.slack_s
    assert abs(outcome.cost_s - outcome.ledger_s) <= allowed_s, table(outcome)
