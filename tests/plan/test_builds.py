"""Prepared data in the plan: tasks that build, keys, what is refused, commands made by the adapter."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.sample import BIG, PINS
from windlass.config.loading import load_config
from windlass.core.errors import SpecError
from windlass.pin.data.pinned import BuildPin
from windlass.plan.builds import pin_builds
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.job import RunPaths, job_document
from windlass.plan.page import plan_page
from windlass.plan.pins import Pins
from windlass.plan.plan import Plan
from windlass.plan.planner import make_plan
from windlass.plan.site import Site
from windlass.spec import Experiment

BASE = """\
name: x
env: {vars: {MODE: fast, WHERE: "${out}/log", RUN_ID: "${run}"}}
params: {length: 512, lr: 0.1}
data:
  prompts: file:p.jsonl
  tokens: {from: prompts, build: "tokenise --length ${params.length} ${from} ${out}", cpus: 4, memory: 2GiB}
  packed: {from: tokens, build: [pack, "${data.tokens}", "${out}"]}
tasks:
  train: {run: "train --lr ${params.lr} ${data.packed}", gpus: 1}
  score: {run: score, after: train}
limit: {time: 1h, per_job: 30m}
"""


def builds_of(text: str, *overrides: str, pins: Pins = PINS) -> dict[str, BuildPin]:
    loaded = load_config(Experiment, text, source="exp.yaml", overrides=overrides)
    diagnostics = Diagnostics(loaded.origins)
    found = pin_builds(loaded.value, pins, {"tokens": "c1", "packed": "c2"}, diagnostics)
    diagnostics.raise_all()
    return found


def plan_of(text: str, *overrides: str, hits: tuple[str, ...] = (), pins: Pins = PINS, site: Site = BIG) -> Plan:
    builds = builds_of(text, *overrides, pins=pins)
    for name in hits:
        builds[name] = replace(builds[name], is_hit=True, digest="e" * 64, size_bytes=2048, num_files=3)
    loaded = load_config(Experiment, text, source="exp.yaml", overrides=overrides)
    return make_plan(loaded.value, replace(pins, builds=builds), site, overrides=overrides, origins=loaded.origins)


def test_what_is_missing_is_built_before_the_task_that_names_it() -> None:
    plan = plan_of(BASE)
    assert [(task.name, task.settings.after) for task in plan.tasks] == [
        ("data.tokens", ()),
        ("data.packed", ("data.tokens",)),
        ("train", ("data.packed",)),
        ("score", ("train",)),
    ]
    build = plan.task("data.tokens")
    assert (
        build.shape.gpus,
        build.shape.cpus,
        build.shape.memory_bytes,
        build.settings.time_s,
        build.settings.per_job_s,
    ) == (0, 4, 2 << 30, None, None)
    assert build.argv[-1] == "tokenise --length 512 ${from} ${out}"
    assert plan.task("train").settings.time_s == 3600


def test_a_hit_needs_no_task_and_what_it_was_built_from_neither() -> None:
    assert [task.name for task in plan_of(BASE, hits=("packed",)).tasks] == ["train", "score"]
    assert [task.name for task in plan_of(BASE, hits=("tokens",)).tasks] == ["data.packed", "train", "score"]
    assert plan_of(BASE, hits=("packed",)).task("train").settings.after == ()


def test_hit_and_miss_are_the_same_work() -> None:
    plan = plan_of(BASE)
    assert plan.plan_hash == plan_of(BASE, hits=("tokens", "packed")).plan_hash
    assert plan.experiment == plan_of(BASE, hits=("tokens", "packed")).experiment
    assert plan.plan_hash != plan_of(BASE, "params.length=1024").plan_hash
    assert Plan.from_data(json.loads(json.dumps(plan.to_data()))) == plan


def test_the_key_holds_what_the_build_reads_and_no_more() -> None:
    keys = {name: pin.key for name, pin in builds_of(BASE).items()}

    def changed(*overrides: str, pins: Pins = PINS) -> list[str]:
        return [name for name, pin in builds_of(BASE, *overrides, pins=pins).items() if pin.key != keys[name]]

    other = {"prompts": replace(PINS.data["prompts"], digest="f" * 64)}
    assert changed("params.length=8") == ["tokens", "packed"]
    assert changed(pins=replace(PINS, data=other)) == ["tokens", "packed"]
    assert changed("env.vars.MODE=slow") == ["tokens", "packed"]
    assert changed("params.lr=0.2", "env.vars.RUN_ID=${job}", "tasks.train.gpus=2", "data.tokens.cpus=8") == []
    environment = replace(PINS.environment, lock_sha256="9" * 64)
    assert changed(pins=replace(PINS, environment=environment)) == ["tokens", "packed"]


def test_a_build_gets_only_variables_that_are_the_same_in_every_run() -> None:
    env = plan_of(BASE).task("data.tokens").env
    assert (env["MODE"], env["WHERE"], "RUN_ID" in env) == ("fast", "${out}/log", False)


def test_data_that_no_task_names_is_not_built() -> None:
    assert builds_of(BASE, "tasks.train.run=train --lr ${params.lr} ${params.length}") == {}


def test_a_variable_of_a_task_names_data_too() -> None:
    plan = plan_of(BASE, "tasks.score.vars.DATA=${data.tokens}")
    assert plan.task("score").settings.after == ("train", "data.tokens")


def test_the_page_says_hit_or_miss_and_the_size() -> None:
    text = plan_page(plan_of(BASE, hits=("tokens",)))
    key = builds_of(BASE)["tokens"].key[:12]
    assert f"data         tokens: key {key}  hit: sha256:eeeeeeeeeeee  2.0 KiB, 3 files" in text
    assert "miss: task data.packed builds it first" in text
    assert "task data.packed\n" in text


@pytest.mark.parametrize(
    ("override", "message", "code"),
    [
        (
            "data.tokens.build=t ${out} ${run}",
            "`${run}` in data.tokens.build differs from run to run",
            "unknown-token",
        ),
        ("data.tokens.build=t ${tasks.score.out}", "`${tasks.score.out}` in data.tokens.build", "unknown-token"),
        (
            "data.tokens.build=t ${data.promts} ${out}",
            "unknown data `${data.promts}` in data.tokens.build",
            "unknown-name",
        ),
        (
            "data.tokens.build=t ${data.packed} ${out}",
            "the data is built from itself: tokens -> packed -> tokens",
            "dependency-cycle",
        ),
        (
            "data.tokens.build=t ${data.tokens} ${out}",
            "the data is built from itself: tokens -> tokens",
            "dependency-cycle",
        ),
        ("data.tokens.from=packed", "the data is built from itself", "dependency-cycle"),
        ("data.tokens.from=prompt", "unknown data `prompt` in data.tokens.from", "unknown-name"),
        ("data.tokens.build=t ${params.len}", "unknown token `${params.len}` in data.tokens.build", "unknown-token"),
        ("data.prompts.cpus=2", "`cpus` has no effect without `build`", "setting-unused"),
        ("data.tokens.task=train", "`task` has no effect without `adapter`", "setting-unused"),
        ("data.tokens.adapter=cache-dataset-only", "`adapter` makes the command itself", "conflicting-options"),
    ],
)
def test_refusals(override: str, message: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan_of(BASE, override)
    found = [problem for problem in caught.value.problems if message in problem.message]
    assert found, [problem.message for problem in caught.value.problems]
    assert found[0].code == code
    assert found[0].hint
    assert found[0].place is not None


def test_all_problems_come_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        builds_of(BASE, "data.tokens.build=t ${run} ${params.no}", "data.packed.build=p ${data.nothing}")
    assert len(caught.value.problems) == 3


# --- the job ----------------------------------------------------------------------------------------------------------


def places(plan: Plan) -> RunPaths:
    built = {name: Path("/home/data/built") / pin.key / "data" for name, pin in plan.pins.builds.items()}
    data = {"prompts": Path("/data/p.jsonl"), **built}
    return RunPaths(run="x-aaaaaaaa", run_dir=Path("/home/runs/x-aaaaaaaa"), code=Path("/code"), data=data)


def test_the_job_of_a_build_is_wrapped_and_writes_to_its_generation() -> None:
    plan = plan_of(BASE)
    key = plan.pins.builds["tokens"].key
    document = job_document(plan, plan.task("data.tokens"), places=places(plan), job=1, token="t")
    argv = document.command.argv
    assert argv[:6] == (
        "${supervisor.python}",
        "-I",
        "-S",
        "${supervisor.archive}",
        "data-build",
        f"--place=/home/data/built/{key}",
    )
    assert argv[-1] == f"tokenise --length 512 /data/p.jsonl /home/data/built/.{key}.generation/data"
    assert document.command.env["WINDLASS_OUT"] == f"/home/data/built/.{key}.generation/data"
    assert (document.command.builds, document.paths.out) == ("tokens", "/home/runs/x-aaaaaaaa/out/data.tokens")
    train = job_document(plan, plan.task("train"), places=places(plan), job=1, token="t")
    assert train.command.argv[-1].endswith(f"/home/data/built/{plan.pins.builds['packed'].key}/data")
    assert train.command.builds == ""


# --- the adapter ------------------------------------------------------------------------------------------------------

TRAIN = "accelerate launch --num_processes 8 src/finetune.py --lr 1e-5 --with_tracking --checkpoint_state_dir ${checkpoints} --output_dir ${out} --dataset_local_cache_dir ${data.cache} --mixer a 1.0 b 0.5"


def adapted(run: str | list[str], entry: str = "{adapter: cache-dataset-only}") -> tuple[str, ...]:
    text = f"name: x\ndata: {{cache: {entry}}}\ntasks: {{train: {{run: {json.dumps(run)}, vars: {{C: '${{data.cache}}'}}}}}}\n"
    return plan_of(text).task("data.cache").argv


def test_the_adapter_makes_the_build_from_the_training_command() -> None:
    tail = ("--cache_dataset_only", "--dataset_local_cache_dir", "${out}")
    wanted = ("python", "src/finetune.py", "--lr", "1e-5", "--mixer", "a", "1.0", "b", "0.5", *tail)
    assert adapted(TRAIN) == wanted
    assert adapted(shlex.split(TRAIN)) == wanted
    assert adapted(f"source setup.sh && {TRAIN} 2>&1 && echo done") != wanted  # a redirection is the shell's
    assert adapted(f"source setup.sh && {TRAIN} && echo done") == wanted
    dropped = adapted(TRAIN, "{adapter: cache-dataset-only, task: train, drop: [--lr, --mixer]}")
    assert dropped == ("python", "src/finetune.py", *tail)


def test_the_adapter_keeps_the_interpreter_and_quotes() -> None:
    argv = adapted("""/opt/bin/python3 t.py --text 'a  b' --dict '{"a": 1}' --checkpoint_state_freq=5""")
    assert argv[:6] == ("/opt/bin/python3", "t.py", "--text", "a  b", "--dict", '{"a": 1}')


@pytest.mark.parametrize(
    "run", ["train.sh", "python t.py $HOME", "python t.py `date`", ["bash", "-c", "x"], "python -m x"]
)
def test_a_command_that_the_adapter_cannot_read_is_refused(run: str | list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        adapted(run)
    assert caught.value.problems[0].code == "invalid-value"


def test_the_adapter_needs_to_know_whose_command() -> None:
    two = "{name: x, data: {c: {adapter: cache-dataset-only}}, tasks: {a: {run: 'p a.py ${data.c}'}, b: {run: p}}}"
    with pytest.raises(SpecError, match=r"data.c has an adapter but no `task`"):
        plan_of(two)
    with pytest.raises(SpecError, match=r"unknown task `aa` in data.c.task"):
        plan_of(two.replace("only}", "only, task: aa}"))
