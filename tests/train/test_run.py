"""What `windlass train` says when it cannot go on, or goes on otherwise than its settings say."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest
import torch

from tests.train.tiny_recipe import tiny_recipe
from windlass.train.checkpoint.config import CheckpointConfig, LoadConfig
from windlass.train.duration import Duration
from windlass.train.recipe import Recipe
from windlass.train.resolve import Resolved
from windlass.train.run import run_recipe


def run(recipe: Recipe) -> int:
    return run_recipe(Resolved(recipe=recipe, source="test", origins={}))


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
    other = dataclasses.replace(recipe.data, seed=7)
    capsys.readouterr()
    assert run(dataclasses.replace(recipe, data=other, duration=Duration.steps(2))) == 0
    assert "the order of the checkpoint's seed, 0; that of this recipe is 7\n" in capsys.readouterr().err
    assert run(dataclasses.replace(recipe, duration=Duration.steps(3))) == 0
    assert "checkpoint's seed" not in capsys.readouterr().err


def test_a_path_that_holds_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_recipe(tmp_path, steps=1)
    load = LoadConfig(path=str(tmp_path / "typo"))
    assert run(dataclasses.replace(recipe, checkpoint=dataclasses.replace(recipe.checkpoint, load=load))) == 0
    assert f"there is no checkpoint at {tmp_path / 'typo'}" in capsys.readouterr().err


def test_an_interval_of_nothing_is_refused() -> None:
    config = CheckpointConfig(every=None, ephemeral_every=Duration.tokens(0))
    assert [finding[0] for finding in config.check()] == ["ephemeral_every"]
    assert list(CheckpointConfig().check()) == []
