from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.train.duration import Duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100steps", Duration.steps(100)),
        ("1 step", Duration.steps(1)),
        ("5e9 tokens", Duration.tokens(5 * 10**9)),
        ("1.5e3tokens", Duration.tokens(1500)),
        ("1.10e18 tokens", Duration.tokens(11 * 10**17)),
        ("100_000 tokens", Duration.tokens(100_000)),
        (" 2 epochs ", Duration.epochs(2)),
        ("1.0 epochs", Duration.epochs(1)),
        ("9007199254740993 tokens", Duration.tokens(9_007_199_254_740_993)),
    ],
)
def test_short_forms(text: str, expected: Duration) -> None:
    assert Duration.from_shorthand(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "100", "steps", "-1 steps", "1.5 steps", "1e-3 tokens", "1.2.3 steps", "1e99 tokens", "9e400 steps", "1 s"],
)
def test_what_is_no_length_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="whole number and its unit, such as `100steps`"):
        Duration.from_shorthand(text)


@given(st.integers(0, 10**29), st.sampled_from(["steps", "tokens", "epochs"]))
def test_text_and_back(value: int, unit: str) -> None:
    duration = Duration(value=value, unit=unit)  # type: ignore[arg-type]
    assert Duration.from_shorthand(str(duration)) == duration
