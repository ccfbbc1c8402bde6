from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.system.stage import Stage
from tests.system.test_many_replicas import assert_all_ended, launch_and_wait

pytestmark = pytest.mark.soak

NUM_REPLICAS = 512


def test_the_most_replicas_that_a_plan_allows(stage: Stage, evidence: Callable[[str, str], None]) -> None:
    began = time.monotonic()
    run = launch_and_wait(stage, NUM_REPLICAS)
    started = time.monotonic()
    run.stop()
    assert_all_ended(stage, run)
    lines = [
        f"replicas on one machine                        {NUM_REPLICAS}",
        f"seconds from the launch to the last one's code {started - began:.1f}",
        f"seconds from the stop to the last process gone {time.monotonic() - started:.1f}",
    ]
    text = "\n".join(lines)
    print("\n" + text)  # noqa: T201 - the table is what `make soak` is for
    evidence("many-replicas", text)
