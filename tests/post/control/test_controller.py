"""The controller of rollouts: single cases, and histories of the simulation that its mutants do not survive.

`make soak` plays many more histories, and longer ones (tests/soak/test_rollouts.py).
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.post.control.mutants import CAUGHT_AT, MUTANTS
from tests.post.control.simulation import Scenario, draw, simulate
from windlass.post.control.controller import ControllerConfig, RolloutController
from windlass.post.control.messages import (
    BatchWanted,
    CancelSamples,
    CheckpointCommitted,
    Claim,
    Command,
    Give,
    GroupRejected,
    LearnerRestarted,
    Load,
    SampleGenerated,
    SampleScored,
    StopRequested,
    UseBatch,
    Wait,
    WeightsLoaded,
    WeightsPublished,
    WorkerJoined,
    WorkerLeft,
)
from windlass.post.rollout.types import SampleId, TokenSpan
from windlass.post.samples.records import CommitStep, DropGroup, PlanGroup, Record, ReserveBatch, Scored, oldest_version

NUM_SEEDS = 100
SYNCHRONOUS = ControllerConfig(groups_per_batch=2, group_size=2)
BOUND_2 = ControllerConfig(groups_per_batch=2, group_size=2, bound=2, ahead=1)
FAILURES = Scenario(
    seed=1,
    config=ControllerConfig(groups_per_batch=4, group_size=4, bound=2, ahead=1),
    num_workers=3,
    num_slots=8,
    num_steps=300,
    deaths=0.01,
    suspicions=0.01,
    repeats=0.1,
    delays=0.01,
    old_caches=0.01,
    restarts=0.05,
    process_kills=0.05,
    kills_at_commands=0.002,
)


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, NUM_SEEDS, 20))
def test_what_must_hold_does_in_every_history(first: int) -> None:
    failures = [result.failure for result in map(simulate, range(first, first + 20)) if result.failure]
    assert failures == []


@pytest.mark.sim
@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_caught(mutant: str) -> None:
    """By the seed that caught it when last measured, or by any other."""
    seeds = [CAUGHT_AT.get(mutant, 0), *range(10 * NUM_SEEDS)]
    assert any(simulate(seed, mutant=mutant).failure for seed in seeds), f"{mutant} survives {len(seeds)} seeds"


@pytest.mark.sim
def test_one_seed_is_one_history() -> None:
    first, second = simulate(7), simulate(7)
    assert (first.lengths, first.num_events, first.time) == (second.lengths, second.num_events, second.time)


@pytest.mark.sim
@pytest.mark.parametrize("bound", [1, 2, 5])
def test_no_token_is_older_than_the_bound_in_a_long_run_with_deaths(bound: int) -> None:
    """And the bound is reached: a stricter controller would be slower for nothing."""
    result = simulate(replace(FAILURES, config=replace(FAILURES.config, bound=bound)))
    assert (result.failure, result.max_lag, result.num_steps) == ("", bound, 300)
    assert result.num_killed > 50


@pytest.mark.sim
def test_the_process_is_killed_after_every_kind_of_command() -> None:
    """The log then ends with that command or before it, and nothing after it was done."""
    result = simulate(replace(FAILURES, kills_at_commands=0.02, num_steps=300, checkpoint_every=2))
    assert result.failure == ""
    assert {*result.killed_after} >= {
        "PlanGroup",
        "Scored",
        "ReserveBatch",
        "CommitStep",
        "Give",
        "Load",
        "UseBatch",
        "Wait",
    }


@pytest.mark.sim
def test_lengths_of_trained_answers_do_not_depend_on_kills() -> None:
    """The largest distance of the two distributions is far below what a lost tail would make."""
    calm = replace(
        FAILURES,
        deaths=0,
        suspicions=0,
        repeats=0,
        delays=0,
        old_caches=0,
        restarts=0,
        process_kills=0,
        kills_at_commands=0,
    )
    killed = replace(
        FAILURES, restarts=0.0, process_kills=0.0, kills_at_commands=0.0
    )  # a batch that is used again would count twice
    expected, found = simulate(calm), simulate(killed)
    assert (found.failure, expected.failure) == ("", "")
    assert found.num_killed > 20
    assert distance(expected.lengths, found.lengths) < 0.01


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Kolmogorov-Smirnov distance."""
    one, two = sorted(first), sorted(second)
    return max(abs(bisect_right(one, at) / len(one) - bisect_right(two, at) / len(two)) for at in {*one, *two})


def test_state_stays_small_in_ten_thousand_steps_without_a_checkpoint() -> None:
    config = ControllerConfig(groups_per_batch=2, group_size=1, bound=2, ahead=1)
    run = Run(config)
    run.join(num_slots=8)
    sizes = []
    for step in range(10_000):
        if step in (100, 9_999):
            sizes.append(len(pickle.dumps(vars(run.controller))))
        run.train(step)
    assert sizes[1] - sizes[0] < 800_000  # below 4 MB for 32 groups a batch: 8 bytes a group and 60 a batch
    run.send(CheckpointCommitted(step=10_000))
    assert len(pickle.dumps(vars(run.controller))) <= sizes[0]


class Run:
    """A controller, its log, and one worker that finishes what it has when it is asked to."""

    def __init__(self, config: ControllerConfig, controller: RolloutController | None = None) -> None:
        self.controller = controller or RolloutController(config)
        self.now_s = 0.0
        self.log: list[Record] = []
        self.claims: dict[str, list[Claim]] = {}

    def send(self, event: object) -> list[Command]:
        commands = self.controller.handle(event, self.now_s)  # type: ignore[arg-type]
        for command in commands:
            if isinstance(command, Give):
                self.claims.setdefault(command.worker, []).extend(command.claims)
            elif isinstance(command, Record):
                self.log.append(command)
        return commands

    def join(self, worker: str = "a", *, num_slots: int = 99, version: int = 0) -> list[Command]:
        return self.send(WorkerJoined(worker=worker, num_slots=num_slots, version=version))

    def finish(self, worker: str = "a", count: int = 999, *, version: int | None = None) -> list[Command]:
        commands: list[Command] = []
        for _ in range(count):
            if not self.claims.get(worker):
                break
            claim = self.claims[worker].pop(0)
            oldest = claim.oldest_version if version is None else version
            commands += self.send(SampleScored(worker=worker, id=claim.id, oldest_version=oldest, length=10))
        return commands

    def train(self, step: int) -> tuple[int, ...]:
        """Do a step: want its batch, finish samples until it is there, publish and load."""
        found = batch_of(self.send(BatchWanted(step=step)))
        while found is None:
            done = self.finish(count=1)
            assert done, "no work is left"
            found = batch_of(done)
        self.send(WeightsPublished(version=step + 1))
        self.send(WeightsLoaded(worker="a", version=step + 1))
        return found


def batch_of(commands: Sequence[Command]) -> tuple[int, ...] | None:
    return next((command.groups for command in commands if isinstance(command, UseBatch)), None)


def of(kind: type, commands: Sequence[Command]) -> list[Command]:
    return [command for command in commands if isinstance(command, kind)]


def sample(group: int, member: int, attempt: int = 0) -> SampleId:
    return SampleId(group=group, member=member, attempt=attempt)


def test_at_bound_0_batches_are_consecutive_groups_of_the_current_weights() -> None:
    run = Run(SYNCHRONOUS)
    assert of(PlanGroup, run.join()) == [
        PlanGroup(group=0, row=0, oldest_version=0),
        PlanGroup(group=1, row=1, oldest_version=0),
    ]
    assert run.train(0) == (0, 1)
    assert [claim.oldest_version for claim in run.claims["a"]] == [1] * 4
    assert run.train(1) == (2, 3)
    assert run.log[-3:] == [
        ReserveBatch(step=1, groups=(2, 3)),
        PlanGroup(group=4, row=4, oldest_version=2),
        PlanGroup(group=5, row=5, oldest_version=2),
    ]


def test_at_bound_0_nothing_is_started_before_the_step_is_finished() -> None:
    run = Run(SYNCHRONOUS)
    run.join()
    run.finish()
    assert of(Give, run.send(BatchWanted(step=0))) == []
    assert run.send(WeightsPublished(version=1)) == [Load(worker="a", version=1)]
    assert len(of(Give, run.send(WeightsLoaded(worker="a", version=1)))) == 1


def test_a_late_group_is_passed_until_it_is_due_and_then_waited_for() -> None:
    run = Run(BOUND_2)
    run.join(num_slots=2)
    late = run.claims["a"].pop(0)
    assert late.id == sample(0, 0)
    used = [run.train(0), run.train(1)]
    assert 0 not in {*used[0], *used[1]}
    run.send(BatchWanted(step=2))
    run.finish()
    waits = run.controller.waits()
    assert waits[0] == Wait(who="learner", what="samples", since_s=0.0, on=("a",), groups=(0,))
    assert waits[1].what == "batch"
    done = run.send(SampleScored(worker="a", id=late.id, oldest_version=0, length=10))
    assert 0 in (batch_of(done) or ())


def test_mini_batches_count_in_the_lag() -> None:
    config = ControllerConfig(groups_per_batch=1, group_size=1, bound=3, ahead=1, steps_per_batch=2)
    run = Run(config)
    run.join()
    assert [claim.id.group for claim in run.claims["a"]] == [0, 1]
    assert run.train(0) == (0,)
    assert config.slack == 1
    assert run.train(1) == (0,)
    assert [claim.oldest_version for claim in run.claims["a"]] == [0, 2]  # 1 would be 3 steps old in step 4, and 4 in 5


def test_samples_of_a_dead_worker_go_to_another_one_and_finished_ones_are_kept() -> None:
    run = Run(SYNCHRONOUS)
    run.join("a")
    run.finish("a", 1)
    run.join("b")
    given = of(Give, run.send(WorkerLeft(worker="a")))
    assert given == [
        Give(
            worker="b",
            claims=tuple(Claim(id=sample(*at, attempt=1), oldest_version=0) for at in [(0, 1), (1, 0), (1, 1)]),
        )
    ]


def test_a_sample_that_arrives_after_its_worker_was_given_up_counts_and_the_other_is_cancelled() -> None:
    run = Run(SYNCHRONOUS)
    run.join("a")
    run.join("b")
    run.send(WorkerLeft(worker="a"))
    done = run.send(SampleScored(worker="a", id=sample(0, 0), oldest_version=0, length=10))
    assert done == [
        CancelSamples(worker="b", ids=(sample(0, 0, attempt=1),)),
        Scored(id=sample(0, 0), oldest_version=0, length=10),
    ]
    assert run.send(SampleScored(worker="b", id=sample(0, 0, attempt=1), oldest_version=0, length=10)) == []
    assert run.controller.counts["repeated"] == 1


def test_a_generated_sample_survives_its_worker() -> None:
    run = Run(SYNCHRONOUS)
    run.join("a", num_slots=1)
    given = of(Give, run.send(SampleGenerated(worker="a", id=sample(0, 0), oldest_version=0, length=10)))
    assert given[0].claims[0].id == sample(0, 1)  # type: ignore[union-attr]
    run.send(WorkerLeft(worker="a"))
    run.join("b")
    assert [claim.id for claim in run.claims["b"]] == [sample(0, 1, attempt=1), sample(1, 0), sample(1, 1)]
    assert len(of(Scored, run.send(SampleScored(worker="a", id=sample(0, 0), oldest_version=0, length=10)))) == 1


def test_a_sample_that_read_a_cache_that_is_too_old_is_refused_counted_and_generated_again() -> None:
    run = Run(SYNCHRONOUS)
    run.join()
    run.train(0)
    refused = run.send(SampleScored(worker="a", id=sample(2, 0), oldest_version=0, length=10))
    assert refused == [Give(worker="a", claims=(Claim(id=sample(2, 0, attempt=1), oldest_version=1),))]
    assert (run.controller.counts["refused"], run.controller.counts["refused_tokens"]) == (1, 10)


def test_a_worker_that_joins_again_keeps_what_it_holds() -> None:
    run = Run(SYNCHRONOUS)
    run.join()
    run.finish(count=1)
    holds = (sample(0, 0), sample(0, 1), sample(1, 0))
    again = run.send(WorkerJoined(worker="a", num_slots=9, version=0, holds=holds))
    assert again == [
        CancelSamples(worker="a", ids=(sample(0, 0),)),
        Give(worker="a", claims=(Claim(id=sample(1, 1, attempt=1), oldest_version=0),)),
    ]


def test_a_rejected_group_is_replaced_in_its_batch_up_to_the_limit() -> None:
    run = Run(replace(SYNCHRONOUS, max_replaced=1))
    run.join()
    run.finish(count=1)
    rejected = run.send(SampleScored(worker="a", id=sample(0, 1), oldest_version=0, length=5, rejected="constant"))
    assert rejected[1:3] == [
        DropGroup(group=0, reason="constant", length=15),
        PlanGroup(group=2, row=2, oldest_version=0),
    ]
    assert run.send(GroupRejected(group=1, reason="constant"))[-1] == DropGroup(group=1, reason="constant", length=0)
    run.claims["a"] = [claim for claim in run.claims["a"] if claim.id.group == 2]
    run.send(BatchWanted(step=0))
    assert batch_of(run.finish()) == (2,)


def test_the_last_group_of_a_batch_is_kept_when_no_other_replaces_it() -> None:
    run = Run(ControllerConfig(groups_per_batch=1, group_size=1, max_replaced=0))
    run.join()
    run.send(SampleScored(worker="a", id=sample(0, 0), oldest_version=0, length=5, rejected="constant"))
    assert batch_of(run.send(BatchWanted(step=0))) == (0,)


def test_a_sample_that_kills_its_workers_costs_its_group() -> None:
    run = Run(replace(SYNCHRONOUS, max_attempts=3))
    for number in range(3):
        run.join(f"w{number}", num_slots=1)
        left = run.send(WorkerLeft(worker=f"w{number}"))
    assert left == [DropGroup(group=0, reason="attempts", length=0)]


def test_a_learner_that_restarts_gets_the_same_batches_from_the_same_and_from_a_rebuilt_controller() -> None:
    run = Run(BOUND_2)
    run.join()
    used = [run.train(step) for step in range(4)]
    run.send(CheckpointCommitted(step=2))
    run.finish(count=3)
    run.send(LearnerRestarted(step=2))
    assert [batch_of(run.send(BatchWanted(step=step))) for step in (2, 3)] == used[2:]
    rebuilt = Run(BOUND_2, RolloutController.rebuilt(BOUND_2, run.log, step=2))
    assert rebuilt.controller.complete == run.controller.complete
    assert [batch_of(rebuilt.send(BatchWanted(step=step))) for step in (2, 3)] == used[2:]
    finished = {record.id for record in run.log if isinstance(record, Scored)}
    rebuilt.join(version=4)
    assert finished.isdisjoint(claim.id for claim in rebuilt.claims["a"])
    assert rebuilt.train(4)


def test_a_batch_that_is_committed_or_out_of_order_is_an_error() -> None:
    run = Run(SYNCHRONOUS)
    run.join()
    run.train(0)
    assert run.send(CheckpointCommitted(step=1)) == [CommitStep(step=1)]
    with pytest.raises(ValueError, match="the batch of step 0 is number 0; there are 1 to 1"):
        run.send(BatchWanted(step=0))
    with pytest.raises(ValueError, match="step 3"):
        run.send(BatchWanted(step=3))


def test_groups_that_cannot_meet_a_bound_that_was_lowered_are_dropped_and_counted() -> None:
    run = Run(BOUND_2)
    run.join(num_slots=2)
    del run.claims["a"][0]
    run.train(0), run.train(1)
    rebuilt = Run(SYNCHRONOUS, RolloutController.rebuilt(SYNCHRONOUS, run.log, step=2))
    dropped = of(DropGroup, rebuilt.join(version=2))
    assert DropGroup(group=0, reason="bound", length=10) in dropped
    assert rebuilt.controller.counts["dropped_bound"] == len(dropped)
    assert len(rebuilt.train(2)) == 2


def test_a_worker_with_old_weights_gets_nothing_until_it_loaded_newer_ones() -> None:
    run = Run(SYNCHRONOUS)
    run.join()
    run.train(0)
    assert of(Give, run.join("b", version=0)) == []
    assert run.controller.waits()[-1] == Wait(who="b", what="weights", since_s=0.0)
    run.send(WorkerLeft(worker="a"))
    assert len(of(Give, run.send(WeightsLoaded(worker="b", version=1)))) == 1


def test_after_a_stop_nothing_is_started() -> None:
    run = Run(SYNCHRONOUS)
    run.send(StopRequested())
    assert run.join() == []


def test_without_workers_the_learner_waits_for_nobody() -> None:
    run = Run(SYNCHRONOUS)
    run.now_s = 7.0
    assert run.send(BatchWanted(step=0)) == [Wait(who="learner", what="samples", since_s=7.0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 0}, "at least 1"),
        ({"bound": 1, "steps_per_batch": 3}, "bound below"),
        ({"bound": 2, "ahead": 3}, "ahead is 3, but the bound leaves room for 2"),
        ({"max_attempts": 256}, "use 1 to 255"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SYNCHRONOUS, **changes)


def test_the_oldest_version_counts_what_was_read_and_skips_what_the_policy_did_not_write() -> None:
    spans = (
        TokenSpan(start=0, stop=2, version=5),
        TokenSpan(start=2, stop=4, version=6, oldest_read=3),
        TokenSpan(start=4, stop=5, version=None, origin="tool"),
    )
    assert oldest_version(spans) == 3


def test_scenarios_differ() -> None:
    drawn = [draw(seed) for seed in range(40)]
    assert {scenario.config.slack for scenario in drawn} >= {0, 1, 2}
    assert {scenario.config.steps_per_batch for scenario in drawn} == {1, 2, 3}
