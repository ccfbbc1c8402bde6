"""The spec that gantry's own Python API makes, and ours, for the same settings, through the same fake Beaker."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compat.gantry.conftest import Pushed, make_pushed
from windlass.backends.beaker.service import BeakerService
from windlass.compat.gantry import Recipe
from windlass.compat.gantry.checkout import Checkout
from windlass.compat.gantry.online import OnlineAccount
from windlass.compat.gantry.options import SECTIONS, names
from windlass.compat.gantry.request import prepare
from windlass.core.errors import WindlassError
from windlass.testing.beaker import FakeBeaker

pytestmark = pytest.mark.system

TORCHRUN = {"gpus": 8, "replicas": 4, "torchrun": True}

COMBINATIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "words": {"description": "why", "task_name": "train", "priority": "high", "budget": "lab/budget"},
    "resources": {"cpus": 2.5, "gpus": 1, "memory": "10GiB", "shared_memory": "1GiB"},
    "torchrun on one node": {"gpus": 8, "torchrun": True},
    "torchrun on four nodes": TORCHRUN,
    "torchrun without leader": {**TORCHRUN, "leader_selection": False},
    "torchrun without host network": {**TORCHRUN, "host_networking": False},
    "torchrun that lets others live": {**TORCHRUN, "propagate_failure": False},
    "torchrun with its own start": {**TORCHRUN, "synchronized_start_timeout": "90m", "propagate_preemption": False},
    "replicas alone": {"replicas": 3},
    "one replica": {"replicas": 1, "leader_selection": True},
    "replicas with leader": {"replicas": 2, "leader_selection": True},
    "nccl": {**TORCHRUN, "skip_nccl_setup": True},
    "cluster": {"clusters": ["lab/jupiter"]},
    "clusters by pattern": {"clusters": ["lab/j*", "lab/titan", "lab/*-old"]},
    "own organization": {"clusters": ["alpha", "be*"]},
    "tags": {"tags": ["gpu"]},
    "GPU type": {"gpu_types": ["h100", "b200"]},
    "GPU type and name": {"gpu_types": ["nvidia"], "clusters": ["j*"]},
    "group": {"group_names": ["me/known", "known"]},
    "weka": {"weka": ["bucket:/weka/bucket"]},
    "weka and pattern": {"weka": [("bucket", "/w")], "clusters": ["lab/*"]},
    "interconnect": {"interconnect": "ib"},
    "hosts": {"hostnames": ["a.example.org", "b.example.org"]},
    "hosts and weka": {"hostnames": ["a.example.org"], "weka": ["bucket:/weka"]},
    "datasets": {"datasets": ["me/data:/data", "me/data:part/one:/one"]},
    "mounts": {"mounts": ["/net/shared:/shared", ("/a", "/b")], "dataset_secrets": ["TOKEN:/secret/token"]},
    "variables": {"env_vars": ["A=1", "B=two=three", ("C", ""), "RESULTS_DIR=/other"]},
    "secrets": {"env_secrets": ["TOKEN", "OTHER=TOKEN", ("THIRD", "TOKEN")]},
    "credentials": {"aws_config_secret": "TOKEN", "google_credentials_secret": "TOKEN"},
    "own token": {"env_secrets": ["GITHUB_TOKEN=TOKEN"]},
    "times": {"task_timeout": "1h30m", "min_runtime": "90", "auto_resume": False},
    "old preemption": {"preemptible": True},
    "retries": {"retries": 3},
    "no retries": {"retries": 0},
    "results": {"results": "/elsewhere", "runtime_dir": "/stage"},
    "docker": {"docker_image": "python:3.12"},
    "beaker image": {"beaker_image": "me/image"},
    "no python": {"no_python": True, "install": "pip install x", "pre_setup": "a", "post_setup": "b.sh"},
    "system python": {"system_python": True, "default_python_version": "3.10"},
    "extras": {"uv_extras": ["one", "two"], "uv_torch_backend": "cpu"},
    "no extras": {"uv_all_extras": False, "uv_cache_dir": "/cache"},
    "venv": {"uv_venv": "/venv"},
    "conda": {"conda_env": "base"},
    "conda file": {"python_manager": "conda", "conda_file": "environment.yml"},
    "bash": {"exec_method": "bash"},
    "several at once": {
        **TORCHRUN,
        "clusters": ["lab/jupiter", "lab/titan"],
        "env_vars": ["A=1"],
        "env_secrets": ["TOKEN"],
        "datasets": ["me/data:/data"],
        "retries": 2,
        "task_timeout": "2 hours",
        "shared_memory": "10GiB",
    },
}

FAULTS: dict[str, dict[str, Any]] = {
    "torchrun without GPUs": {"torchrun": True},
    "no such cluster": {"clusters": ["lab/atlantis"]},
    "no cluster with the tag": {"tags": ["gold"]},
    "host and cluster": {"hostnames": ["a"], "clusters": ["lab/jupiter"]},
    "two images": {"docker_image": "a", "beaker_image": "me/image"},
    "no such image": {"beaker_image": "me/none"},
    "the same variable": {"env_vars": ["A=1", "A=2"]},
    "variable and secret": {"env_vars": ["A=1"], "env_secrets": ["A=TOKEN"]},
    "no value": {"env_vars": ["WINDLASS_TEST_NOT_SET"]},
    "no secret": {"env_secrets": ["WINDLASS_TEST_NOT_SET"]},
    "no dataset": {"datasets": ["me/none:/data"]},
    "malformed dataset": {"datasets": ["me/data"]},
    "malformed mount": {"mounts": ["/only"]},
    "python and no python": {"no_python": True, "uv_extras": ["a"]},
    "both managers": {"uv_venv": "/v", "conda_env": "b"},
    "no duration": {"task_timeout": "soon"},
    "no replicas": {"replicas": 0},
    "no such GPU": {"gpu_types": ["abacus"]},
    "no such group": {"group_names": ["somebody/none"]},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Pushed:
    made = make_pushed(tmp_path_factory.mktemp("genuine"))
    made.commit(pyproject__toml='[project]\nname = "project"\nversion = "1"\n')
    made.push()
    return made


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeBeaker]:
    with FakeBeaker(tmp_path_factory.mktemp("fake")) as fake:
        fake.add_secret("TOKEN", "secret value")
        fake.add_secret("GITHUB_TOKEN", "another")
        data = tmp_path_factory.mktemp("data")
        (data / "part").mkdir()
        (data / "part" / "one").write_text("1")
        fake.add_dataset("data", data)
        fake.add_cluster("lab/jupiter", aliases=("jupiter-old", "first-old"))
        fake.add_cluster("lab/titan", aliases=("titan-old",))
        fake.add_cluster("lab/storage", tags=("storage:weka", "interconnect:ib"))
        fake._world.add_group("known", fake._world.workspace(fake.workspace), description="", experiment_ids=())
        yield fake


@pytest.fixture(autouse=True)
def inside(fake: FakeBeaker, project: Pushed, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> None:
    monkeypatch.chdir(project.folder)
    for name, value in fake.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def genuine_gantry() -> Any:
    """Gantry's API without the network: the remote is asked by nobody, and no index for a newer version."""
    import gantry.api

    return gantry.api


def genuine_spec(gantry: Any, project: Pushed, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    from beaker import Beaker
    from gantry import git_utils

    git_utils._resolve_repo.cache_clear()
    repository = gantry.GitRepoState(
        repo="lab/project",
        repo_url="https://github.com/lab/project",
        ref=project.git("rev-parse", "HEAD"),
        branch="main",
    )
    repository.__dict__["is_public"] = False
    recipe = gantry.Recipe(["train.py", "--a", "b c"], name="run", git_repo=repository, yes=True, **settings)
    recipe.save_spec = out
    try:
        with Beaker.from_env(check_for_upgrades=False) as client:
            recipe.dry_run(client=client)
    finally:
        git_utils._resolve_repo().close()  # else its git processes stay
    spec = yaml.safe_load(out.read_text())
    assert isinstance(spec, dict)
    return spec


def our_spec(project: Pushed, settings: dict[str, Any]) -> dict[str, Any]:
    here = Checkout(
        repo="lab/project",
        url="https://github.com/lab/project",
        ref=project.git("rev-parse", "HEAD"),
        branch="main",
        files=frozenset({"README.md", "pyproject.toml"}),
        is_public=False,
    )
    service = BeakerService()
    try:
        recipe = Recipe(["train.py", "--a", "b c"], name="run", git_repo=here, **settings)
        return dict(prepare(recipe, account=OnlineAccount(service)).spec)
    finally:
        service.close()


def comparable(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec without what docs/gantry.md lists as different: the script, and what gantry draws or calls itself."""
    task = dict(spec["tasks"][0])
    task.pop("command")
    task["datasets"] = [each for each in task.get("datasets") or [] if each["mountPath"] != "/gantry"]
    drawn = ("GANTRY_VERSION", "GANTRY_RDZV_ID", "GANTRY_RDZV_PORT")
    task["envVars"] = [
        {**each, "value": "drawn" if each["name"] in drawn else each.get("value")} for each in task["envVars"]
    ]
    return {**spec, "tasks": [task]}


@pytest.mark.parametrize("settings", COMBINATIONS.values(), ids=COMBINATIONS.keys())
def test_our_spec_is_gantrys(
    settings: dict[str, Any], genuine_gantry: Any, project: Pushed, fake: FakeBeaker, tmp_path: Path
) -> None:
    theirs = genuine_spec(genuine_gantry, project, tmp_path / "spec.yaml", settings)
    assert comparable(our_spec(project, settings)) == comparable(theirs)


@pytest.mark.parametrize("settings", FAULTS.values(), ids=FAULTS.keys())
def test_what_gantry_refuses_we_refuse(
    settings: dict[str, Any], genuine_gantry: Any, project: Pushed, fake: FakeBeaker, tmp_path: Path
) -> None:
    with pytest.raises(Exception):  # noqa: B017 - gantry raises errors of many kinds
        genuine_spec(genuine_gantry, project, tmp_path / "spec.yaml", settings)
    with pytest.raises(WindlassError):
        our_spec(project, settings)


def test_every_option_of_gantry_is_known(genuine_gantry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.excepthook", sys.excepthook)  # gantry's command line puts its own in place
    command = importlib.import_module("gantry.commands.run").run
    ours = {name: (option, is_on) for name, option, is_on in names()}
    theirs: set[str] = set()
    for option in [each for each in command.params if each.param_type_name == "option" and each.name != "help"]:
        theirs |= {*option.opts, *option.secondary_opts}
        for name in option.opts:
            known, _ = ours[name]
            assert (known.kind == "many") == option.multiple, name
            assert (known.kind in ("flag", "switch")) == option.is_flag, name
            assert list(known.choices) == list(getattr(option.type, "choices", [])), name
        assert all(not ours[name][1] for name in option.secondary_opts)
    own = {name for option in SECTIONS["windlass"] for name in option.names}
    assert set(ours) - theirs == own
    assert len(theirs) >= 90
