"""The worker's loop over a channel of lists: what trials may do, and what the executor is told of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.tune.executors.channel import ChannelClosed, Message, to_message
from windlass.tune.executors.protocol import Go, Halt, StartAttempt, Work
from windlass.tune.executors.worker import Worker
from windlass.tune.trainable import Trainable
from windlass.tune.trainable.session import get_context, report
from windlass.tune.trial import ONE_CPU


class Script:
    """A channel that says what a test has written down to those who wait, and then closes."""

    def __init__(self, *messages: Any) -> None:
        self.messages = [to_message(message) for message in messages]
        self.said: list[Message] = []

    def send(self, message: Message) -> None:
        self.said.append(message)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        if timeout_s == 0:
            return None
        if not self.messages:
            raise ChannelClosed("the script is over")
        return self.messages.pop(0)

    def ends(self) -> list[tuple[str, str, str]]:
        return [(m["trial"], m["how"], m["kind"]) for m in self.said if m["type"] == "ended"]

    def reports(self) -> list[dict[str, Any]]:
        return [m["metrics"] for m in self.said if m["type"] == "reported"]


def start(trial: str = "a", attempt: int = 1, *, credit: int = 99, **fields: Any) -> StartAttempt:
    config = fields.pop("config", {})
    return StartAttempt(trial=trial, attempt=attempt, config=config, resources=ONE_CPU, credit=credit, **fields)


def run(trainable: Any, folder: Path, *messages: Any, **work: Any) -> Script:
    script = Script(*messages)
    made = Work(trainable=trainable, name="sweep", folder=str(folder), storage=str(folder / "checkpoints"), **work)
    Worker(script, made).run()
    return script


def test_a_halt_unwinds_a_functions_own_blocks(tmp_path: Path) -> None:
    log: list[str] = []

    def trial(config: dict[str, Any]) -> None:
        try:
            for step in range(9):
                report({"step": step})
                log.append(f"after {step}")
        except Exception:  # noqa: BLE001
            log.append("swallowed")
        finally:
            log.append("cleaned")

    told = run(trial, tmp_path, start(credit=1), Go(trial="a", attempt=1), Halt(trial="a", attempt=1))
    assert log == ["after 0", "cleaned"]
    assert told.ends() == [("a", "halted", "")]


def test_code_that_swallows_a_halt_gets_it_again(tmp_path: Path) -> None:
    seen: list[str] = []

    def trial(config: dict[str, Any]) -> None:
        for _ in range(3):
            try:
                report({"step": 1})
            except BaseException as error:  # noqa: BLE001
                seen.append(type(error).__name__)

    told = run(trial, tmp_path, start(credit=1), Halt(trial="a", attempt=1))
    assert seen == ["TrialHalted"] * 3
    assert told.ends() == [("a", "halted", "")]
    assert len(told.reports()) == 1


def test_done_in_a_report_ends_a_function(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        report({"step": 1, "done": True})
        raise AssertionError("went on")

    assert run(trial, tmp_path, start(credit=1)).ends() == [("a", "done", "")]


@pytest.mark.parametrize(("code", "how"), [(None, "done"), (0, "done"), (3, "failed"), ("words", "failed")])
def test_sys_exit_ends_a_trial_and_not_its_worker(tmp_path: Path, code: Any, how: str) -> None:
    def trial(config: dict[str, Any]) -> None:
        sys.exit(code)

    told = run(trial, tmp_path, start("a"), start("b"))
    kind = "SystemExit" if how == "failed" else ""
    assert told.ends() == [("a", how, kind), ("b", how, kind)]


def test_a_trial_may_count_its_own_iterations_forward(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        for epoch in (5, 10, 10, 3):
            report({"training_iteration": epoch})

    told = run(trial, tmp_path, start(iteration=2))
    assert [metrics["training_iteration"] for metrics in told.reports()] == [5, 10, 11, 12]


def test_errors_show_the_trials_own_lines_first(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        raise ValueError("too big")

    message = run(trial, tmp_path, start()).said[-1]
    first, place, line, *_ = message["error"].splitlines()
    assert first == "Traceback (most recent call last):"
    assert "test_worker.py" in place
    assert line.strip() == 'raise ValueError("too big")'
    assert message["kind"] == "ValueError"


def test_the_context_says_who_the_trial_is(tmp_path: Path) -> None:
    seen: list[Any] = []

    def trial(config: dict[str, Any]) -> None:
        context = get_context()
        seen.extend([context.get_trial_id(), context.get_experiment_name(), context.get_trial_resources()])
        assert not (tmp_path / "trials").exists()
        seen.append(context.get_trial_dir())

    run(trial, tmp_path, start("00007"))
    assert seen == ["00007", "sweep", ONE_CPU, str(tmp_path / "trials" / "00007")]
    assert (tmp_path / "trials" / "00007").is_dir()


class Recorder(Trainable):
    """Writes down what is done to it."""

    log: list[str]

    def setup(self, config: dict[str, Any]) -> None:
        self.log.append(f"setup {config['n']}")

    def step(self) -> dict[str, Any]:
        if self.config.get("fails"):
            raise ValueError("no")
        return {"done": self.iteration + 1 >= 2, "should_checkpoint": self.iteration == 0}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.log.append(f"load {checkpoint}")

    def cleanup(self) -> None:
        self.log.append("cleanup")

    def log_result(self, result: dict[str, Any]) -> None:
        self.log.append(f"result {result['training_iteration']}")


def recorder(**members: Any) -> type[Recorder]:
    return type("Made", (Recorder,), {"log": [], **members})


def test_each_trial_is_a_new_object_that_is_cleaned_up(tmp_path: Path) -> None:
    cls = recorder()
    told = run(cls, tmp_path, start("a", config={"n": 1}), start("b", config={"n": 2}))
    own = ["result 1", "result 2", "cleanup"]
    assert cls.log == ["setup 1", *own, "setup 2", *own]
    assert [bool(m["saved"]) for m in told.said if m["type"] == "reported"] == [True, False] * 2
    assert "should_checkpoint" not in told.reports()[0]


def test_an_object_that_can_become_another_trial_does(tmp_path: Path) -> None:
    def reset_config(self: Recorder, new_config: dict[str, Any]) -> bool:
        self.log.append(f"reset {new_config['n']}")
        return bool(new_config["n"] != 3)

    cls = recorder(reset_config=reset_config)
    starts = [start(name, config={"n": n}) for name, n in (("a", 1), ("b", 2), ("c", 3))]
    told = run(cls, tmp_path, *starts, reuse="always")
    words = [line for line in cls.log if not line.startswith("result")]
    assert words == ["setup 1", "reset 2", "reset 3", "cleanup", "setup 3", "cleanup"]
    assert [metrics["training_iteration"] for metrics in told.reports()] == [1, 2] * 3


def test_an_object_that_failed_is_not_used_again(tmp_path: Path) -> None:
    cls = recorder(reset_config=lambda self, new_config: True)
    run(cls, tmp_path, start("a", config={"n": 1, "fails": True}), start("b", config={"n": 2}), reuse="always")
    assert cls.log == ["setup 1", "cleanup", "setup 2", "result 1", "result 2", "cleanup"]


@pytest.mark.parametrize("reuse", ["auto", "never"])
def test_objects_are_used_again_only_where_that_is_asked_for(tmp_path: Path, reuse: str) -> None:
    cls = recorder(reset_config=lambda self, new_config: True)
    run(cls, tmp_path, start("a", config={"n": 1}), start("b", config={"n": 2}), reuse=reuse)
    assert cls.log.count("cleanup") == 2
    assert "setup 2" in cls.log


def test_orders_of_an_older_attempt_are_dropped(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        for step in range(3):
            report({"step": step})

    stale = [Halt(trial="a", attempt=1), Go(trial="a", attempt=1, credit=9), Halt(trial="b", attempt=2)]
    told = run(trial, tmp_path, start(attempt=2, credit=1), *stale, Go(trial="a", attempt=2, credit=9))
    assert told.ends() == [("a", "done", "")]


def test_a_closed_channel_ends_the_trial_and_the_worker(tmp_path: Path) -> None:
    log: list[str] = []

    def trial(config: dict[str, Any]) -> None:
        try:
            report({"a": 1})
        finally:
            log.append("cleaned")

    told = run(trial, tmp_path, start(credit=1))
    assert log == ["cleaned"]
    assert told.ends() == []


def test_what_a_function_yields_or_returns_is_reported(tmp_path: Path) -> None:
    def yields(config: dict[str, Any]) -> Iterator[Any]:
        yield {"loss": 2.0}
        yield 1.0

    def said(trainable: Any) -> list[dict[str, Any]]:
        script = run(trainable, tmp_path, start())
        names = ("loss", "_metric", "done")
        return [{name: report[name] for name in names if name in report} for report in script.reports()]

    assert said(yields) == [{"loss": 2.0}, {"_metric": 1.0}]
    assert said(lambda config: 0.5) == [{"_metric": 0.5, "done": True}]
    nothings: list[Any] = [{}, None]
    for nothing in nothings:
        assert run(lambda config, said=nothing: said, tmp_path, start()).ends() == [("a", "done", "")]
    assert said(lambda config: {}) == []
    for words in ("text", [1.0]):
        for trainable in (lambda config, said=words: iter_of(said), lambda config, said=words: said):
            assert run(trainable, tmp_path, start()).ends() == [("a", "failed", "UsageError")]


def iter_of(value: Any) -> Iterator[Any]:
    yield value


def test_a_class_that_cannot_save_just_ends_when_it_is_told_to_save_and_end(tmp_path: Path) -> None:
    class Silent(Trainable):
        def step(self) -> dict[str, Any]:
            return {"step": 1}

    halt = Halt(trial="a", attempt=1, saves=True)
    told = run(Silent, tmp_path, start(credit=1), halt)
    assert told.ends() == [("a", "halted", "")]
    assert [m["type"] for m in told.said if m["type"] == "saved"] == []
