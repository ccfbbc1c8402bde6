from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.sample import BIG, plan_of
from tests.plan.sample_site import planned, refused, site
from windlass.plan.shape import best_shape

TOTAL = 'name: x\ntasks: {main: {total_gpus: 40, run: "f ${nodes} ${gpus_per_node}"}}\n'
EIGHT = "name: x\ntasks: {main: {nodes: 5, gpus: 8, cpus: 40, memory: 100GiB, run: f}}\n"


@pytest.mark.parametrize(
    ("num_gpus", "per_node", "shape"),
    [(40, 4, (10, 4)), (3, 4, (1, 3)), (4, 4, (1, 4)), (6, 4, (2, 3)), (7, 4, None), (10, 8, (2, 5)), (9, 8, None)],
)
def test_the_best_shape(num_gpus: int, per_node: int, shape: object) -> None:
    assert best_shape(num_gpus, per_node) == shape


@given(st.integers(1, 2000), st.integers(1, 16))
def test_a_shape_has_all_gpus_and_wastes_less_than_half_of_a_node(num_gpus: int, per_node: int) -> None:
    shape = best_shape(num_gpus, per_node)
    if shape is not None:
        nodes, each = shape
        assert nodes * each == num_gpus
        assert each <= per_node
        assert nodes == 1 or 2 * each > per_node
    assert shape is not None or num_gpus % per_node


def test_total_gpus_takes_whole_nodes() -> None:
    task = planned(TOTAL).tasks[0]
    assert (task.shape.nodes, task.shape.gpus, task.argv[-1]) == (10, 4, "f 10 4")
    assert task.queue.gpus_per_node == 4


def test_total_gpus_on_one_machine_stays_on_one_node() -> None:
    task = plan_of(TOTAL, site=BIG, overrides=["tasks.main.total_gpus=8"]).tasks[0]
    assert (task.shape.nodes, task.shape.gpus) == (1, 8)


def test_nodes_of_ones_own_are_kept() -> None:
    task = planned(TOTAL, "tasks.main.nodes=20", at=site("partitions.gpu.max_nodes=20")).tasks[0]
    assert (task.shape.nodes, task.shape.gpus) == (20, 2)


def test_total_gpus_that_no_nodes_share_evenly() -> None:
    message, hint = refused(TOTAL, "tasks.main.total_gpus=41")["does-not-fit"]
    assert message == "tasks.main.total_gpus=41 cannot be shared evenly by nodes of 4 GPUs (`lab/gpu`)"
    assert hint == "write tasks.main.total_gpus=40 or tasks.main.total_gpus=44"


def test_nodes_that_do_not_share_total_gpus_evenly() -> None:
    message, hint = refused(TOTAL, "tasks.main.nodes=3")["does-not-fit"]
    assert message == "tasks.main.total_gpus=40 cannot be shared evenly by tasks.main.nodes=3"
    assert hint == "use a number of nodes from: 1, 2, 4, 5, 8, 10, 20, 40"


def test_total_gpus_where_nobody_knows_the_nodes() -> None:
    message, hint = refused(TOTAL, at=site("~partitions.gpu.gpus"))["does-not-fit"]
    assert message == "tasks.main.total_gpus=40: how many GPUs a node of `lab/gpu` has is not known"
    assert list(refused(TOTAL, "tasks.main.bundles={a: {gpus: 9}}", at=site("~partitions.gpu.gpus"))) == [
        "does-not-fit"
    ]
    assert hint == "write both: tasks.main.nodes=N tasks.main.gpus=N ~tasks.main.total_gpus"


def test_another_shape_is_proposed_and_its_overrides_work() -> None:
    message, hint = refused(EIGHT)["needs-reshape"]
    assert message == "task `main` needs 5 x 8 = 40 GPUs, and a node of `lab/gpu` has 4"
    overrides, _, rest = hint.removeprefix("10 x 4: ").partition(", or ")
    assert overrides == "tasks.main.nodes=10 tasks.main.gpus=4 tasks.main.cpus=20 tasks.main.memory=50GiB"
    assert rest == "let --reshape write that, or another partition: --on lab/big"
    task = planned(EIGHT, *overrides.split()).tasks[0]
    assert (task.shape.nodes, task.shape.gpus, task.shape.cpus, task.shape.memory_bytes) == (10, 4, 20.0, 50 << 30)


def test_reshape_does_what_the_overrides_do() -> None:
    plan = planned(EIGHT, reshape=True)
    overrides = "tasks.main.nodes=10 tasks.main.gpus=4 tasks.main.cpus=20 tasks.main.memory=50GiB"
    assert plan.plan_hash == planned(EIGHT, *overrides.split()).plan_hash
    assert f"task main was reshaped (--reshape): {overrides}" in plan.notes
    assert plan.experiment["tasks"] == {"main": {"run": "f", "nodes": 10, "gpus": 4, "cpus": 20.0, "memory": "50GiB"}}


def test_reshape_leaves_alone_what_fits() -> None:
    text = "name: x\ntasks: {main: {nodes: 2, gpus: 4, run: f}}\n"
    assert planned(text, reshape=True) == planned(text)


def test_reshape_keeps_the_type_and_scales_processes() -> None:
    text = (
        "name: x\ntasks: {main: {nodes: 1, gpus: 8 x gh200, procs_per_node: 8, cluster: torchrun, run: python t.py}}\n"
    )
    _, hint = refused(text)["needs-reshape"]
    assert hint.startswith(
        "2 x 4: tasks.main.nodes=2 tasks.main.gpus.count=4 tasks.main.procs_per_node=4, or let --reshape"
    )
    task = planned(text, reshape=True).tasks[0]
    assert (task.shape.nodes, task.shape.gpus, task.shape.gpu_type, task.procs_per_node) == (2, 4, "gh200", 4)


def test_what_no_shape_fits_is_not_reshaped() -> None:
    text = "name: x\ntasks: {main: {gpus: 7, run: f}}\n"
    message, hint = refused(text, reshape=True)["needs-reshape"]
    assert message == "task `main` needs 7 GPUs of a node, and a node of `lab/gpu` has 4"
    assert hint == "a shape that fits: tasks.main.nodes=2 tasks.main.gpus=4, or another partition: --on lab/big"
