"""What the times of heartbeats and links say of a job that Slurm does not know."""

from __future__ import annotations

import pytest

from windlass.backends.slurm.observe import newest_sign


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("100 now\n97 7.0/heartbeat-0\n40 7.0/heartbeat-1\n", "it gave a sign of life 3 s ago (7.0/heartbeat-0)"),
        ("100 now\n97 link-1.json\n", "it gave a sign of life 3 s ago (link-1.json)"),
        ("100 now\n104 7.0/heartbeat-0\n", "it gave a sign of life 0 s ago (7.0/heartbeat-0)"),
        ("100 now\n90 7.0/heartbeat-0\n", ""),
        ("100 now\n", ""),
        ("97 7.0/heartbeat-0\n", ""),
        ("", ""),
        ("stat: cannot stat\nrubbish\n", ""),
    ],
)
def test_the_newest_sign_counts(listing: str, expected: str) -> None:
    assert newest_sign(listing, 10.0) == expected
