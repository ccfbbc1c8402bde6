"""Every primitive: bounds, quantisation, repeatability, shape of the distribution; bounds as Ray Tune's own objects."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from windlass import tune
from windlass.tune import space
from windlass.tune.space import Domain, SpaceError
from windlass.tune.space.primitives import (
    choice,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)

BITS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63, 2**64 - 1, 2**64 - 2**11]))
BOUND = st.floats(-1e6, 1e6)
POSITIVE = st.floats(1e-8, 1e6)


@given(BOUND, BOUND, BITS)
def test_uniform_holds_its_lower_bound_and_not_its_upper(one: float, other: float, bits: int) -> None:
    low, high = sorted((one, other))
    value = uniform(low, high).at(bits)
    assert low <= value < high or low == high == value


@given(POSITIVE, POSITIVE, BITS)
def test_loguniform_holds_its_lower_bound_and_not_its_upper(one: float, other: float, bits: int) -> None:
    low, high = sorted((one, other))
    value = loguniform(low, high).at(bits)
    assert low <= value < high or low == high == value


@given(st.integers(-1000, 1000), st.integers(0, 1000), st.sampled_from([0.1, 0.25, 0.3, 1.0, 2.5, 1e-4, 7.0]), BITS)
def test_quniform_gives_multiples_within_both_bounds(first: int, more: int, q: float, bits: int) -> None:
    low, high = first * q, (first + more) * q
    value = quniform(low, high, q).at(bits)
    assert low <= value <= high
    assert math.isclose(value / q, round(value / q), abs_tol=1e-6)


@given(st.integers(1, 1000), st.integers(0, 1000), st.sampled_from([0.1, 0.25, 1.0, 1e-4]), BITS)
def test_qloguniform_gives_multiples_within_both_bounds(first: int, more: int, q: float, bits: int) -> None:
    low, high = first * q, (first + more) * q
    value = qloguniform(low, high, q).at(bits)
    assert low <= value <= high
    assert math.isclose(value / q, round(value / q), abs_tol=1e-6)


@given(st.integers(-(2**40), 2**40), st.integers(1, 2**62), BITS)
def test_randint_holds_its_lower_bound_and_not_its_upper(low: int, width: int, bits: int) -> None:
    value = randint(low, low + width).at(bits)
    assert isinstance(value, int)
    assert low <= value < low + width


@given(st.integers(1, 10**9), st.integers(1, 10**9), BITS)
def test_lograndint_holds_its_lower_bound_and_not_its_upper(low: int, width: int, bits: int) -> None:
    assert low <= lograndint(low, low + width).at(bits) < low + width


@given(st.integers(-500, 500), st.integers(0, 500), st.integers(2, 9), BITS)
def test_qrandint_gives_multiples_within_both_bounds(low: int, width: int, q: int, bits: int) -> None:
    high = low + width
    assume(high // q >= -(-low // q))
    value = qrandint(low, high, q).at(bits)
    assert low <= value <= high
    assert value % q == 0


@given(st.integers(1, 500), st.integers(0, 500), st.integers(2, 9), BITS)
def test_qlograndint_gives_multiples_within_both_bounds(low: int, width: int, q: int, bits: int) -> None:
    high = low + width
    assume(high // q >= -(-low // q))
    value = qlograndint(low, high, q).at(bits)
    assert low <= value <= high
    assert value % q == 0


@given(BOUND, st.floats(1e-3, 1e3), BITS)
def test_randn_is_finite(mean: float, sd: float, bits: int) -> None:
    assert math.isfinite(randn(mean, sd).at(bits))


@given(st.lists(st.integers(), min_size=1, max_size=9), BITS)
def test_choice_gives_one_of_its_values(values: list[int], bits: int) -> None:
    assert choice(values).at(bits) in values


def test_both_ends_of_what_bits_can_say() -> None:
    top = 2**64 - 1
    assert [randint(0, 10).at(bits) for bits in (0, top)] == [0, 9]
    assert [qrandint(0, 10, 5).at(bits) for bits in (0, top)] == [0, 10]
    assert [qrandint(0, 10, 1).at(bits) for bits in (0, top)] == [0, 9]
    assert [qlograndint(3, 10, 3).at(bits) for bits in (0, top)] == [3, 9]
    assert [quniform(0, 1, 0.1).at(bits) for bits in (0, top)] == [0.0, 1.0]
    assert [choice(["a", "b"]).at(bits) for bits in (0, top)] == ["a", "b"]
    assert uniform(0, 1).at(top) < 1.0


def test_quantised_floats_have_no_noise() -> None:
    drawn = set(quniform(0, 1, 0.1).sample(size=400, random_state=1))
    assert drawn == {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}


EACH: list[Domain] = [
    uniform(0, 5), quniform(0, 5, 0.5), loguniform(1, 5), qloguniform(1, 5, 0.5),
    randn(2, 3), qrandn(2, 3, 0.5), randint(0, 5), qrandint(0, 6, 3), lograndint(1, 5),
    qlograndint(2, 6, 2), choice([1, "a", None]), sample_from(random.random),
    sample_from(lambda: np.random.uniform(0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("domain", EACH, ids=str)
def test_the_same_seed_gives_the_same_values(domain: Domain) -> None:
    assert domain.sample(size=9, random_state=7) == domain.sample(size=9, random_state=7)
    assert domain.sample(size=30, random_state=7) != domain.sample(size=30, random_state=8)
    generator = np.random.default_rng(1)
    assert domain.sample(size=9, random_state=generator) == domain.sample(size=9, random_state=np.random.default_rng(1))


def test_drawing_leaves_global_generators_as_they_were() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.Random(1).random(), np.random.RandomState(1).random()
    space.Space({f"p{n}": domain for n, domain in enumerate(EACH)}).draw(0, 1)
    assert (random.random(), np.random.random()) == expected


def _drawn(domain: Domain, number: int = 20_000) -> list[Any]:
    generator = random.Random(5)
    return [domain.at(generator.getrandbits(64)) for _ in range(number)]


def test_distributions_have_their_shapes() -> None:
    assert statistics.mean(_drawn(uniform(2, 4))) == pytest.approx(3, abs=0.02)
    logs = [math.log10(value) for value in _drawn(loguniform(1e-4, 1))]
    assert statistics.mean(logs) == pytest.approx(-2, abs=0.03)
    assert statistics.pstdev(logs) == pytest.approx(4 / math.sqrt(12), abs=0.03)
    normal = _drawn(randn(1, 2))
    assert statistics.mean(normal) == pytest.approx(1, abs=0.05)
    assert statistics.pstdev(normal) == pytest.approx(2, abs=0.05)
    share = Counter(value <= 10 for value in _drawn(lograndint(1, 101)))[True] / 20_000
    assert share == pytest.approx(math.log(11) / math.log(101), abs=0.02)


def test_quantised_ends_weigh_half_for_floats_and_fully_for_integers() -> None:
    floats = Counter(_drawn(quniform(0, 4, 1)))
    assert floats[0.0] / floats[2.0] == pytest.approx(0.5, abs=0.06)
    integers = Counter(_drawn(qrandint(0, 8, 2)))
    assert integers[0] / integers[4] == pytest.approx(1, abs=0.1)
    assert integers[8] / integers[4] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("name", "arguments", "words", "code"),
    [
        ("uniform", (5, 1), "the lower bound is above the upper bound", "invalid-space"),
        ("uniform", (0, math.inf), "the bounds must be finite", "invalid-space"),
        ("uniform", ("a", 1), "a bound must be a number, not 'a'", "invalid-space"),
        ("loguniform", (0, 1), "loguniform(0.0, 1.0): a log scale needs a lower bound above 0", "invalid-space"),
        ("loguniform", (-3, 1), "above 0", "invalid-space"),
        ("lograndint", (0, 5), "above 0", "invalid-space"),
        ("quniform", (0, 1, 0.3), "1.0 is not a multiple of 0.3", "invalid-space"),
        ("quniform", (0.05, 1, 0.1), "0.05 is not a multiple of 0.1", "invalid-space"),
        ("quniform", (0, 1, 0), "the step must be above 0", "invalid-space"),
        ("qrandint", (1, 2, 5), "no multiple of 5 is between its bounds", "invalid-space"),
        ("randint", (3, 3), "the upper bound is not included", "invalid-space"),
        ("randint", (1.5, 3), "the bounds of an integer range must be integers, not 1.5", "invalid-space"),
        ("randn", (0, 0), "a spread above 0", "invalid-space"),
        ("choice", ([],), "has no values", "invalid-space"),
        ("choice", ("abc",), "choice needs a list of values, not 'abc'", "invalid-space"),
        ("grid_search", ([],), "has no values", "invalid-space"),
        ("sample_from", (lambda a, b: 1,), "one argument or none", "invalid-space"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_at_once(name: str, arguments: tuple[Any, ...], words: str, code: str) -> None:
    with pytest.raises(SpaceError) as caught:
        getattr(tune, name)(*arguments)
    assert words in caught.value.message
    assert caught.value.code == code
    assert isinstance(caught.value, ValueError)


# ------------------------------------------------------------------------------------------------ beside Ray Tune

RANGES = st.tuples(st.integers(-40, 40), st.integers(-40, 40))
NAMES = ["uniform", "loguniform", "randint", "lograndint", "quniform", "qloguniform", "qrandint", "qlograndint"]


@pytest.mark.parametrize("name", NAMES)
def test_bounds_are_those_of_ray(name: str, need: Any) -> None:
    need("ray")
    from ray.tune.search import sample as rays

    @given(RANGES, st.sampled_from([1, 2, 3, 5, 7]))
    def check(bounds: tuple[int, int], q: int) -> None:
        arguments = (*bounds, q) if name.startswith("q") else bounds
        theirs = _extremes_of_ray(getattr(rays, name), arguments, "int" in name)
        try:
            ours = getattr(tune, name)(*arguments)
        except SpaceError:
            assert theirs is None or bounds[0] >= bounds[1]  # Ray draws from an empty range, and from one turned round
            return
        assert theirs is not None
        low, high = theirs
        if "lograndint" in name:  # Ray's floor(exp(log(5))) is 4
            low = max(low, -(-bounds[0] // q) * q if name.startswith("q") else bounds[0])
        drawn = [ours.at(bits) for bits in (0, 2**64 - 1, 2**63, 12345678901234567890)]
        assert all(low - 1e-9 <= value <= high + 1e-9 for value in drawn)
        assert drawn[0] == pytest.approx(low)
        if name.startswith("q") or "int" in name:
            assert drawn[1] == pytest.approx(high)

    check()


def _extremes_of_ray(make: Any, arguments: tuple[int, ...], is_int: bool) -> tuple[float, float] | None:
    """The least and greatest that Ray's object draws, with a generator that says 0 and almost 1; None: it refuses."""

    class Ends(np.random.RandomState):
        at_top = False

        def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
            return np.array([np.nextafter(high, low) if self.at_top and high > low else low])

        def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
            if high <= low:
                raise ValueError("empty")
            return np.array([high - 1 if self.at_top else low])

    found = []
    for at_top in (False, True):
        ends = Ends(0)
        ends.at_top = at_top
        try:
            found.append(make(*arguments).sample(random_state=ends))
        except (ValueError, AssertionError):
            return None
    if is_int and "log" in make.__name__ and found[1] < found[0]:
        return None
    return found[0], found[1]
