"""One hundred rounds of chaos, each a run with one fault at a random moment.

SOAK_SHARE=0.1 plays a tenth of them, CHAOS_SEEDS=17,33 those alone (and keeps no table); what a seed strikes, and when,
is always the same. The table is kept after every round, so that a soak that is ended early leaves a true one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest

from tests.soak.chaos_faults import FAULTS
from tests.soak.chaos_rounds import Outcome, fault_of, play, table
from tests.system.slurm.conftest import slurm_stage  # noqa: F401 - a fixture, found by its name
from tests.system.slurm.slurm_stage import SlurmStage

pytestmark = pytest.mark.soak

NUM_ROUNDS = max(1, round(float(os.environ.get("SOAK_SHARE", "1")) * 100))
SEEDS = [int(word) for word in os.environ.get("CHAOS_SEEDS", "").replace(",", " ").split()]
NUM_AT_ONCE = 3


def test_a_hundred_rounds_of_chaos(
    slurm_stage: SlurmStage,  # noqa: F811
    evidence: Callable[[str, str], None],
    need: Callable[[str], None],
) -> None:
    need("root")
    outcomes: list[Outcome] = []
    seeds = SEEDS or list(range(NUM_ROUNDS))

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        print(_told(outcome), flush=True)  # noqa: T201 - a soak says how far it is
        if not SEEDS:
            evidence("chaos", table(outcomes))

    for first in range(0, len(seeds), len(FAULTS)):
        block = seeds[first : first + len(FAULTS)]
        alone = [seed for seed in block if FAULTS[fault_of(seed)].is_alone]
        _play_together(slurm_stage, [seed for seed in block if seed not in alone], note)
        for seed in alone:
            note(play(slurm_stage, seed))
    slurm_stage.wait_until_queue_is_empty()
    print("\n" + table(outcomes))  # noqa: T201 - the table is what `make soak` is for
    problems = [f"{_told(outcome)}\n{outcome.story}" for outcome in outcomes if outcome.problems]
    assert not problems, "\n\n".join(problems)


def _play_together(stage: SlurmStage, seeds: Sequence[int], note: Callable[[Outcome], None]) -> None:
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        for future in as_completed([pool.submit(play, stage, seed) for seed in seeds]):
            note(future.result())


def _told(outcome: Outcome) -> str:
    after = f"{outcome.recovery_s:.1f} s" if outcome.recovery_s is not None else "nothing after it"
    line = f"seed {outcome.seed}: {outcome.fault}, {outcome.moment}: {', '.join(outcome.causes)}, {after}"
    return "\n  ".join([line, *outcome.problems])
