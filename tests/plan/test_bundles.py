from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.sample import SMALL, plan_of
from tests.plan.sample_site import planned, refused
from windlass.core.errors import SpecError

RL = """\
name: rl
params: {tp: 1, engine_cpus: 6}
tasks:
  main:
    total_gpus: 40
    run: f
    bundles:
      learners: {count: "${nodes}", gpus: 2, cpus: 20, strategy: strict-spread}
      engines: {count: "${(num_gpus - 2 * nodes) // params.tp}", gpus: "${params.tp}", cpus: "${params.engine_cpus}"}
limit: {time: 1h}
"""


def test_the_arithmetic() -> None:
    task = planned(RL).tasks[0]
    assert task.bundles == (
        "learners: 10 x (2 GPUs, 20 CPUs), strict-spread: 20 GPUs, 200 CPUs",
        "engines: 20 x (1 GPU, 6 CPUs), pack: 20 GPUs, 120 CPUs",
        "together: 40 of 10 x 4 = 40 GPUs, 320 of 10 x 288 = 2880 CPUs",
    )
    assert (task.shape.node_cpus, task.queue.cpus_per_node) == (288, 288)


def test_it_follows_the_shape() -> None:
    assert planned(RL, "tasks.main.total_gpus=8", "params.tp=2").tasks[0].bundles[1] == (
        "engines: 2 x (2 GPUs, 6 CPUs), pack: 4 GPUs, 12 CPUs"
    )


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["tasks.main.cpus=31"], "engines gets 10 of 20 bundles; each takes 6 CPUs, and nodes with GPUs left have 5"),
        (["tasks.main.cpus=19"], "learners gets 0 of 10 bundles; each takes 20 CPUs, and nodes with GPUs left have 19"),
        (
            ["tasks.main.bundles.engines.count=21"],
            "engines gets 20 of 21 bundles; each takes 1 GPU of one node, and 0 of all nodes are left",
        ),
        (
            ["tasks.main.cpus=20"],
            "engines gets 0 of 20 bundles; each takes 6 CPUs, and nodes with GPUs left have 0 CPUs left at most",
        ),
        (
            ["tasks.main.bundles.engines={count: 5, gpus: 4, strategy: strict-spread}"],
            "engines gets 0 of 5 bundles; each takes 4 GPUs of one node, and 20 of all nodes are left",
        ),
        (
            ["tasks.main.bundles.learners.count=11"],
            "learners gets 10 of 11 bundles; each needs its own node, and there are 10",
        ),
        (
            ["tasks.main.bundles.engines={count: 7, gpus: 3}"],
            "engines gets 0 of 7 bundles; each takes 3 GPUs of one node, and 20 of all nodes are left",
        ),
        (
            ["tasks.main.bundles.engines.strategy=strict-pack"],
            "engines gets 0 of 20 bundles; all of them need the same node, and no node has enough left",
        ),
        (["tasks.main.bundles.engines.count=9999999"], "engines is 9999999 bundles, and no more than 1000000"),
    ],
)
def test_bundles_that_do_not_fit(overrides: list[str], why: str) -> None:
    message, hint = refused(RL, *overrides)["does-not-fit"]
    assert message.startswith(f"the bundles of task `main` do not fit: {why}")
    assert "together: " in message
    assert hint.startswith("change tasks.main.bundles.")


def test_strategies_differ_in_what_they_leave() -> None:
    text = (
        "name: x\ntasks: {main: {nodes: 2, gpus: 4, run: f, bundles: "
        "{small: {count: 2, gpus: 1, strategy: pack}, big: {count: 1, gpus: 4}}}}\nlimit: {time: 1h}\n"
    )
    assert planned(text).tasks[0].bundles
    assert "does-not-fit" in refused(text, "tasks.main.bundles.small.strategy=spread")
    assert "does-not-fit" in refused(text, "tasks.main.bundles.small.strategy=strict-spread")


def test_strict_pack_may_leave_room_on_its_node() -> None:
    text = (
        "name: x\ntasks: {main: {nodes: 2, gpus: 4, run: f, bundles: "
        "{one: {count: 1, gpus: 1, cpus: 1, strategy: strict-pack}, three: {count: 3, gpus: 1, strategy: strict-pack}, "
        "four: {count: 4, gpus: 1, strategy: strict-pack}}}}\nlimit: {time: 1h}\n"
    )
    assert planned(text).tasks[0].bundles
    assert "does-not-fit" in refused(text, "tasks.main.bundles.one.count=2")


def test_spread_takes_the_node_with_the_most_cpus_each_time() -> None:
    text = (
        "name: x\ntasks: {main: {nodes: 2, cpus: 10, run: f, bundles: {first: {count: 1, cpus: 6}, "
        "even: {count: 3, cpus: 2, strategy: spread}, rest: {count: 2, cpus: 4, strategy: strict-spread}}}}\n"
        "limit: {time: 1h}\n"
    )
    assert planned(text).tasks[0].bundles
    assert "does-not-fit" in refused(text, "tasks.main.bundles.even.strategy=pack")


def test_bundles_of_which_one_has_no_number_are_not_placed() -> None:
    wrong = "tasks.main.bundles.engines.count=${num_gpus - 99}"
    assert set(refused(RL, wrong, "tasks.main.bundles.learners.count=11")) == {"invalid-expression"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["tasks.main.bundles.engines.count=${num_gpus - 99}"],
            "`${num_gpus - 99}` in tasks.main.bundles.engines.count is -59",
        ),
        (
            ["tasks.main.bundles.engines.count=${repeat(1, 2)}"],
            "engines.count is [1, 1], and must be a number from 0",
        ),
        (["tasks.main.bundles.engines.count=${nodez}"], "unknown name `nodez`"),
        (["tasks.main.bundles.engines.count=${nodes / 2}"], "`/` may return a fraction"),
        (["tasks.main.bundles.engines.count=${rank}"], "calculates with `rank`, which is known only in the job"),
        (["params.tp=0.5"], "`params.tp` is `0.5`, but expressions need whole numbers"),
    ],
)
def test_numbers_that_are_none(overrides: list[str], message: str) -> None:
    found = refused(RL, *overrides)
    assert message in found["invalid-expression"][0]


def test_unknown_cpus_are_said_to_be_unknown() -> None:
    text = "name: x\ntasks: {main: {nodes: 2, gpus: 1, run: f, bundles: {a: {count: 2, gpus: 1, cpus: 99}}}}\n"
    assert plan_of(text, site=SMALL).tasks[0].bundles[-1] == (
        "together: 2 of 2 x 1 = 2 GPUs, 198 of an unknown number of CPUs"
    )
    with pytest.raises(SpecError, match="nodes with GPUs left have 2 CPUs"):
        plan_of(text, site=SMALL, overrides=["tasks.main.cpus=2"])


def test_bundles_are_no_part_of_the_work() -> None:
    assert planned(RL).plan_hash == planned(RL, "tasks.main.bundles.engines.cpus=1").plan_hash


@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 4), st.sampled_from(["pack", "spread", "strict-spread"])),
        min_size=1,
        max_size=3,
    ),
)
def test_what_fits_is_never_more_than_there_is(nodes: int, gpus: int, groups: list[tuple[int, int, str]]) -> None:
    entries = ", ".join(f"g{i}: {{count: {c}, gpus: {g}, strategy: {s}}}" for i, (c, g, s) in enumerate(groups))
    text = f"name: x\ntasks: {{main: {{nodes: {nodes}, gpus: {gpus}, run: f, bundles: {{{entries}}}}}}}\nlimit: {{time: 1h}}\n"
    try:
        planned(text)
    except SpecError:
        alone = [c * g <= gpus * nodes and g <= gpus and (s != "strict-spread" or c <= nodes) for c, g, s in groups]
        assert len(groups) > 1 or not alone[0] or groups[0][0] > nodes * (gpus // groups[0][1])
    else:
        assert sum(count * size for count, size, _ in groups) <= nodes * gpus
        assert all(count <= nodes for count, _, strategy in groups if strategy == "strict-spread")
