"""What `windlass train` says when it cannot go on, or goes on otherwise than its settings say."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.narrow import data_of
from tests.train.tiny import QUIET, PointLoader, point_module
from tests.train.tiny_recipe import tiny_recipe
from windlass.core.errors import Problem, SpecError
from windlass.train.build import build_trainer, building
from windlass.train.callbacks.console import Compiling
from windlass.train.checkpoint.config import CheckpointerConfig, LoadConfig
from windlass.train.data.config import SourceConfig
from windlass.train.duration import Duration
from windlass.train.optim.config import AdamWConfig
from windlass.train.parallel.world import World
from windlass.train.recipe import Recipe
from windlass.train.resolve import ResolvedRecipe
from windlass.train.run import run_recipe
from windlass.train.trainer import Trainer


def run(recipe: Recipe) -> int:
    return run_recipe(ResolvedRecipe(recipe=recipe, source="test", origins={}))


def test_too_little_memory_is_said_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), RuntimeError(_CPU)):

        def raises(*args: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("windlass.train.build.build_trainer", raises)
        assert run(tiny_recipe(tmp_path)) == 8
        said = capsys.readouterr().err
        assert said.startswith("error: out of memory: ")
        assert "data.microbatch_tokens" in said


_CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_the_first_step_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def builds_for_long(*args: object) -> None:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal was not heard")

    before = signal.getsignal(number)
    monkeypatch.setattr("windlass.train.build.build_trainer", builds_for_long)
    assert run(tiny_recipe(tmp_path)) == 75
    assert "stopped before the first step" in capsys.readouterr().err
    assert signal.getsignal(number) == before


def test_another_seed_of_the_data_has_no_effect_on_a_run_that_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny_recipe(tmp_path, steps=1)
    assert run(recipe) == 0
    other = dataclasses.replace(data_of(recipe), seed=7)
    capsys.readouterr()
    assert run(dataclasses.replace(recipe, data=other, duration=Duration.steps(2))) == 0
    assert "the data order of the checkpoint's seed 0, not of this recipe's seed 7\n" in capsys.readouterr().err
    assert run(dataclasses.replace(recipe, duration=Duration.steps(3))) == 0
    assert "checkpoint's seed" not in capsys.readouterr().err


def test_a_path_that_holds_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_recipe(tmp_path, steps=1)
    load = LoadConfig(path=str(tmp_path / "typo"))
    assert run(dataclasses.replace(recipe, checkpoint=dataclasses.replace(recipe.checkpoint, load=load))) == 0
    assert f"no checkpoint at {tmp_path / 'typo'}" in capsys.readouterr().err


def test_an_interval_of_nothing_is_refused() -> None:
    config = CheckpointerConfig(every=None, ephemeral_every=Duration.tokens(0))
    assert [finding[0] for finding in config.check()] == ["ephemeral_every"]
    assert list(CheckpointerConfig().check()) == []


def test_a_refused_run_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_recipe(tmp_path, steps=1)
    folder = tmp_path / "some" / "where"
    gone = dataclasses.replace(data_of(recipe), sources=(SourceConfig(path=(str(tmp_path / "gone"),)),))
    refused = dataclasses.replace(recipe, data=gone, checkpoint=CheckpointerConfig(folder=str(folder)))
    assert run(refused) == 3
    assert "no data" in capsys.readouterr().err
    assert not (tmp_path / "some").exists()
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "mine.txt").write_text("kept")
    assert run(refused) == 3
    assert [path.name for path in tmp_path.joinpath("some").iterdir()] == ["mine.txt"]


def test_what_is_nearly_surely_a_mistake_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_recipe(tmp_path, steps=1)
    assert run(dataclasses.replace(recipe, optim=AdamWConfig(lr=5.0), stop=Duration.steps(9))) == 0
    said = capsys.readouterr().err
    assert "warning: optim.lr=5 is larger than any rate that trains" in said
    assert "warning: stop=9 steps is after the end of the run at 1 steps" in said
    assert run(dataclasses.replace(recipe, duration=Duration.steps(2))) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.system
@pytest.mark.parametrize("is_own", [True, False])
def test_an_error_leaves_no_process_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_own: bool
) -> None:
    recipe = tiny_recipe(tmp_path, steps=1)
    gone = dataclasses.replace(data_of(recipe), sources=(SourceConfig(path=(str(tmp_path / "gone"),)),))
    refused = dataclasses.replace(recipe, data=gone)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(port)), ("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    # A second process that joins and does nothing else, so that the first one has a group to leave.
    code = "import torch.distributed as d; d.init_process_group('gloo'); print('in', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "RANK": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr("windlass.train.build._built", refuse)
    try:
        if is_own:
            assert run(refused) == 3
        else:
            with pytest.raises(SpecError), building(refused):
                raise AssertionError("it was built")
        assert "refused here" in capsys.readouterr().err or not is_own
        assert not torch.distributed.is_initialized()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        other.communicate(b"\n", timeout=60)


def refuse(*args: object) -> None:
    raise SpecError([Problem("refused here", "invalid-value")])


def test_a_compiled_run_says_that_it_compiles() -> None:
    stream = io.StringIO()
    times = iter((10.0, 85.0))
    trainer = Trainer(
        point_module(),
        PointLoader(),
        duration=Duration.steps(3),
        callbacks={**QUIET, "compiling": Compiling(stream=stream, now=lambda: next(times))},
    )
    trainer.fit()
    assert stream.getvalue().splitlines() == [
        "compiling the model; the first step can take minutes (disable it with `parallel.compile=false`)",
        "compiled: the first step took 1m15s",
    ]


def test_a_recipe_that_compiles_has_the_lines(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, steps=1)
    for compiles in (True, False):
        plan = dataclasses.replace(recipe.parallel, compile=compiles)
        made = build_trainer(dataclasses.replace(recipe, parallel=plan), World(device=torch.device("cpu")))
        assert ("compiling" in made.callbacks) is compiles
