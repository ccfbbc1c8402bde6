from __future__ import annotations

import pytest

from windlass.record.causes import Cause, Kind, kind_of


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_draws_on_exactly_one_budget(cause: Cause) -> None:
    assert isinstance(kind_of(cause), Kind)
    assert str(cause) == cause.value
    assert (kind_of(cause) is Kind.DONE) == (cause is Cause.OK)


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.PREEMPTED, Kind.INTERRUPTION),
        (Cause.NODE_LOST, Kind.INTERRUPTION),
        (Cause.UNKNOWN, Kind.INTERRUPTION),
        (Cause.USER_ERROR, Kind.FAILURE),
        (Cause.OUT_OF_MEMORY, Kind.FAILURE),
        (Cause.DISK_FULL, Kind.FAILURE),
        (Cause.CANCELLED, Kind.FINAL),
        (Cause.DO_NOT_RETRY, Kind.FINAL),
    ],
)
def test_the_kinds_that_people_ask_about(cause: Cause, kind: Kind) -> None:
    assert kind_of(cause) is kind
