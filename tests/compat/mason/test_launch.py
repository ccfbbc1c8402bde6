"""`windlass mason --on`: what the place's profile and the options of windlass make of a command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from windlass.compat.mason.account import KnownAccount
from windlass.compat.mason.launch import bring, cache_datasets, destination, prepare_at_site, site_account
from windlass.compat.mason.reading import MasonLaunch, read_command_line
from windlass.core.errors import AccessError, PreconditionError, SpecError, UsageError
from windlass.runs.home import Home

SITE = """
name: lab
scheduler: {partition: small, priority: {high: {nice: -5}}}
partitions: {small: {gpus: 4}, big: {gpus: 8}}
fs: {shared: /shared}
brought: {paths: {/weka/oe-adapt-default: /shared/adapt}, clusters: {ai2/titan: big}}
"""


@pytest.fixture
def place(home: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("WINDLASS_SECRET_HF_TOKEN", "not-a-secret")
    monkeypatch.setenv("BEAKER_USER", "jo")
    (home / "sites").mkdir(parents=True)
    (home / "sites" / "lab.yaml").write_text(SITE)
    return Home(home)


def read(line: str, home: Home, *, folder: str = "/code") -> MasonLaunch:
    account = site_account(home, asked=("MINE",))
    return read_command_line(
        ["--cluster", "ai2/jupiter", *shlex.split(line)], environ={}, account=account, folder=folder
    )


def test_the_account_is_this_machines_and_its_vault(place: Home) -> None:
    launch = read("--secret A=MINE -- true", place)
    assert launch.user == "jo"
    secrets = {use.name: use.source for use in bring(launch, destination(launch, place)).experiment.env.secrets}
    assert secrets == {"A": "MINE", "HF_TOKEN": "HF_TOKEN"}


def test_what_a_profile_says(place: Home) -> None:
    found = destination(read("--on lab --map /weka/b=/shared/b -- true", place), place)
    assert (found.name, found.kind, found.partition) == ("lab", "slurm", "")
    assert found.paths == {"/weka/oe-adapt-default": "/shared/adapt", "/weka/b": "/shared/b"}
    assert (found.gpus_per_node(()), found.gpus_per_node(("big",))) == (4, 8)
    assert found.priorities == {"normal", "high"}
    assert found.partitions(("ai2/titan",)) == ("big",)
    assert destination(read("--on lab/big -- true", place), place).partitions(("ai2/x",)) == ("big",)


def test_places_of_this_machine(place: Home) -> None:
    assert destination(read("--on docker -- true", place), place).kind == "docker"
    found = destination(read("--beaker_datasets /usr:01A /no/such:01B -- true", place), place)
    assert (found.name, found.present) == ("local", ("/usr",))


def test_options_of_windlass(place: Home) -> None:
    launch = read("--on lab --name mine --env-uv . --set tasks.main.gpus=2 --set limit.time=1h -- python t.py", place)
    experiment = bring(launch, destination(launch, place)).experiment
    assert (experiment.name, experiment.env.uv) == ("mine", ".")
    assert (experiment.tasks["main"].num_gpus, experiment.limit.time) == (2, 3600.0)


@pytest.mark.parametrize(
    ("line", "error", "code"),
    [
        ("--on lab --env-uv . --env-python /usr/bin/python3 -- true", UsageError, "conflicting-options"),
        ("--cache there -- true", UsageError, "invalid-value"),
        ("--on lab --set task.main.gpus=2 -- true", SpecError, "unknown-key"),
        ("--on lbb -- true", UsageError, "unknown-site"),
    ],
)
def test_refusals(place: Home, line: str, error: type[Exception], code: str) -> None:
    def converted() -> None:
        launch = read(line, place)
        bring(launch, destination(launch, place))

    with pytest.raises(error) as caught:
        converted()
    assert getattr(caught.value, "code", "") == code


def test_a_plan_holds_the_notes_and_starts_nothing(place: Home, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("")
    asked = "--set tasks.main.compat=beaker"
    launch = read(f"--on local --allow-dirty --budget a/b {asked} -- python t.py", place, folder=str(tmp_path))
    prepared = prepare_at_site(launch, is_dry=True, home=place)
    assert "--budget a/b applies only to Beaker and is ignored" in prepared.plan.notes
    (task,) = prepared.plan.tasks
    assert task.argv == ("python", "t.py")
    assert {**task.env, **task.site_env}["BEAKER_REPLICA_COUNT"] == "1"
    assert not list(place.runs.iterdir())


def test_a_secret_that_the_vault_lacks_is_named(place: Home, tmp_path: Path) -> None:
    launch = read("--on local --allow-dirty --secret A=MINE -- true", place, folder=str(tmp_path))
    with pytest.raises(AccessError, match="`MINE`"):
        prepare_at_site(launch, is_dry=True, home=place)


def test_a_cache_that_fails_here_ends_the_launch(place: Home, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    line = "--on local --allow-dirty --cache here -- python open_instruct/finetune.py"
    launch = read(line, place, folder=str(tmp_path))
    with pytest.raises(PreconditionError, match="nothing was submitted"):
        prepare_at_site(launch, home=place, environ={"PATH": str(tmp_path)})
    assert cache_datasets(read("--cache none -- python open_instruct/finetune.py", place), environ={}) == 0
    assert cache_datasets(read("--no_auto_dataset_cache -- python open_instruct/dpo.py", place), environ={}) == 0


def test_what_is_refused_is_refused_before_anything_is_cached(
    place: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached: list[object] = []
    monkeypatch.setattr("windlass.compat.mason.launch.cache_datasets", lambda launch, **_: cached.append(launch))
    line = "--on local --allow-dirty --cache here --secret A=MINE -- python open_instruct/finetune.py"
    with pytest.raises(AccessError, match="`MINE`"):
        prepare_at_site(read(line, place, folder=str(tmp_path)), home=place)
    assert cached == []


def test_a_cache_here_is_of_the_line_as_typed_not_of_folders_of_the_job(place: Home, tmp_path: Path) -> None:
    for name in ("python", "gsutil"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >>{tmp_path}/called-{name}\n')
        program.chmod(0o755)
    train = "python open_instruct/grpo_fast.py --model_name_or_path gs://b/m --output_dir mine"
    line = f"--cluster ai2/augusta --pure_docker_mode --auto_output_dir_path {tmp_path} -- {train}"
    account = KnownAccount(name="jo", secret_names=())
    launch = read_command_line(shlex.split(line), environ={}, account=account, folder=str(tmp_path))
    assert cache_datasets(launch, environ={"PATH": f"{tmp_path}:/bin:/usr/bin"}) == 1
    assert "cp|-r|gs://b/m/tokenizer.json|" in (tmp_path / "called-gsutil").read_text()
    called = (tmp_path / "called-python").read_text()
    assert called.startswith(f"open_instruct/grpo_fast.py|--model_name_or_path|{tmp_path}/jo/tokenizer_")
    assert called.endswith("--output_dir|mine|--hf_entity|allenai|--wandb_entity|ai2-llm|--cache_dataset_only|")
