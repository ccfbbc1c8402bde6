"""`BeakerLaunchConfig` beside what OLMo-core's own made of the same fields (recipes.json)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.compat.gantry.conftest import Pushed, make_pushed
from tests.compat.olmo_core.cases import CASES, SECRETS
from tests.compat.olmo_core.record import RECORDED
from windlass.compat.olmo_core import (
    BeakerEnvSecret,
    BeakerEnvVar,
    BeakerLaunchConfig,
    BeakerPriority,
    BeakerWekaBucket,
    GitRepoState,
    OLMoCoreBeakerImage,
    get_beaker_experiment_id,
    is_running_in_beaker,
    is_running_in_beaker_batch_job,
)
from windlass.compat.olmo_core import images as images_module
from windlass.core.errors import PreconditionError, WindlassError

KINDS: dict[str, Any] = {"env_vars": BeakerEnvVar, "env_secrets": BeakerEnvSecret, "weka_buckets": BeakerWekaBucket}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Pushed:
    return make_pushed(tmp_path_factory.mktemp("standing"))


@pytest.fixture(autouse=True)
def inside(standing: Pushed, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(standing.folder)
    for name in ("SLACK_WEBHOOK_URL", "BEAKER_JOB_ID", "BEAKER_NODE_ID", "GITHUB_REPO", "GIT_REF"):
        monkeypatch.delenv(name, raising=False)
    images_module._images.cache_clear()
    yield
    images_module._images.cache_clear()


ACCOUNT: Any = SimpleNamespace(
    workspace="lab/main", secrets=lambda: SECRETS, image_id=lambda name: f"id of {name}", user="me"
)


def config_of(fields: dict[str, Any]) -> BeakerLaunchConfig:
    made: dict[str, Any] = {
        key: [KINDS[key](**each) for each in value] if key in KINDS else value for key, value in fields.items()
    }
    return BeakerLaunchConfig(**made)


@pytest.mark.parametrize("name", CASES)
def test_the_recipe_is_olmo_cores(name: str) -> None:
    fields, settings = CASES[name]
    recorded = json.loads(RECORDED.read_text())[name]
    if "refused" in recorded:
        with pytest.raises(WindlassError):
            config_of(fields).build_recipe(ACCOUNT, **settings)
        return
    recipe, watching = config_of(fields).build_recipe(ACCOUNT, **settings)
    told = dataclasses.asdict(dataclasses.replace(recipe, git_repo=None))
    ours = json.loads(json.dumps({key: value for key, value in told.items() if value}))
    theirs = recorded["recipe"]
    assert ours.pop("default_python_version")
    theirs.pop("default_python_version")
    assert ours == theirs
    assert watching == recorded["watching"]


def test_every_case_is_recorded() -> None:
    assert list(json.loads(RECORDED.read_text())) == list(CASES)


def test_hosts_take_the_place_of_clusters() -> None:
    recipe, _ = config_of({**CASES["placement"][0], "hostnames": ["h"]}).build_recipe(ACCOUNT)
    assert (recipe.hostnames, recipe.clusters, recipe.tags) == (["h"], None, None)


def test_a_dry_run_prints_the_spec_and_asks_nobody(capsys: pytest.CaptureFixture[str], standing: Pushed) -> None:
    request = config_of(CASES["two nodes"][0]).dry_run()
    shown = capsys.readouterr()
    assert shown.out.startswith("# run\nversion: v2\n")
    assert "note: the image someone/image is looked up only at submission" in shown.err
    task = request.spec["tasks"][0]
    assert task["replicas"] == 2
    assert task["arguments"] == ["python", "src/train.py", "--a", "b c"]
    values = {each["name"]: each.get("value") for each in task["envVars"]}
    assert (values["GIT_REF"], values["OMP_NUM_THREADS"]) == (standing.git("rev-parse", "HEAD"), "8")


def test_overrides_and_dicts() -> None:
    config = config_of(CASES["variables"][0])
    merged = config.merge(["num_nodes=2", "--clusters=[a, b]", "env_vars.0.value=3", "min_runtime=8h"])
    assert (merged.num_nodes, merged.clusters, merged.min_runtime) == (2, ["a", "b"], "8h")
    assert merged.env_vars[0] == BeakerEnvVar(name="A", value="3")
    assert config.num_nodes == 1
    assert BeakerLaunchConfig.from_dict(merged.as_dict()) == merged
    assert config.merge(["launch.num_gpus=1", "other.x=2"], prefix="launch").num_gpus == 1
    assert config.merge(["x=1", "num_gpus=4"], strict=False).num_gpus == 4
    assert config.replace(name="other").name == "other"
    with pytest.raises(WindlassError, match="num_node") as refused:
        config.merge(["num_node=2"])
    assert refused.value.hint == "did you mean `num_nodes`?"


def test_in_a_job_without_a_repository_the_launch_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WindlassError):
        GitRepoState.from_env()
    monkeypatch.setenv("GITHUB_REPO", "lab/project")
    monkeypatch.setenv("GIT_REF", "0" * 40)
    assert GitRepoState.from_env().repo_url == "https://github.com/lab/project"


def test_every_rank_of_a_training_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of({**CASES["plain"][0], "env_secrets": [{"name": "A", "secret": "missing"}]})
    for name in ("BEAKER_JOB_ID", "BEAKER_NODE_ID"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("BEAKER_JOB_KIND", "batch")
    monkeypatch.setenv("BEAKER_EXPERIMENT_ID", "01X")
    assert is_running_in_beaker()
    assert is_running_in_beaker_batch_job()
    assert get_beaker_experiment_id() == "01X"
    assert config.build_recipe(ACCOUNT)[0].env_secrets == [("A", "missing")]


def test_images_are_those_of_the_olmo_core_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "olmo_core" / "launch" / "beaker.py"
    source.parent.mkdir(parents=True)
    (tmp_path / "olmo_core" / "__init__.py").write_text("raise RuntimeError('nobody imports this')\n")
    source.write_text(
        '_TORCH = "2.13.0".replace(".", "")\n'
        "class OLMoCoreBeakerImage:\n"
        '    stable = f"someone/torch{_TORCH}-x"\n    """Words."""\n'
        '    other = "somebody/other"\n    computed = call()\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert OLMoCoreBeakerImage.stable == "someone/torch2130-x"
    assert list(OLMoCoreBeakerImage) == ["someone/torch2130-x", "somebody/other"]
    assert BeakerLaunchConfig(name="a", cmd=["x"]).beaker_image == "someone/torch2130-x"
    with pytest.raises(PreconditionError) as refused:
        _ = OLMoCoreBeakerImage.stabel
    assert refused.value.hint == "did you mean `stable`?"
    account: Any = SimpleNamespace(image_id={"somebody/image": "the id"}.get, secrets=lambda: ())
    assert config_of(CASES["image without owner"][0]).build_recipe(account)[0].beaker_image == "the id"


def test_no_image_without_olmo_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "find_spec", lambda name: None)
    with pytest.raises(PreconditionError, match="has no image `stable`"):
        BeakerLaunchConfig(name="a", cmd=["x"])


def test_priorities_are_texts() -> None:
    assert f"{BeakerPriority.urgent}" == "urgent"


def test_what_is_not_honoured_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    plain = {"name": "x", "cmd": ["train.py"], "beaker_image": "i"}
    config_of({**plain, "num_execution_units": 2}).dry_run()
    assert "note: num_execution_units: windlass does not choose hosts by location" in capfd.readouterr().err
    config_of(plain).dry_run()
    assert "num_execution_units" not in capfd.readouterr().err
