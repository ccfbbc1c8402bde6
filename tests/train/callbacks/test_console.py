"""Lines on the terminal, whole."""

from __future__ import annotations

import io

import pytest

from tests.train.callbacks.conftest import Make
from windlass.train.callbacks.console import Console, format_metric, format_time
from windlass.train.duration import Duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def lines(console: Console, stream: io.StringIO, make: Make) -> list[str]:
    trainer = make({"console": console}, steps=40)
    trainer.step, trainer.tokens = 10, 500
    console.on_start()
    for step in (11, 12, 20, 21):
        trainer.step = step
        metrics = {"optim/lr": 3e-4, "train/loss": 3.21456, "speed/tokens_per_s": 12_345.0, "memory/peak_gib": 1.0}
        console.on_metrics(step, {**metrics, **({"eval/dev/loss": 2.5} if step == 21 else {})})
    return stream.getvalue().splitlines()


def test_a_line_an_interval_and_one_for_an_evaluation(make: Make) -> None:
    stream = io.StringIO()
    assert lines(Console(every=10, stream=stream, now=Clock()), stream, make) == [
        "step 10/40  training on 1 process, cpu",
        "step 11/40  loss 3.215  lr 3.00e-04  tok/s 12.3k  29s left",
        "step 20/40  loss 3.215  lr 3.00e-04  tok/s 12.3k  4s left",
        "step 21/40  loss 3.215  lr 3.00e-04  tok/s 12.3k  eval/dev/loss 2.500  5s left",
    ]


def test_the_last_step_has_a_line_too(make: Make) -> None:
    stream = io.StringIO()
    console = Console(every=10, metrics=("train/loss",), stream=stream, now=Clock())
    trainer = make({"console": console}, steps=14)
    console.on_start()
    for step in (10, 12, 13):
        trainer.step = step
        console.on_metrics(step, {"train/loss": 2.0})
    console.on_end()
    console.on_end()
    assert [line.split("  ")[0] for line in stream.getvalue().splitlines()] == ["step 0/14", "step 10/14", "step 13/14"]


def test_a_terminal_gets_whole_fields_that_fit(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", "40")
    found = lines(Console(every=100, stream=stream, now=Clock()), stream, make)
    assert found[1] == "step 11/40  loss 3.215  lr 3.00e-04"
    monkeypatch.setenv("COLUMNS", "3")
    stream = Terminal()
    assert lines(Console(every=100, stream=stream, now=Clock()), stream, make)[1] == "step 11/40"


def test_a_run_in_tokens_counts_what_is_left_by_tokens(make: Make) -> None:
    stream = io.StringIO()
    console = Console(every=1, metrics=(), stream=stream, now=Clock())
    trainer = make({"console": console}, duration=Duration.tokens(1000))
    console.on_start()
    trainer.step, trainer.tokens = 5, 250
    console.on_metrics(5, {})
    assert stream.getvalue().splitlines() == ["step 0  training on 1 process, cpu", "step 5  3s left"]


def test_a_stop_is_the_end_that_is_shown(make: Make) -> None:
    stream = io.StringIO()
    console = Console(every=1, metrics=(), stream=stream, now=Clock())
    trainer = make({"console": console}, steps=100, stop=Duration.steps(10))
    console.on_start()
    trainer.step = 5
    console.on_metrics(5, {})
    assert stream.getvalue().splitlines()[1] == "step 5/10  1s left"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("train/loss", 10.0, "loss 10.000"),
        ("train/loss", float("nan"), "loss nan"),
        ("train/z_loss", 1.5e-5, "z_loss 1.50e-05"),
        ("speed/mfu", 0.3817, "mfu 38.2%"),
        ("speed/tokens_per_s", 1_234_567.0, "tok/s 1.2M"),
        ("speed/tokens_per_s", 951.04, "tok/s 951.0"),
        ("eval/dev/loss", 2.5, "eval/dev/loss 2.500"),
        ("optim/skipped", 0.0, "skipped 0.000"),
        ("other", 1.0, "other 1.000"),
    ],
)
def test_a_metric_in_few_characters(name: str, value: float, text: str) -> None:
    assert format_metric(name, value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (250, "4m10s"), (11_100, "3h05m"), (183_600, "2d03h")]
)
def test_times(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
