"""Two hundred scripted faults of EC2, with clients that are killed at random calls during up and down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.cloud import CloudLab
from tests.system.cluster.cloud_faults import play, table

pytestmark = pytest.mark.soak

NUM_FAULTS = 200
FIRST_SEED = 1000


def test_two_hundred_faults_and_killed_clients(
    tmp_path: Path, need: Callable[[str], None], evidence: Callable[[str, str], None]
) -> None:
    need("s3")  # moto
    lab = CloudLab(boots=False, name="faults")
    try:
        lab.up()
        outcome = play(lab, tmp_path, FIRST_SEED, NUM_FAULTS)
    finally:
        lab.down()
    text = table(outcome)
    print("\n" + text)  # noqa: T201 - the table is what `make soak` is for
    evidence("cluster-faults", text)
    assert outcome.problems == []
    assert (outcome.leaked, outcome.doubled, outcome.unknown) == (0, 0, 0)
    assert abs(outcome.cost_s - outcome.ledger_s) <= 0.01 * outcome.ledger_s
