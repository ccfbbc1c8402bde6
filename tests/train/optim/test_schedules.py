"""Learning rates against values computed by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import SpecError
from windlass.train.duration import Duration
from windlass.train.optim.schedule_config import (
    ConstantConfig,
    CosineConfig,
    ExponentialConfig,
    HalfCosineConfig,
    InverseSqrtConfig,
    LinearConfig,
    PowerConfig,
    ScheduleConfig,
    SequentialConfig,
    WSDConfig,
    WSDSConfig,
)
from windlass.train.optim.schedules import Rates, ScheduleStep, curve, lr_factor

STEPS = Duration.steps
TOKENS = Duration.tokens
RUN = Duration.steps(100)
UNKNOWN = Rates()


def at(schedule: ScheduleConfig, step: int, duration: Duration = RUN, rates: Rates = UNKNOWN) -> float:
    tokens = step * (rates.batch_tokens or 0)
    return lr_factor(schedule, ScheduleStep(step=step, tokens=tokens, rates=rates), duration)


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (ConstantConfig(), 1, 1.0),
        (ConstantConfig(warmup=STEPS(4)), 1, 0.25),
        (ConstantConfig(warmup=STEPS(4)), 4, 1.0),
        (ConstantConfig(warmup=STEPS(4), warmup_from=0.2), 1, 0.4),
        (CosineConfig(final=0.1), 50, 0.55),
        (CosineConfig(final=0.1), 100, 0.1),
        (CosineConfig(final=0.1), 1000, 0.1),
        (CosineConfig(final=0.0, warmup=STEPS(10)), 5, 0.5),
        (CosineConfig(final=0.0, warmup=STEPS(10)), 10, 1.0),
        (CosineConfig(final=0.0, warmup=STEPS(10)), 40, 0.75),
        (CosineConfig(final=0.0, over=STEPS(200)), 100, 0.5),
        (LinearConfig(final=0.0), 25, 0.75),
        (LinearConfig(final=0.2, warmup=STEPS(20)), 60, 0.6),
        (WSDConfig(decay=STEPS(20)), 80, 1.0),
        (WSDConfig(decay=STEPS(20)), 90, 0.5),
        (WSDConfig(decay=STEPS(20), shape="sqrt"), 85, 0.5),
        (WSDConfig(decay=STEPS(20), shape="cosine", final=0.1), 90, 0.55),
        (WSDConfig(decay=STEPS(20), warmup=STEPS(5)), 1, 0.2),
        (HalfCosineConfig(final=0.0), 50, (1 + math.cos(0.75 * math.pi)) / 2),
        (HalfCosineConfig(final=0.1), 100, 0.1),
        (HalfCosineConfig(final=0.2, warmup=STEPS(10)), 5, 0.3),
        (HalfCosineConfig(final=0.2, warmup=STEPS(10)), 10, 0.6),
        (ExponentialConfig(begin=1.0, final=0.01), 50, 0.1),
        (ExponentialConfig(begin=1e-4, final=1.0), 25, 1e-3),
        (ExponentialConfig(begin=1.0, final=0.01, warmup=STEPS(20)), 10, 0.5),
        (ExponentialConfig(begin=1.0, final=0.01), 1000, 0.01),
        (PowerConfig(exponent=-0.5, warmup=STEPS(4)), 2, 0.5),
        (PowerConfig(exponent=-0.5, warmup=STEPS(4)), 16, 0.5),
        (PowerConfig(exponent=-0.5, warmup=STEPS(4)), 10_000, 0.02),
        (PowerConfig(exponent=-0.5, warmup=STEPS(4), decay=STEPS(36)), 64, 0.25),
        (PowerConfig(exponent=-0.5, warmup=STEPS(4), decay=STEPS(36)), 82, 0.125),
        (PowerConfig(exponent=-0.5, warmup=STEPS(4), decay=STEPS(36), final=0.05), 100, 0.05),
        (WSDSConfig(periods=(STEPS(40), STEPS(60)), decay=STEPS(10), warmup=STEPS(10)), 5, 0.5),
        (WSDSConfig(periods=(STEPS(40), STEPS(60)), decay=STEPS(10)), 30, 1.0),
        (WSDSConfig(periods=(STEPS(40), STEPS(60)), decay=STEPS(10), final=0.2), 35, 0.6),
        (WSDSConfig(periods=(STEPS(40), STEPS(60)), decay=STEPS(10), final=0.2), 40, 0.2),
        (WSDSConfig(periods=(STEPS(40), STEPS(60)), decay=STEPS(10), final=0.2), 41, 1.0),
        (WSDSConfig(periods=(STEPS(40), STEPS(60)), decay_share=0.5), 85, 0.5),
        (WSDSConfig(periods=(STEPS(40), STEPS(60)), decay_share=0.5, peaks=(1.0, 0.5)), 60, 0.5),
        (WSDSConfig(periods=(STEPS(40), STEPS(60)), decay_share=0.5, final=0.1), 1000, 0.1),
        (InverseSqrtConfig(warmup=STEPS(4)), 2, 0.5),
        (InverseSqrtConfig(warmup=STEPS(4)), 16, 0.5),
    ],
)
def test_factor_by_hand(schedule: ScheduleConfig, step: int, expected: float) -> None:
    assert at(schedule, step) == pytest.approx(expected, abs=1e-12)


def test_parts_of_a_sequence_begin_anew() -> None:
    schedule = SequentialConfig(
        parts=(ConstantConfig(warmup=STEPS(10)), LinearConfig(final=0.5), CosineConfig(final=0.0)),
        lengths=(STEPS(20), STEPS(20)),
    )
    assert [at(schedule, step) for step in (5, 10, 20, 30, 40)] == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5])
    assert at(schedule, 70) == pytest.approx(0.5)
    assert at(schedule, 100) == pytest.approx(0.0, abs=1e-12)


def test_tokens_and_steps_convert_to_the_unit_of_the_run() -> None:
    rates = Rates(batch_tokens=1000)
    mixed = CosineConfig(final=0.0, warmup=STEPS(10))
    plain = CosineConfig(final=0.0, warmup=TOKENS(10_000))
    for step in (1, 5, 10, 40, 100):
        assert at(mixed, step, TOKENS(100_000), rates) == at(plain, step, TOKENS(100_000), rates)
        assert at(mixed, step, TOKENS(100_000), rates) == at(CosineConfig(final=0.0, warmup=STEPS(10)), step)


def test_a_run_in_tokens_ends_at_its_tokens_though_the_batch_grew() -> None:
    schedule = LinearConfig(final=0.0, warmup=STEPS(10))
    grown = ScheduleStep(step=60, tokens=100_000, rates=Rates(batch_tokens=1000))
    assert lr_factor(schedule, grown, TOKENS(100_000)) == 0.0


def test_epochs_need_their_batches() -> None:
    schedule = LinearConfig(warmup=Duration.epochs(1))
    rates = Rates(batches_per_epoch=50)
    assert at(schedule, 25, Duration.epochs(2), rates) == 0.5
    assert at(schedule, 75, Duration.epochs(2), rates) == 0.5
    with pytest.raises(SpecError, match=r"^1 epochs cannot be converted to steps: unknown batches of an epoch"):
        at(schedule, 1)


def test_units_that_nothing_converts_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^10 tokens cannot be converted to steps: unknown tokens of a batch"):
        at(CosineConfig(warmup=TOKENS(10)), 1)


def test_no_warmup_needs_no_conversion() -> None:
    assert lr_factor(CosineConfig(final=0.0), ScheduleStep(step=1, tokens=50), TOKENS(100)) == 0.5
    assert at(ConstantConfig(), 7, Duration.epochs(3)) == 1.0


@given(
    warmup=st.integers(0, 50),
    decay=st.integers(0, 50),
    final=st.floats(0, 1),
    shape=st.sampled_from(["linear", "cosine", "sqrt"]),
)
def test_wsd_rises_stays_and_falls(warmup: int, decay: int, final: float, shape: str) -> None:
    schedule = WSDConfig(warmup=STEPS(warmup), decay=STEPS(decay), final=final, shape=shape)  # type: ignore[arg-type]
    values = curve(schedule, STEPS(100), Rates(), range(1, 101))
    assert all(b >= a - 1e-12 for a, b in pairwise(values[:warmup]))
    assert all(value == 1.0 for value in values[max(warmup - 1, 0) : 100 - decay])
    assert all(b <= a + 1e-12 for a, b in pairwise(values[100 - decay :]))
    assert values[-1] == pytest.approx(final if decay else 1.0)


def test_cosine_is_the_formula_of_the_field() -> None:
    for step in range(11, 101):
        expected = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 10) / 90))
        assert at(CosineConfig(warmup=STEPS(10)), step) == pytest.approx(expected, abs=1e-12)


def test_powers_and_periods_go_on_where_they_join() -> None:
    power = PowerConfig(exponent=-0.51, warmup=STEPS(10), decay=STEPS(20))
    rates = [at(power, step) for step in range(1, 101)]
    assert max(rates) == 1.0 == rates[9]
    assert rates[-1] == 0.0
    assert all(later < earlier for earlier, later in pairwise(rates[9:]))
    assert max(abs(later - earlier) for earlier, later in pairwise(rates[60:])) < 0.03
