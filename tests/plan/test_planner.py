from __future__ import annotations

import dataclasses
import json

import pytest

from tests.plan.sample import BARE, BIG, FULL, PINS, SMALL, plan_of
from windlass.core.errors import InternalError, SpecError
from windlass.pin.code.pinned import CodePin
from windlass.plan.pins import Pins
from windlass.plan.plan import Plan
from windlass.plan.site import Site

GOLDEN = "fea31b3266554d74ffbdadc10296d01c885346a29d63231cbea6134096800069"


def test_the_hash_is_the_same_everywhere() -> None:
    assert plan_of(FULL).plan_hash == GOLDEN


@pytest.mark.parametrize(
    "overrides",
    [
        ["why=because"],
        ["where=elsewhere"],
        ["context.account=lab"],
        ["env.uv=../other"],
        ["data.prompts=file:/abs/p.jsonl"],
    ],
)
def test_what_is_not_the_work_is_not_in_the_hash(overrides: list[str]) -> None:
    assert plan_of(FULL, overrides=overrides).plan_hash == GOLDEN


def test_the_machine_is_not_in_the_hash() -> None:
    environment = dataclasses.replace(PINS.environment, interpreter="/opt/py", platform="linux-aarch64", key="other")
    code = dataclasses.replace(PINS.code, commit="d" * 40, remote="", branch="")
    pins = dataclasses.replace(PINS, environment=environment, code=code)
    assert plan_of(FULL, pins=pins, site=Site(name="elsewhere")).plan_hash == GOLDEN


@pytest.mark.parametrize(
    "overrides",
    [
        ["params.seed=2"],
        ["tasks.train.nodes=1"],
        ["tasks.train.gpus=1"],
        ["tasks.score.vars.A=1"],
        ["env.vars.NCCL_CUMEM_ENABLE=1"],
        ["retry.failed=2"],
        ["limit.time=4d"],
        ["tasks.train.checkpoints.every=10m"],
        ["name=other"],
    ],
)
def test_what_is_the_work_is_in_the_hash(overrides: list[str]) -> None:
    assert plan_of(FULL, overrides=overrides).plan_hash != GOLDEN


def test_pins_and_debugging_are_in_the_hash() -> None:
    hashes = {
        plan_of(FULL).plan_hash,
        plan_of(FULL, is_debug=True).plan_hash,
        plan_of(FULL, pins=dataclasses.replace(PINS, code=dataclasses.replace(PINS.code, tree="8" * 40))).plan_hash,
        plan_of(FULL, pins=dataclasses.replace(PINS, code=CodePin(kind="in-place", commit="c" * 40))).plan_hash,
    }
    assert len(hashes) == 4


def test_a_plan_survives_json() -> None:
    plan = plan_of(FULL, overrides=["params.lr=2"], is_debug=True)
    data = json.loads(json.dumps(plan.to_data()))
    assert Plan.from_data(data) == plan
    assert data["schema"] == "windlass.plan/3"
    assert data["plan_hash"] == plan.plan_hash
    assert data["overrides"] == ["params.lr=2"]


def test_tokens_in_commands_and_variables() -> None:
    text = """
name: x
params: {a: it's, n: [1, two words]}
env: {vars: {SHARED: "${name}-${nodes}"}}
tasks:
  one: {run: 'f ${params.a} "${params.a}" ${params.n}', vars: {V: "${params.a}/${out}"}}
  two: {run: [f, "${params.a}", "${tasks.one.checkpoints}", "${gpus_per_node} ${num_gpus}"], after: one, nodes: 2, total_gpus: 4}
"""
    one, two = plan_of(text).tasks
    assert one.argv == ("/bin/sh", "-c", """f 'it'"'"'s' "it's" 1 'two words'""")
    assert two.argv == ("f", "it's", "${tasks.one.checkpoints}", "2 4")
    assert (one.env["SHARED"], two.env["SHARED"], one.env["V"]) == ("x-1", "x-2", "it's/${out}")
    assert (two.shape.gpus, two.shape.nodes) == (2, 2)


def test_every_replica_finds_its_place() -> None:
    env = plan_of(FULL, is_debug=True).task("train").env
    assert env["WINDLASS_RUN"] == "${run}"
    assert env["WINDLASS_TASK"] == "train"
    assert env["WINDLASS_RANK"] == "${rank}"
    assert env["WINDLASS_NUM_REPLICAS"] == "2"
    assert env["WINDLASS_NUM_GPUS"] == "2"
    assert env["WINDLASS_ATTEMPT"] == "${attempt}"
    assert env["WINDLASS_LEADER_ADDRESS"] == "${leader.address}"
    assert env["WINDLASS_LEADER_PORT"] == "${leader.port}"
    assert env["WINDLASS_OUT"] == "${out}"
    assert env["WINDLASS_CHECKPOINTS"] == "${checkpoints}"
    assert env["CUDA_LAUNCH_BLOCKING"] == "1"


def test_variables_of_beaker_only_where_asked() -> None:
    plan = plan_of(FULL)
    assert not [name for name in plan.task("train").env if name.startswith("BEAKER_")]
    env = plan.task("score").site_env
    assert env["BEAKER_REPLICA_RANK"] == "${rank}"
    assert env["BEAKER_REPLICA_COUNT"] == "1"
    assert env["BEAKER_NODE_HOSTNAME"] == "${supervisor.host}"
    assert env["RESULTS_DIR"] == "${out}"
    assert env["BEAKER_LEADER_REPLICA_HOSTNAME"] == "${leader.address}"
    assert env["BEAKER_EXPERIMENT_ID"] == env["BEAKER_WORKLOAD_ID"] == "${run}"


def test_the_user_overrides_the_launcher_and_a_task_the_experiment() -> None:
    text = "{name: x, env: {vars: {A: 1, B: 1}}, tasks: {t: {run: f, vars: {B: 2, MASTER_PORT: 7}}}}"
    env = plan_of(text).task("t").env
    assert (env["A"], env["B"], env["MASTER_PORT"]) == ("1", "2", "7")


BAD = [
    (
        "{name: x, tasks: {t: {run: 'f ${params.lrr}'}}, params: {lr: 1}}",
        "unknown token `${params.lrr}` in tasks.t.run",
        "unknown-token",
        "did you mean `${params.lr}`?",
    ),
    (
        "{name: x, run: 'f ${HOME}'}",
        "unknown token `${HOME}` in tasks.main.run",
        "unknown-token",
        "for the shell's own variable write `$${HOME}`",
    ),
    (
        "{name: x, run: [f, '${zzzz}']}",
        "unknown token `${zzzz}` in tasks.main.run",
        "unknown-token",
        "the tokens are: ${name}, ${nodes}, ${gpus_per_node}, ${num_gpus}, ${procs_per_node}, ${attempt}, ${checkpoints}, ${code}, ${hostfile}, ${job}, ${leader.address}, ${leader.port}, ${out}, ${rank}, ${run}",
    ),
    (
        "{name: x, run: 'f ${out'}",
        "`${out` has no closing `}` in tasks.main.run",
        "token-literal",
        "write `$${` for a literal `${`",
    ),
    (
        "{name: x, tasks: {a: {run: f}, b: {run: 'g ${tasks.a.out}'}}}",
        "`${tasks.a.out}` in tasks.b.run needs task `a`, which `b` does not wait for",
        "unknown-token",
        "add `after: a` to tasks.b",
    ),
    (
        "{name: x, tasks: {a: {run: 'f ${tasks.a.out}'}}}",
        "task `a` names itself in `${tasks.a.out}` in tasks.a.run",
        "unknown-token",
        "write `${out}`",
    ),
    (
        "{name: x, tasks: {train: {run: f}, b: {run: 'g ${tasks.trian.out}', after: train}}}",
        "unknown token `${tasks.trian.out}` in tasks.b.run",
        "unknown-token",
        "did you mean `${tasks.train.out}`?",
    ),
    (
        "{name: x, params: {m: {dim: 1}}, run: 'f ${params.m}'}",
        "`${params.m}` in tasks.main.run is a mapping",
        "invalid-expression",
        "use one of its keys: ${params.m.dim}",
    ),
    (
        "{name: x, params: {m: null}, run: 'f ${params.m}'}",
        "`${params.m}` in tasks.main.run is null",
        "invalid-expression",
        "a command takes text, numbers, true or false, and lists of them",
    ),
    (
        "{name: x, params: {m: '${out}/m'}, run: 'f ${params.m}'}",
        "params.m holds `${out}/m`; tokens are replaced in `run` and `vars` only",
        "unknown-token",
        "write the token in the command, or `$${` for a literal `${`",
    ),
    (
        "{name: x, params: {m: a b}, run: 'f `g ${params.m}`'}",
        (
            "the value of `${params.m}` in tasks.main.run needs quotes, and they would not protect it: "
            "there is a backquote or a here-document before it"
        ),
        "unsafe-insert",
        'pass the value through `vars`: vars: {X: "${params.m}"}, and "$X" in the command',
    ),
    (
        "{name: x, run: 'f $${rank}'}",
        "the literal `${rank}` in tasks.main.run would be replaced in the job",
        "token-literal",
        "write `$rank`, or give the variable of your shell another name",
    ),
    (
        "{name: x, run: f, env: {vars: {A: '${ot}'}}}",
        "unknown token `${ot}` in env.vars.A",
        "unknown-token",
        "did you mean `${out}`?",
    ),
    (
        "{name: x, run: f, env: {vars: {WINDLASS_RANK: 1}}}",
        "env.vars.WINDLASS_RANK: variables that begin with WINDLASS_ are reserved",
        "reserved-variable",
        "rename it",
    ),
    (
        "{name: x, tasks: {t: {run: f, vars: {CUDA_VISIBLE_DEVICES: 0}}}}",
        "tasks.t.vars.CUDA_VISIBLE_DEVICES: windlass leases the GPUs of a task and sets this variable",
        "reserved-variable",
        "remove it, and ask for GPUs: `gpus: 1`; inside a shell line, `CUDA_VISIBLE_DEVICES=0 python ...` still works",
    ),
    (
        "{name: x, run: f, env: {secrets: [WINDLASS_TOKEN]}}",
        "env.secrets: `WINDLASS_TOKEN` is a variable that windlass sets",
        "reserved-variable",
        "store the secret under another name",
    ),
    (
        "{name: x, tasks: {t: {run: f, nodes: 3, total_gpus: 4}}}",
        "tasks.t.total_gpus=4 cannot be shared evenly by tasks.t.nodes=3",
        "does-not-fit",
        "use a number of nodes from: 1, 2, 4",
    ),
    (
        "{name: x, tasks: {t: {run: 'python a && python b', cluster: torchrun}}}",
        "tasks.t.run has several commands and names torchrun not at all",
        "launcher-command",
        "write `torchrun` before the command that should run in several processes",
    ),
    (
        "{name: x, tasks: {t: {run: f, nodes: 2, gpus: 2}}}",
        "task `t` does not fit: 2 nodes x 2 = 4 GPUs, and `local` has 2",
        "does-not-fit",
        "a shape that fits: --on local tasks.t.nodes=1",
    ),
    (
        "{name: x, tasks: {t: {run: f, gpus: 4, cpus: 8, memory: 16GiB}}}",
        "task `t` does not fit: 4 GPUs, and `local` has 2; 8 CPUs, and `local` has 4; 16GiB of memory, and `local` has 8GiB",
        "does-not-fit",
        "a shape that fits: --on local tasks.t.gpus=2 tasks.t.cpus=4 tasks.t.memory=8192MiB",
    ),
    (
        "{name: x, tasks: {t: {run: f, nodes: 5, total_gpus: 10}}}",
        "task `t` does not fit: 5 nodes x 2 = 10 GPUs, and `local` has 2",
        "does-not-fit",
        "a shape that fits: --on local tasks.t.total_gpus=2 tasks.t.nodes=1",
    ),
    (
        "{name: x, tasks: {t: {run: f, nodes: 513}}}",
        "task `t` asks for 513 nodes, and `local` runs at most 512",
        "does-not-fit",
        "ask for fewer: tasks.t.nodes=512",
    ),
    (
        "{name: x, env: {image: Dockerfile}, run: f}",
        "env.image=Dockerfile is not supported on `local`: containers run on `docker` and `podman`, and at sites that have them",
        "unsupported-setting",
        "remove it: ~env.image, or run without it: --best-effort",
    ),
    (
        "{name: x, tasks: {t: {run: f, gpus: 1 x gh200}}}",
        "tasks.t.gpus.type=gh200 is not supported on `local`: the type of this machine's GPUs is not known",
        "unsupported-setting",
        "write the count alone: tasks.t.gpus=1, or run without it: --best-effort",
    ),
    (
        "{name: x, tasks: {t: {run: f, disk: 1TiB}}}",
        "tasks.t.disk=1TiB is not supported on `local`: disk space is neither reserved nor limited on this machine",
        "unsupported-setting",
        "remove it: ~tasks.t.disk, or run without it: --best-effort",
    ),
    (
        "{name: x, limit: {gpu_hours: 4800}, tasks: {t: {run: f, gpus: 1}}}",
        "limit.gpu_hours=4800 is not supported on `local`: GPU-hours are not limited on this machine",
        "unsupported-setting",
        "remove it: ~limit.gpu_hours, or run without it: --best-effort",
    ),
    (
        "{name: x, data: {a: 'file:a', b: {from: a, build: g}}, run: 'f ${data.c}'}",
        "unknown token `${data.c}` in tasks.main.run",
        "unknown-token",
        "did you mean `${data.b}`?",
    ),
]


@pytest.mark.parametrize(("text", "message", "code", "hint"), BAD)
def test_every_refusal_says_what_and_what_to_do(text: str, message: str, code: str, hint: str) -> None:
    pins = Pins(data={"a": PINS.data["prompts"]})
    with pytest.raises(SpecError) as caught:
        plan_of(text, site=SMALL, pins=pins)
    (problem,) = caught.value.problems
    assert (problem.message, problem.code, problem.hint) == (message, code, hint)
    assert problem.place is not None
    assert problem.place.line == 1


def test_a_refusal_points_at_its_line() -> None:
    with pytest.raises(SpecError) as caught:
        plan_of("name: x\ntasks:\n  t:\n    run: f ${nope}\n    nodes: 2\n    vars: {A: '${no}'}\n    disk: 1GiB\n")
    assert {(problem.code, problem.place.line) for problem in caught.value.problems if problem.place} == {
        ("unknown-token", 4),
        ("unknown-token", 6),
        ("unsupported-setting", 7),
    }


def test_one_problem_in_shared_variables_is_said_once() -> None:
    with pytest.raises(SpecError) as caught:
        plan_of("{name: x, env: {vars: {A: '${zz}'}}, tasks: {a: {run: f}, b: {run: f}}}")
    assert len(caught.value.problems) == 1


def test_debugging_and_its_own_variable() -> None:
    text = "{name: x, run: f, env: {vars: {CUDA_LAUNCH_BLOCKING: 0}}}"
    assert plan_of(text).tasks[0].env["CUDA_LAUNCH_BLOCKING"] == "0"
    with pytest.raises(SpecError, match=r"env\.vars\.CUDA_LAUNCH_BLOCKING=0 contradicts --debug, which sets it to 1"):
        plan_of(text, is_debug=True)


def test_without_gpus_the_proposal_takes_none() -> None:
    with pytest.raises(SpecError) as caught:
        plan_of("{name: x, tasks: {t: {run: f, gpus: 4}}}", site=BARE)
    assert caught.value.hint == "a shape that fits: --on local tasks.t.gpus=0"
    assert (
        plan_of("{name: x, tasks: {t: {run: f, gpus: 4}}}", site=BARE, overrides=["tasks.t.gpus=0"]).tasks[0].shape.gpus
        == 0
    )


def test_without_gpus_the_proposal_removes_the_total() -> None:
    with pytest.raises(SpecError) as caught:
        plan_of("{name: x, tasks: {t: {run: f, total_gpus: 4, nodes: 2, cpus: 2}}}", site=BARE)
    proposal = caught.value.hint.partition("--on local ")[2].split()
    assert proposal == ["~tasks.t.total_gpus", "tasks.t.nodes=1"]
    plan_of("{name: x, tasks: {t: {run: f, total_gpus: 4, nodes: 2, cpus: 2}}}", site=BARE, overrides=proposal)


def test_an_unknown_machine_is_noted() -> None:
    plan = plan_of("{name: x, tasks: {t: {run: f, gpus: 400}}}", site=Site())
    assert plan.notes == ("the partitions and nodes of `local` are unknown, so nothing was checked",)


def test_best_effort_says_what_it_ignores() -> None:
    text = "{name: x, env: {image: a/b}, limit: {gpu_hours: 5}, tasks: {t: {run: f, gpus: 1 x gh200, hosts: [n1, n2]}}}"
    plan = plan_of(text, best_effort=True)
    assert plan.is_best_effort
    assert plan.notes == (
        "env.image=a/b is ignored (--best-effort): containers run on `docker` and `podman`, and at sites that have them",
        "tasks.t.gpus.type=gh200 is ignored (--best-effort): the type of this machine's GPUs is not known",
        "tasks.t.hosts=n1,n2 is ignored (--best-effort): this machine is the only host",
        "limit.gpu_hours=5 is ignored (--best-effort): GPU-hours are not limited on this machine",
    )


def test_wishes_that_the_place_satisfies_are_noted() -> None:
    text = "{name: x, run: f, context: {priority: high, account: lab/a}, limit: {gpu_hours: 4, jobs: 3}}"
    assert plan_of(text).notes == (
        "context.priority=high: no other user's runs compete for this machine",
        "context.account=lab/a: recorded; this machine has no accounts",
        "limit.jobs=3: a task is a single job on this machine, however long it runs",
        "limit.gpu_hours=4: no task takes a GPU",
    )


def test_data_without_a_pin_is_our_bug() -> None:
    with pytest.raises(InternalError, match="data `d` has no pin"):
        plan_of("{name: x, data: {d: 'file:x'}, run: f}", pins=Pins())


def test_planning_twice_gives_the_same_plan() -> None:
    assert plan_of(FULL, site=BIG) == plan_of(FULL, site=BIG)
