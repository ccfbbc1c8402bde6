"""A launch of OLMo-core's configuration through the genuine client against the fake Beaker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.gantry.conftest import make_pushed
from windlass.compat.gantry import Recipe
from windlass.compat.olmo_core import BeakerEnvSecret, BeakerLaunchConfig, get_beaker_client
from windlass.compat.olmo_core import launch_config as module
from windlass.core.errors import WindlassError
from windlass.testing.beaker import FakeBeaker

pytestmark = pytest.mark.system


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBeaker]:
    pushed = make_pushed(tmp_path)
    monkeypatch.chdir(pushed.folder)
    with FakeBeaker(tmp_path / "fake", environ=pushed.redirect) as fake:
        for name, value in {**fake.environ, **pushed.redirect}.items():
            monkeypatch.setenv(name, value)
        yield fake


def config(*cmd: str, **fields: object) -> BeakerLaunchConfig:
    plain: dict[str, object] = {
        "name": "run",
        "cmd": list(cmd),
        "beaker_image": "me/image",
        "num_gpus": 0,
        "clusters": [],
        "result_dir": "/tmp/results",
        "pre_setup": "uv() { :; }; export GANTRY_NO_PYTHON=1",
    }
    return BeakerLaunchConfig(**{**plain, **fields})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs check out below /tmp: only root may make a folder at the root."""

    def recipe(**settings: object) -> object:
        return Recipe(**{"runtime_dir": "/tmp/stage", **settings})  # type: ignore[arg-type]

    monkeypatch.setattr(module, "Recipe", recipe)


def test_it_is_followed_to_its_end(fake: FakeBeaker, capfd: pytest.CaptureFixture[str]) -> None:
    fake.add_secret("TOKEN", "value")
    secrets = [
        BeakerEnvSecret(name="MINE", secret="TOKEN"),
        BeakerEnvSecret(name="OTHER", secret="NONE", required=False),
    ]
    launched = config("sh", "-c", 'echo "$MINE $NUM_NODES"; cat README.md', env_secrets=secrets).launch()
    shown = capfd.readouterr()
    assert launched.name == "run"
    assert "value 1\na project\n" in shown.out
    assert "has no secret `NONE`; OTHER is not set" in shown.err
    with get_beaker_client() as client:
        assert client.workload.get(launched.id).experiment.name == "run"


def test_a_failure_is_raised(fake: FakeBeaker) -> None:
    with pytest.raises(WindlassError) as failed:
        config("sh", "-c", "exit 3").launch()
    assert failed.value.code == "experiment-failed"
    assert "exit code 3" in failed.value.message


def test_without_following_it_returns_at_once(fake: FakeBeaker) -> None:
    config("sh", "-c", "exit 3").launch(follow=False)
    assert [experiment.name for experiment in fake.experiments] == ["run"]
    fake.wait("run")


def test_a_required_secret_that_is_missing_launches_nothing(fake: FakeBeaker) -> None:
    with pytest.raises(WindlassError, match="no secret `NONE`"):
        config("true", env_secrets=[BeakerEnvSecret(name="A", secret="NONE")]).launch()
    assert fake.experiments == []
