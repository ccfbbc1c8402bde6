from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.config.emit import to_yaml
from windlass.config.encode import to_data
from windlass.config.loading import from_data, load_config
from windlass.config.schema_export import json_schema
from windlass.core.errors import AccessError, NotFoundError, SpecError
from windlass.spec import (
    Checkpoints,
    Context,
    DataSource,
    Env,
    Experiment,
    Gpus,
    Image,
    Limit,
    Retry,
    SecretUse,
    Stall,
    Task,
)
from windlass.spec.load import checked, load_experiment
from windlass.spec.references import find_cycle

FULL = """\
name: grpo-7b-rlzero
why: does clip_higher 0.272 stop the entropy collapse?
code: .
env:
  image: Dockerfile
  vars: {NCCL_CUMEM_ENABLE: "0", NCCL_TIMEOUT: 600, DEBUG: false}
  secrets: [HF_TOKEN, {name: WANDB_API_KEY, as: file}]
data:
  prompts: file:data/prompts.jsonl
  tokens:
    from: prompts
    build: python prep.py ${data.prompts} ${out}
params: {lr: 1e-6, seed: 1}
tasks:
  train:
    nodes: 10
    gpus: 4 x gh200
    cluster: ray
    run: >-
      python open_instruct/grpo_fast.py --learning_rate ${params.lr} --seed ${params.seed}
      --dataset ${data.tokens} --checkpoint_state_dir ${checkpoints} --output_dir ${out}
    checkpoints: {every: 20m, resume: latest, pattern: "step_*"}
  score:
    after: train
    gpus: 1
    run: [python, eval.py, "${tasks.train.out}"]
where: isambard
context: {priority: high, preemptible: true, account: lab/oe-adapt, group: rl-zero}
limit: {time: 5d, per_job: 24h, jobs: 30, gpu_hours: 4800}
retry: {interrupted: 50, failed: 0}
"""


def read(tmp_path: Path, text: str, *overrides: str) -> Experiment:
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    return load_experiment(path, overrides).value


def test_the_whole_file_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, FULL)
    assert found == Experiment(
        name="grpo-7b-rlzero",
        why="does clip_higher 0.272 stop the entropy collapse?",
        env=Env(
            image=Image(dockerfile="Dockerfile"),
            vars={"NCCL_CUMEM_ENABLE": "0", "NCCL_TIMEOUT": "600", "DEBUG": "false"},
            secrets=(SecretUse(name="HF_TOKEN"), SecretUse(name="WANDB_API_KEY", as_="file")),
        ),
        data={
            "prompts": DataSource(source="file:data/prompts.jsonl"),
            "tokens": DataSource(from_="prompts", build="python prep.py ${data.prompts} ${out}"),
        },
        params={"lr": 1e-6, "seed": 1},
        tasks={
            "train": Task(
                nodes=10,
                gpus=Gpus(count=4, type="gh200"),
                cluster="ray",
                run="python open_instruct/grpo_fast.py --learning_rate ${params.lr} --seed ${params.seed} "
                "--dataset ${data.tokens} --checkpoint_state_dir ${checkpoints} --output_dir ${out}",
                checkpoints=Checkpoints(every=1200.0, pattern="step_*"),
            ),
            "score": Task(after=("train",), gpus=Gpus(count=1), run=("python", "eval.py", "${tasks.train.out}")),
        },
        where=("isambard",),
        context=Context(priority="high", preemptible=True, account="lab/oe-adapt", group="rl-zero"),
        limit=Limit(time=432000.0, per_job=86400.0, jobs=30, gpu_hours=4800.0),
    )
    assert load_config(Experiment, to_yaml(found), source="again").value == found


def test_the_shortest_file_is_two_lines(tmp_path: Path) -> None:
    found = read(tmp_path, "name: hello\nrun: python train.py\n")
    assert found == Experiment(name="hello", run="python train.py")
    assert found.tasks == {"main": Task(run="python train.py")}
    assert found.where == ("local",)
    assert found.retry == Retry(interrupted=50, failed=0)
    assert found.tasks["main"].stall == Stall(floor=60.0, enabled=True)
    assert to_yaml(found) == "name: hello\ntasks:\n  main:\n    run: python train.py\n"


def test_overrides_reach_into_the_one_task(tmp_path: Path) -> None:
    text = "name: hello\nrun: python train.py\n"
    found = read(tmp_path, text, "tasks.main.gpus=2 x a100", "params.lr=3e-6", "--context.preemptible", "where=[a, b]")
    assert found.tasks["main"].gpus == Gpus(count=2, type="a100")
    assert found.params == {"lr": 3e-6}
    assert found.context.preemptible
    assert found.where == ("a", "b")
    assert read(tmp_path, text, "run=python other.py").tasks["main"].run == "python other.py"
    assert read(tmp_path, FULL, "tasks.train.gpus.count=2").tasks["train"].gpus == Gpus(count=2, type="gh200")
    assert read(tmp_path, FULL, "tasks.train.nodes=1", "tasks.train.gpus=0", "where=local").tasks["train"].num_gpus == 0


@pytest.mark.parametrize(
    ("text", "count", "kind"),
    [
        ("4", 4, ""),
        ("'4'", 4, ""),
        ("4 x gh200", 4, "gh200"),
        ("4x gh200", 4, "gh200"),
        ("0", 0, ""),
        ("{count: 2, type: h100}", 2, "h100"),
    ],
)
def test_gpus_are_written_in_several_ways(tmp_path: Path, text: str, count: int, kind: str) -> None:
    found = read(tmp_path, f"name: hello\ntasks:\n  train:\n    run: x\n    gpus: {text}\n").tasks["train"]
    assert found.gpus == Gpus(count=count, type=kind)
    assert found.num_gpus == count


def test_parameters_take_any_json_like_value(tmp_path: Path) -> None:
    found = read(tmp_path, "name: hello\nrun: x\nparams: {a: [1, {b: null}], c: no, d: 24:00:00, e: 1e-6, f: true}\n")
    assert found.params == {"a": [1, {"b": None}], "c": "no", "d": "24:00:00", "e": 1e-6, "f": True}


def test_an_experiment_is_made_in_python_and_checked() -> None:
    # What a person writes without a type checker: lists, a bare number.
    untidy = {"run": ["python", "x"], "after": ["prep"], "gpus": 2}
    made = Experiment(name="hello", tasks={"train": Task(**untidy), "prep": Task(run="p")})  # type: ignore[arg-type]
    found = checked(made)
    assert found.tasks["train"] == Task(run=("python", "x"), after=("prep",), gpus=Gpus(count=2))
    with pytest.raises(SpecError) as caught:
        checked(Experiment(name="Hello", tasks={"train": Task(run="x", nodes=0)}, limit=Limit(time=1.0, per_job=2.0)))
    assert [problem.code for problem in caught.value.problems] == [
        "invalid-name",
        "invalid-value",
        "conflicting-options",
    ]
    assert str(caught.value.problems[1].place) == "<python>   tasks.train.nodes = 0"


def test_run_and_tasks_exclude_each_other_in_python_too() -> None:
    with pytest.raises(SpecError, match="both `run` and `tasks` are set"):
        Experiment(name="hello", run="x", tasks={"train": Task(run="y")})


def test_a_copy_with_one_change_keeps_the_rest() -> None:
    made = Experiment(name="hello", run="x")
    assert dataclasses.replace(made, name="other").tasks == made.tasks


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("name: hello\n")
    with pytest.raises(NotFoundError) as caught:
        load_experiment(tmp_path / "experimnt.yaml")
    assert caught.value.message == f"no such file: `{tmp_path}/experimnt.yaml`"
    assert caught.value.hint == f"did you mean `{tmp_path}/experiment.yaml`?"
    assert caught.value.code == "file-not-found"
    with pytest.raises(NotFoundError) as caught:
        load_experiment(tmp_path / "nowhere" / "x.yaml")
    assert caught.value.hint == "`windlass init NAME` creates an experiment file to start from"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        load_experiment(tmp_path)
    assert caught.value.message == f"`{tmp_path}` is a folder, not an experiment file"
    assert caught.value.hint == "name the file: experiment.yaml"
    (tmp_path / "a.yaml").write_text("name: hello\n")
    with pytest.raises(NotFoundError) as caught:
        load_experiment(tmp_path)
    assert caught.value.hint == f"did you mean `{tmp_path}/a.yaml`?"


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: hello\n")

    def refuse(self: Path, *_: object) -> object:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(AccessError) as caught:
        load_experiment(path)
    assert caught.value.message == f"`{path}` may not be read"
    assert caught.value.hint == f"make it readable: chmod u+r {path}"


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\x80\x00")
    with pytest.raises(SpecError, match="the byte 0x80 is not UTF-8"):
        load_experiment(path)
    path.write_bytes(b"a" * ((4 << 20) + 1))
    with pytest.raises(SpecError, match="the file is larger than 4 MiB"):
        load_experiment(path)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(NotFoundError, match="is not a regular file"):
        load_experiment(tmp_path / "pipe.yaml")
    with pytest.raises(AccessError, match="embedded null byte"):
        load_experiment(Path("a\0b"))


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdefg"), max_size=4), max_size=6))
def test_a_cycle_is_found_exactly_when_there_is_one(edges: dict[str, list[str]]) -> None:
    cycle = find_cycle(edges)
    if cycle:
        assert cycle[0] == cycle[-1]
        assert all(second in edges[first] for first, second in itertools.pairwise(cycle))
    else:
        # Without a cycle, taking away what waits for nothing ends with nothing.
        left = {name: set(others) & edges.keys() for name, others in edges.items()}
        while free := [name for name, others in left.items() if not others & left.keys()]:
            for name in free:
                del left[name]
        assert not left


def test_a_long_chain_of_tasks_needs_no_deep_stack() -> None:
    edges = {str(index): [str(index + 1)] for index in range(3000)}
    assert find_cycle(edges) == []
    assert len(find_cycle({**edges, "3000": ["0"]})) == 3002


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,8}[a-z0-9])?", fullmatch=True)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
COMMANDS = st.one_of(TEXT.filter(bool), st.lists(TEXT, min_size=1, max_size=3).map(tuple))
PATTERNS = TEXT.filter(lambda text: not list(Checkpoints(pattern=text).check()))
SECONDS = st.integers(1000, 10**9).map(lambda milliseconds: milliseconds / 1000)
SIZES = st.none() | st.integers(1, 1 << 40)
VARIABLES = st.dictionaries(st.from_regex("[A-Z_][A-Z0-9_]{0,6}", fullmatch=True), TEXT, max_size=2)
TASKS = st.builds(
    Task,
    run=COMMANDS,
    nodes=st.integers(1, 10_000),
    gpus=st.none() | st.builds(Gpus, count=st.integers(0, 16), type=st.sampled_from(["", "h100", "gh 200", "x"])),
    cpus=st.none() | st.floats(0.1, 512),
    memory=SIZES,
    shared_memory=SIZES,
    disk=SIZES,
    hosts=st.lists(TEXT, max_size=2).map(tuple),
    features=st.lists(TEXT, max_size=2).map(tuple),
    cluster=st.sampled_from(["torchrun", "accelerate", "mpi"]),
    procs_per_node=st.none() | st.integers(1, 16),
    vars=VARIABLES,
    checkpoints=st.builds(
        Checkpoints, every=st.none() | SECONDS, resume=st.sampled_from(["latest", "none"]), pattern=PATTERNS
    ),
    stall=st.builds(Stall, floor=SECONDS, enabled=st.booleans()),
    ready_timeout=SECONDS,
    grace=SECONDS,
    compat=st.sampled_from([(), ("beaker",)]),
)
JSON = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT, st.lists(TEXT, max_size=2))
EXPERIMENTS = st.builds(
    Experiment,
    name=NAMES,
    why=TEXT,
    code=TEXT,
    env=st.builds(Env, uv=st.just("."), groups=st.lists(TEXT, max_size=2).map(tuple), vars=VARIABLES),
    data=st.dictionaries(
        NAMES,
        st.one_of(
            st.builds(DataSource, source=TEXT.map(lambda text: f"file:x{text}")),
            st.builds(DataSource, from_=st.just("s3://bucket/x"), build=COMMANDS),
        ),
        max_size=2,
    ),
    params=st.dictionaries(st.from_regex("[A-Za-z_][A-Za-z0-9_-]{0,5}", fullmatch=True), JSON, max_size=3),
    tasks=st.dictionaries(NAMES, TASKS, min_size=1, max_size=2),
    where=st.lists(TEXT, min_size=1, max_size=2).map(tuple),
    context=st.builds(
        Context, priority=st.sampled_from(["low", "urgent"]), preemptible=st.booleans(), account=TEXT, group=TEXT
    ),
    limit=st.builds(
        Limit, time=st.none() | SECONDS, jobs=st.none() | st.integers(1, 99), gpu_hours=st.none() | st.floats(0.1, 1e6)
    ),
    retry=st.builds(Retry, interrupted=st.integers(0, 99), failed=st.integers(0, 99)),
)


@given(EXPERIMENTS)
@settings(max_examples=60, deadline=None)
def test_an_experiment_survives_its_file(experiment: Experiment) -> None:
    assert load_config(Experiment, to_yaml(experiment), source="e.yaml").value == experiment
    assert checked(experiment) == experiment


def test_the_schema_for_editors_covers_the_whole_file() -> None:
    schema = json_schema(Experiment)
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    properties = definitions["Experiment"]["properties"]
    assert set(properties) == {
        "name",
        "why",
        "code",
        "env",
        "data",
        "params",
        "tasks",
        "where",
        "context",
        "limit",
        "retry",
        "retain",
        "sweep",
        "beaker",
        "run",
    }
    undocumented = [
        f"{name}.{key}"
        for name, each in definitions.items()
        for key, held in each["properties"].items()
        if "description" not in held
    ]
    assert undocumented == []


def test_a_secret_may_have_another_name_in_the_vault() -> None:
    use = SecretUse(name="TOKEN", from_="me_TOKEN")
    assert (use.source, SecretUse(name="TOKEN").source) == ("me_TOKEN", "TOKEN")
    env = Env(secrets=(use, SecretUse(name="B")))
    assert to_data(env) == {"secrets": [{"name": "TOKEN", "from": "me_TOKEN"}, "B"]}
    assert from_data(Env, to_data(env)) == env
    with pytest.raises(SpecError, match="consists of letters"):
        from_data(Env, {"secrets": {"name": "TOKEN", "from": "no name"}})
