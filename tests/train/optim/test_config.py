"""Settings that cannot be, and what is said about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from windlass.config.loading import from_data
from windlass.core.errors import SpecError
from windlass.train.duration import Duration
from windlass.train.optim.config import AdamWConfig, LionConfig, MuonConfig
from windlass.train.optim.schedule_check import schedule_findings
from windlass.train.optim.schedule_config import ScheduleConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    optim: AdamWConfig | LionConfig | MuonConfig = AdamWConfig()
    schedule: ScheduleConfig | None = None


def refusals(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        from_data(Holder, data)
    return [(problem.message, problem.hint) for problem in caught.value.problems]


def schedule(data: Mapping[str, Any]) -> ScheduleConfig:
    holder: Any = from_data(Holder, {"schedule": data})
    found: ScheduleConfig = holder.schedule
    return found


@pytest.mark.parametrize("kind", ["adamw", "lion", "muon"])
def test_betas_are_two_numbers_below_one(kind: str) -> None:
    (first,) = refusals({"optim": {"kind": kind, "betas": [0.9]}})
    assert "`betas` has 1 number, not 2" in first[0]
    assert first[1] == "write two numbers, such as [0.9, 0.95]"
    both = refusals({"optim": {"kind": kind, "betas": [1.0, -0.5]}})
    assert ["`betas.0` is `1.0`" in both[0][0], "`betas.1` is `-0.5`" in both[1][0]] == [True, True]


def test_momentum_forgets() -> None:
    ((message, _),) = refusals({"optim": {"kind": "muon", "momentum": 1.0}})
    assert "invalid momentum 1.0: it must be below 1" in message


def test_a_group_sets_something_and_frozen_ones_set_nothing_else() -> None:
    found = refusals({"optim": {"groups": [{"match": "a"}, {"match": "b", "is_frozen": True, "lr": 1.0}]}})
    assert "this group sets nothing" in found[0][0]
    assert "lr of parameters that are frozen" in found[1][0]


def test_lengths_of_a_sequence_are_one_fewer_than_its_parts() -> None:
    parts = [{"kind": "constant"}, {"kind": "linear"}]
    ((message, hint),) = refusals({"schedule": {"kind": "sequential", "parts": parts, "lengths": []}})
    assert "0 lengths for 2 parts" in message
    assert hint == "write 1: the last part lasts to the run's end"
    ((message, _),) = refusals({"schedule": {"kind": "sequential", "parts": [], "lengths": []}})
    assert "no parts" in message


def test_inverse_sqrt_needs_a_warmup() -> None:
    ((_, hint),) = refusals({"schedule": {"kind": "inverse-sqrt"}})
    assert hint == "set `warmup`"


RUN = Duration.steps(100)


@pytest.mark.parametrize(
    ("data", "duration", "expected"),
    [
        (
            {"kind": "cosine", "warmup": "101steps"},
            RUN,
            ("schedule.warmup", "a warm-up of 101 steps is longer than the run of 100 steps"),
        ),
        (
            {"kind": "cosine", "warmup": "60000 tokens", "over": "50steps"},
            RUN,
            ("schedule.warmup", "a warm-up of 60000 tokens is longer than `over` of 50 steps"),
        ),
        (
            {"kind": "wsd", "decay": "101steps"},
            RUN,
            ("schedule.decay", "a decay of 101 steps does not fit into the run of 100 steps"),
        ),
        (
            {"kind": "wsd", "decay": "60steps", "warmup": "50steps"},
            RUN,
            (
                "schedule.decay",
                "a decay of 60 steps after a warm-up of 50 steps does not fit into the run of 100 steps",
            ),
        ),
        (
            {"kind": "linear", "warmup": "3epochs"},
            Duration.epochs(2),
            ("schedule.warmup", "a warm-up of 3 epochs is longer than the run of 2 epochs"),
        ),
        (
            {
                "kind": "sequential",
                "parts": [{"kind": "constant"}, {"kind": "linear"}],
                "lengths": ["100000 tokens"],
            },
            RUN,
            ("schedule.lengths", "the parts before the last fill the whole run of 100 steps"),
        ),
        (
            {
                "kind": "sequential",
                "parts": [{"kind": "linear", "warmup": "30steps"}, {"kind": "cosine", "over": "9steps"}],
                "lengths": ["20steps"],
            },
            RUN,
            ("schedule.parts.0.warmup", "a warm-up of 30 steps is longer than the part of 20 steps"),
        ),
    ],
)
def test_schedules_that_do_not_fit(data: Mapping[str, Any], duration: Duration, expected: tuple[str, str]) -> None:
    found = list(schedule_findings(schedule(data), duration, 1000))
    assert found[0][:2] == expected
    assert found[0][2] == "invalid-schedule"
    assert all(finding[3] for finding in found)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "cosine", "warmup": "100steps"},
        {"kind": "wsd", "decay": "50steps", "warmup": "50000 tokens"},
        {"kind": "linear", "warmup": "7epochs"},
        {"kind": "constant", "warmup": "1000steps"},
        {"kind": "sequential", "parts": [{"kind": "constant"}, {"kind": "linear"}], "lengths": ["99steps"]},
    ],
)
def test_schedules_that_fit_or_take_the_data_to_know(data: Mapping[str, Any]) -> None:
    assert not list(schedule_findings(schedule(data), RUN, 1000))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"kind": "power"}, "the schedule is undefined without a warm-up"),
        (
            {"kind": "power", "warmup": "5steps", "final": 0.1},
            "`final` 0.1 is set without a decay",
        ),
        ({"kind": "power", "warmup": "5steps", "exponent": 0.5}, "which is out of range"),
        ({"kind": "exponential", "final": 0}, "which is out of range"),
        ({"kind": "wsd-s", "periods": [], "decay_share": 0.1}, "no periods"),
        ({"kind": "wsd-s", "periods": ["0steps"], "decay_share": 0.1}, "this period has length 0"),
        ({"kind": "wsd-s", "periods": ["9steps"]}, "the periods have no decay"),
        ({"kind": "wsd-s", "periods": ["9steps"], "decay": "3steps", "decay_share": 0.1}, "both `decay` and"),
        ({"kind": "wsd-s", "periods": ["9steps"], "decay_share": 0.1, "peaks": [1, 1]}, "2 peaks for 1 periods"),
        (
            {"kind": "wsd-s", "periods": ["9steps"], "decay_share": 0.1, "peaks": [0]},
            "a peak of 0.0 is not above the final value",
        ),
    ],
)
def test_powers_and_periods_that_cannot_be(data: Mapping[str, Any], said: str) -> None:
    ((message, hint),) = refusals({"schedule": data})
    assert said in message
    assert hint


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"periods": ["60steps", "60steps"], "decay": "5steps"}, "the periods are longer than the run of 100 steps"),
        ({"periods": ["60steps"], "decay": "5steps"}, "the rate is 0 from there on"),
        ({"periods": ["10steps", "90steps"], "decay": "20steps"}, "the decay does not fit into a period of 10 steps"),
        ({"periods": ["100steps"], "decay": "20steps", "warmup": "90steps"}, "the warm-up and the decay do not fit"),
    ],
)
def test_periods_fit_into_the_run(data: Mapping[str, Any], said: str) -> None:
    found = list(schedule_findings(schedule({"kind": "wsd-s", **data}), Duration.steps(100), None))
    assert [said in message for _, message, _, _ in found] == [True]
