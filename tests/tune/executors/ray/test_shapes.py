"""Arithmetic of bundles, nodes and answers, without Ray."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.tune.executors.protocol import Fit, Room
from windlass.tune.executors.ray.cluster import (
    ClusterSnapshot,
    RayNode,
    actor_options,
    answer,
    describe,
    free_beside,
    group_bundles,
    left_after,
    may_grow_for,
    needs_group,
)
from windlass.tune.trial import ONE_CPU, Resources

TWO = {"CPU": 2.0}


def shape(*bundles: dict[str, float], strategy: str = "PACK") -> Resources:
    return Resources(bundles=bundles, strategy=strategy)


def node(free: dict[str, float] | None = None, **total: float) -> RayNode:
    return RayNode(id="n", host="h", total=total, free=total if free is None else free)


def asked(resources: Resources, sight: ClusterSnapshot, reserved: Sequence[Resources] = ()) -> Room:
    return answer(resources, sight, free_beside(reserved, sight))


def test_one_bundle_is_the_actors_own_and_what_is_not_said_is_none() -> None:
    assert actor_options(shape({"CPU": 1, "GPU": 0.5, "memory": 1e9, "licence": 1})) == {
        "num_cpus": 1,
        "num_gpus": 0.5,
        "memory": 1_000_000_000,
        "resources": {"licence": 1},
    }
    assert actor_options(shape({"GPU": 1})) == {"num_cpus": 0, "num_gpus": 1}
    assert not needs_group(shape({}, {"CPU": 1}))
    assert needs_group(shape({"CPU": 1}, {"CPU": 1}))
    assert group_bundles(shape({}, {"CPU": 1, "GPU": 0})) == [{"CPU": 1}]


def test_shapes_are_told_to_people() -> None:
    assert describe(shape({"CPU": 1}, {"CPU": 2, "GPU": 0.5}, {"CPU": 1}, strategy="SPREAD")) == (
        "2 x {1 CPU} + {2 CPU, 0.5 GPU} SPREAD"
    )


@pytest.mark.parametrize(
    ("strategy", "fits"), [("PACK", True), ("SPREAD", True), ("STRICT_PACK", False), ("STRICT_SPREAD", True)]
)
def test_strategies_over_two_nodes(strategy: str, fits: bool) -> None:
    left = left_after(shape(TWO, {"CPU": 1}, strategy=strategy), [{"CPU": 2.0}, {"CPU": 1.0}])
    assert (left is not None) is fits


def test_strict_spread_needs_a_node_for_each() -> None:
    assert left_after(shape({"CPU": 1}, {"CPU": 1}, strategy="STRICT_SPREAD"), [{"CPU": 8.0}]) is None
    assert left_after(shape({"CPU": 1}, strategy="NO_SUCH"), [{"CPU": 8.0}]) is None


@given(
    bundles=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    nodes=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    is_strict=st.booleans(),
)
def test_the_search_is_exact(bundles: list[int], nodes: list[int], is_strict: bool) -> None:
    """Against every way to lay the bundles."""

    def lies(ways: tuple[int, ...]) -> bool:
        used = [sum(b for b, way in zip(bundles, ways, strict=True) if way == index) for index in range(len(nodes))]
        is_apart = not is_strict or len(set(ways)) == len(ways)
        return is_apart and all(amount <= room for amount, room in zip(used, nodes, strict=True))

    expected = any(lies(ways) for ways in itertools.product(range(len(nodes)), repeat=len(bundles)))
    wanted = shape(*({"CPU": float(b)} for b in bundles), strategy="STRICT_SPREAD" if is_strict else "PACK")
    left = left_after(wanted, [{"CPU": float(n)} for n in nodes])
    assert (left is not None) is expected
    if left is not None:
        assert sum(amounts["CPU"] for amounts in left) == sum(nodes) - sum(bundles)


def test_now_later_never() -> None:
    sight = ClusterSnapshot(nodes=(node(CPU=4.0), node(free={"CPU": 1.0}, CPU=4.0)), lost=({"CPU": 8.0},))
    assert asked(ONE_CPU, sight).fit is Fit.NOW
    assert asked(ONE_CPU, sight, [ONE_CPU] * 5).fit is Fit.LATER
    assert asked(shape({"CPU": 4.0}, {"CPU": 4.0}), sight).fit is Fit.LATER
    assert asked(shape({"CPU": 8.0}), sight).fit is Fit.LATER
    room = asked(shape({"CPU": 16.0}), sight)
    assert room.fit is Fit.NEVER
    assert room.why == ("no node of the Ray cluster, present or permitted, fits {16 CPU}; it has 2 x {4 CPU}")
    assert asked(shape({"GPU": 1.0}), ClusterSnapshot()).fit is Fit.LATER


def test_nodes_that_an_autoscaler_may_add_are_waited_for() -> None:
    sight = ClusterSnapshot(nodes=(node(CPU=1.0),), permitted=({"CPU": 8.0, "GPU": 1.0},))
    assert asked(shape({"GPU": 1.0}), sight).fit is Fit.LATER
    assert may_grow_for(shape({"GPU": 1.0}), sight)
    assert not may_grow_for(shape({"GPU": 2.0}), sight)
    assert asked(shape({"GPU": 2.0}), sight).fit is Fit.NEVER


def test_free_room_is_not_given_twice_while_rays_table_lags() -> None:
    half = shape({"GPU": 0.5})
    sight = ClusterSnapshot(nodes=(node(GPU=1.0),))
    assert asked(half, sight, [half]).fit is Fit.NOW
    assert asked(half, sight, [half, half]).fit is Fit.LATER
