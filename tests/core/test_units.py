from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.units import format_duration, format_size, parse_duration, parse_size

MS_PER_YEAR = 366 * 86_400_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("20m", 1200.0),
        ("20min", 1200.0),
        ("1h30m", 5400.0),
        (" 1 h 30 m ", 5400.0),
        ("5d", 432_000.0),
        ("2w", 1_209_600.0),
        ("0s", 0.0),
        ("1.5h", 5400.0),
        ("9ms", 0.009),
        ("250ms", 0.25),
        ("1m1m", 120.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "  ", "90", "1h30", "-5s", "5 years", "1e3s", "h", "1h, 5m", "5S"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a duration is a number with a unit: 90s, 20m, 1h30m, 5d"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=MS_PER_YEAR))
def test_a_duration_comes_back_to_the_millisecond(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5400, "1h30m"), (0, "0s"), (0.25, "250ms"), (86_400, "1d"), (1_209_600, "14d"), (90.5, "1m30s500ms")],
)
def test_durations_as_text(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_negative_duration_has_no_text() -> None:
    with pytest.raises(ValueError, match="negative duration: -1"):
        format_duration(-1)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("512 MiB", 512 * 2**20),
        ("16G", 16 * 2**30),
        ("16GiB", 16 * 2**30),
        ("16Gi", 16 * 2**30),
        ("16GB", 16 * 10**9),
        ("1.5T", 3 * 2**39),
        ("1k", 1024),
        ("1kB", 1000),
        ("2P", 2**51),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1 2G", "5 X", "1e3", "5g"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"a size is a number with a unit: 512MiB, 16GiB, 1\.5TB"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=2**52))
def test_a_size_comes_back_exactly(num_bytes: int) -> None:
    assert parse_size(format_size(num_bytes)) == num_bytes


@given(st.integers(min_value=1, max_value=1023), st.integers(min_value=0, max_value=5))
def test_round_sizes_are_short(count: int, power: int) -> None:
    assert format_size(count * 1024**power) == f"{count}{('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"
