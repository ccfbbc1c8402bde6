from __future__ import annotations

from dataclasses import replace

from tests.plan.sample import PINS, plan_of
from tests.plan.sample_site import planned, site
from windlass.pin.environment.pinned import EnvironmentPin
from windlass.plan.page import plan_page

PLAIN = "name: x\ntasks: {main: {nodes: 2, gpus: 4, run: f}}\nlimit: {time: 1h}\n"


def test_variables_go_to_their_roles() -> None:
    task = planned(PLAIN).tasks[0]
    assert task.site_env == {"NCCL_CROSS_NIC": "1", "NCCL_NET": "AWS Libfabric", "HF_HOME": "${fs.shared}/hf"}
    assert task.site_unset == ("OMPI_MCA_btl",)
    assert task.driver_env == {"LD_PRELOAD": "${env.path}/libnccl.so.2"}
    assert (task.driver_unset, task.worker_env, task.worker_unset) == ((), {}, ("LD_PRELOAD",))


def test_predicates_are_decided() -> None:
    one = planned(PLAIN, "tasks.main.nodes=1").tasks[0]
    assert "NCCL_NET" not in one.site_env
    assert "LD_PRELOAD" in one.driver_env
    none = planned(PLAIN, "~tasks.main.gpus").tasks[0]
    assert "NCCL_NET" not in none.site_env
    assert none.driver_env == {}
    at = site("net.vars=[{name: A, value: b, when: torchrun}, {name: C, value: d, when: [one-node]}]")
    assert planned(PLAIN, at=at).tasks[0].site_env == {"HF_HOME": "${fs.shared}/hf"}
    run = ("tasks.main.cluster=torchrun", "tasks.main.run=python t.py", "tasks.main.nodes=1")
    assert planned(PLAIN, *run, at=at).tasks[0].site_env == {"A": "b", "C": "d", "HF_HOME": "${fs.shared}/hf"}


def test_what_the_user_sets_stays() -> None:
    plan = planned(PLAIN, "env.vars.NCCL_CROSS_NIC=0", "tasks.main.vars={LD_PRELOAD: mine.so, OMPI_MCA_btl: tcp}")
    task = plan.tasks[0]
    assert task.env["NCCL_CROSS_NIC"] == "0"
    assert "NCCL_CROSS_NIC" not in task.site_env
    assert (task.driver_env, task.worker_unset, task.site_unset) == ({}, (), ())
    assert "HF_HOME" not in planned(PLAIN, "env.secrets=HF_HOME").tasks[0].site_env
    assert "NCCL_CROSS_NIC: the experiment's value replaces the value of `lab`" in plan.notes


def test_what_cannot_be_filled_in_is_left_out_and_said() -> None:
    pins = replace(PINS, environment=EnvironmentPin(kind="none"))
    plan = planned(PLAIN, at=site("~fs"), pins=pins)
    assert plan.tasks[0].driver_env == {}
    assert "HF_HOME" not in plan.tasks[0].site_env
    assert (
        "LD_PRELOAD of `lab` is left out: it is in the experiment's environment, which does not exist (env.uv)"
        in plan.notes
    )
    assert "HF_HOME of `lab` is left out: the profile has no shared folder (fs.shared)" in plan.notes


def test_an_interpreter_of_the_users_has_no_folder_that_a_site_may_name() -> None:
    pins = replace(PINS, environment=replace(PINS.environment, kind="python"))
    plan = planned(PLAIN, pins=pins)
    assert plan.tasks[0].driver_env == {}
    assert any(note.startswith("LD_PRELOAD of `lab` is left out: it is in the") for note in plan.notes)


def test_a_value_for_another_python_than_the_environments_is_told() -> None:
    at = site("env.vars=[{name: LD_PRELOAD, value: '${env.path}/lib/python3.12/nccl.so', role: driver}]")
    note = (
        "LD_PRELOAD of `lab` names lib/python3.12 of the environment, which has Python 3.11.7: "
        "set it in env.vars, or correct the profile"
    )
    assert note in planned(PLAIN, at=at).notes
    pins = replace(PINS, environment=replace(PINS.environment, python_version="3.12.1"))
    assert not any("names lib/python" in each for each in planned(PLAIN, at=at, pins=pins).notes)


def test_a_site_is_no_part_of_the_work() -> None:
    assert planned(PLAIN).plan_hash == plan_of(PLAIN).plan_hash
    assert (
        planned(PLAIN).plan_hash == planned(PLAIN, "context.account=beta", at=site("env.python=python3.11")).plan_hash
    )


def test_the_page_shows_what_the_site_adds() -> None:
    shown = plan_page(planned(PLAIN, "tasks.main.disk=1GiB", "context.priority=low", "limit={time: 5d, per_job: 24h}"))
    for line in (
        "where        lab/gpu (slurm)",
        "  queue        partition gpu, account alpha, nice 100, 1GiB of node-local disk, away from n13, --network=single_node_vni",
        "  jobs         5 x 1d, at most 51; 2 queued at the launch",
        "  of the site  NCCL_CROSS_NIC=1",
        "               OMPI_MCA_btl is unset",
        "  its driver   LD_PRELOAD=${env.path}/libnccl.so.2",
    ):
        assert line in shown.split("\n")
    assert "its workers" not in shown


def test_the_page_shows_bundles() -> None:
    shown = plan_page(planned(PLAIN, "tasks.main.bundles={a: {count: 2, gpus: 4}}"))
    assert "  bundles      a: 2 x (4 GPUs), pack: 8 GPUs\n               together: 8 of 2 x 4 = 8 GPUs" in shown


def test_the_page_of_a_local_plan_shows_no_queue() -> None:
    assert "queue" not in plan_page(plan_of(PLAIN))
