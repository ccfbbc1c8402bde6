"""What this machine has for trials: sums of bundles, parts of GPUs, and the reasons why something does not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.tune.executors.local.resource_pool import ResourcePool, ResourceShare
from windlass.tune.executors.protocol import Fit
from windlass.tune.trial import Resources


def need(*bundles: dict[str, float], strategy: str = "PACK") -> Resources:
    return Resources(bundles=bundles, strategy=strategy)


def test_ten_tenths_are_one() -> None:
    pool = ResourcePool({"CPU": 1.0})
    tenth = need({"CPU": 0.1})
    shares = []
    for _ in range(10):
        assert pool.room(tenth).fit is Fit.NOW
        shares.append(pool.take(tenth))
    assert pool.room(tenth).fit is Fit.LATER
    for share in shares:
        pool.give(share)
        pool.give(share)  # twice does no harm
    assert pool.room(need({"CPU": 1.0})).fit is Fit.NOW


def test_all_bundles_of_a_trial_count() -> None:
    pool = ResourcePool({"CPU": 4.0})
    assert pool.room(need({"CPU": 1.0}, {"CPU": 2.0}, {"CPU": 2.0})).fit is Fit.NEVER
    pool.take(need({"CPU": 1.0}, {"CPU": 2.0}))
    assert pool.room(need({"CPU": 1.0}, {"CPU": 1.0})).fit is Fit.LATER
    assert pool.room(need({"CPU": 1.0})).fit is Fit.NOW


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (need({"CPU": 3.0}), "it needs 3 CPU, but this machine has 2"),
        (need({"disk": 1.0}), "it needs 1 disk, but this machine has 0"),
        (need({"GPU": 3.0}), "it needs 3 GPU, but this machine has 2"),
        (need({"GPU": 1.5}), "amounts above 1 must be whole numbers"),
        (need({"GPU": 0.6}, {"GPU": 0.6}, {"GPU": 0.6}), "it needs 1.8 GPU, but this machine has 2"),
        (need({"CPU": 1.0}, {"CPU": 1.0}, strategy="STRICT_SPREAD"), "needs 2 machines, and this is one"),
        (need({"memory": 9e9}), "it needs 8.4 GiB of memory, but this machine has 7.5 GiB of"),
    ],
)
def test_what_never_fits_says_why(resources: Resources, words: str) -> None:
    room = ResourcePool({"CPU": 2.0, "memory": 8e9}, ("0", "1")).room(resources)
    assert room.fit is Fit.NEVER
    assert words in room.why


def test_what_waits_says_for_what() -> None:
    pool = ResourcePool({"CPU": 2.0}, ("0", "1"))
    pool.take(need({"CPU": 1.5, "GPU": 0.5}))
    assert pool.room(need({"CPU": 1.0})).why == "it needs 1 CPU, 0.5 of 2 free"
    assert pool.room(need({"GPU": 2.0})).why == "it needs 2 GPU, free are 0.5 of GPU 0, 1 of GPU 1"


def test_parts_of_gpus_fill_one_before_the_next() -> None:
    pool = ResourcePool({}, ("0", "1"))
    half = need({"GPU": 0.5})
    first, second, third = pool.take(half), pool.take(half), pool.take(half)
    assert [list(share.gpus) for share in (first, second, third)] == [["0"], ["0"], ["1"]]
    assert pool.room(need({"GPU": 1.0})).fit is Fit.LATER
    pool.give(third)
    assert list(pool.take(need({"GPU": 1.0})).gpus) == ["1"]


def test_bundles_get_gpus_each() -> None:
    pool = ResourcePool({"CPU": 9.0}, ("0", "1", "2"))
    share = pool.take(need({"CPU": 1.0}, {"GPU": 1.0}, {"GPU": 1.0}))
    assert sorted(share.gpus) == ["0", "1"]
    assert pool.idle_gpus == {"2"}


def test_gpus_that_are_not_ours_yet_are_no_reason_for_never() -> None:
    pool = ResourcePool({}, ("0", "1"), are_ours=False)
    two = need({"GPU": 2.0})
    assert pool.room(two).fit is Fit.LATER
    assert pool.lacks_gpus(two)
    pool.add_gpu("1")
    pool.add_gpu("0")
    assert pool.room(two).fit is Fit.NOW
    pool.remove_gpu("0")
    assert pool.room(two).fit is Fit.LATER


def test_a_claim_holds_what_an_earlier_head_gave() -> None:
    pool = ResourcePool({"CPU": 2.0}, ("0", "1"))
    share = pool.claim(need({"CPU": 2.0, "GPU": 0.5}), ["1"])
    assert pool.room(need({"CPU": 1.0})).fit is Fit.LATER
    assert pool.idle_gpus == {"0"}
    pool.give(share)
    assert pool.idle_gpus == {"0", "1"}


SHAPES = st.lists(
    st.dictionaries(st.sampled_from(["CPU", "GPU", "x"]), st.sampled_from([0.0, 0.25, 0.3, 1.0, 2.0]), max_size=3),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60)
@given(st.lists(st.tuples(SHAPES, st.booleans()), max_size=30))
def test_nothing_is_given_twice_or_lost(steps: list[tuple[list[dict[str, float]], bool]]) -> None:
    totals = {"CPU": 4.0, "x": 1.0}
    pool = ResourcePool(totals, ("0", "1"))
    shares: list[ResourceShare] = []
    for bundles, gives in steps:
        if gives and shares:
            pool.give(shares.pop(0))
        resources = need(*bundles)
        if pool.room(resources).fit is Fit.NOW:
            shares.append(pool.take(resources))
        held: dict[str, Any] = {}
        for share in shares:
            for name, amount in [*share.amounts.items(), *share.gpus.items()]:
                held[name] = held.get(name, 0) + amount
        assert all(amount <= 10_000 * totals.get(name, 1.0) for name, amount in held.items())
    for share in shares:
        pool.give(share)
    assert pool.room(need({"CPU": 4.0, "x": 1.0, "GPU": 2.0})).fit is Fit.NOW
