"""`python -m windlass.compat.olmo_core`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.gantry.conftest import make_pushed
from windlass.compat.olmo_core import BeakerEnvVar, BeakerWekaBucket
from windlass.compat.olmo_core.command_line import main, read_command_line
from windlass.core.errors import WindlassError


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(make_pushed(tmp_path).folder)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "olmo_core"]:
        del sys.modules[name]


def test_options_are_olmo_cores() -> None:
    words = "--name n --gpus 8 --nodes 2 --cluster a b --env A=1 B=2=3 --weka w --beaker-image i --no-torchrun --debug"
    config, is_dry = read_command_line([*words.split(), "--preemptible", "--", "train.py", "--x"])
    assert not is_dry
    assert config.name.startswith("n-")
    assert (config.cmd, config.num_gpus, config.num_nodes) == (["train.py", "--x"], 8, 2)
    assert (config.clusters, config.torchrun, config.priority, config.preemptible) == (["a", "b"], False, "low", True)
    assert config.env_vars[2:] == [BeakerEnvVar(name="A", value="1"), BeakerEnvVar(name="B", value="2=3")]
    assert config.weka_buckets == [BeakerWekaBucket(bucket="w", mount="/weka/w")]


def test_presets_are_those_that_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "olmo_core" / "launch"
    folder.mkdir(parents=True)
    (folder / "beaker_presets.py").write_text(
        "from types import SimpleNamespace as S\n"
        "PRESETS = {'p': S(env_vars=[('A', '1'), ('B', '2')], env_secrets=[], beaker_image='preset/image',"
        " pre_setup=None, post_setup='build')}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["--preset", "p", "--env", "B=3", "--post-setup", "more", "--", "x"]
    config, _ = read_command_line(words)
    assert {each.name: each.value for each in config.env_vars} == {"A": "1", "B": "3"}
    assert (config.beaker_image, config.post_setup, config.pre_setup) == ("preset/image", "build && more", None)
    with pytest.raises(WindlassError, match="no such preset"):
        read_command_line(["--preset", "q", "--", "x"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "1"], "no command after `--`"),
        (["--gpu", "1", "--", "x"], "unrecognized arguments: --gpu 1"),
        (["--env", "A", "--beaker-image", "i", "--", "x"], "`--env A` is not NAME=VALUE"),
        (["--gpus", "many", "--", "x"], "invalid int value"),
    ],
)
def test_bad_words_are_named(words: list[str], message: str) -> None:
    with pytest.raises(WindlassError) as refused:
        read_command_line(words)
    assert message in refused.value.message


def test_a_dry_run_shows_the_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--beaker-image", "i", "--gpus", "2", "--dry-run", "--", "train.py"]) == 0
    assert "gpuCount: 2" in capsys.readouterr().out
    assert main(["--gpus"]) == 2
    assert "hint:" in capsys.readouterr().err
