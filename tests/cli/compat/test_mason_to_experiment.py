"""`windlass mason ... --on` and `windlass mason build` at the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Windlass
from windlass.testing.beaker import FakeBeaker

LINE = ("--cluster", "ai2/x", "--pure_docker_mode", "--on", "local")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("BEAKER_TOKEN", "BEAKER_CONFIG", "WANDB_ENTITY", "WANDB_PROJECT", "WANDB_TAGS", "RUN_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_experiment_goes_to_standard_output_and_notes_beside(windlass: Windlass, home: Path) -> None:
    done = windlass("mason", *LINE, "--budget", "a/b", "--emit", "spec", "--", "python", "t.py")
    assert done.code == 0
    assert yaml.safe_load(done.out)["tasks"]["main"] == {"run": ["python", "t.py"]}
    assert "note: --budget a/b applies only to Beaker" in done.err
    assert not (home / "runs").exists()


def test_the_plan(windlass: Windlass) -> None:
    done = windlass("mason", *LINE, "--allow-dirty", "--num_nodes", "2", "--emit", "plan", "--", "python", "t.py")
    assert done.code == 0, done.err
    assert "replicas     2 x 0 GPUs" in done.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((*LINE, "--", "cat", "/weka/a/x"), 3, "--map /weka/a=FOLDER"),
        ((*LINE, "--emit", "beaker", "--", "true"), 2, "conflicting-options"),
        (("build",), 2, "needs a launch script"),
        (("build", "gone.sh"), 4, "no such script"),
    ],
)
def test_refusals(windlass: Windlass, words: tuple[str, ...], code: int, said: str) -> None:
    done = windlass("mason", *words)
    assert (done.code, said in done.err, done.out) == (code, True, "")


def test_at_a_beaker_site_secrets_are_those_of_its_workspace(
    windlass: Windlass, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "sites").mkdir(parents=True)
    (home / "sites" / "mine.yaml").write_text("name: mine\nkind: beaker\nbeaker: {workspace: lab/main}\n")
    line = ("--cluster", "lab/alpha", "--image", "me/train", "--on", "mine", "--emit", "spec", "--", "true")
    offline = windlass("mason", "--offline", *line)
    assert "secrets" not in yaml.safe_load(offline.out)["env"]
    with FakeBeaker(tmp_path / "beaker") as fake:
        fake.add_secret("me_HF_TOKEN", "hush-hush")
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        done = windlass("mason", *line)
    env = yaml.safe_load(done.out)["env"]
    assert env["secrets"] == {"name": "HF_TOKEN", "from": "me_HF_TOKEN"}
    assert env["image"] == "beaker:me/train"
