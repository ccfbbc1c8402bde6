"""A mason command line on Beaker itself: the fake one, through the genuine client, to the end of its jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windlass.cli import main
from windlass.testing.beaker import FakeBeaker

pytestmark = pytest.mark.system

_LINE = ("mason", "--cluster", "ai2/prior", "--image", "me/image", "--pure_docker_mode", "--no-host-networking")
Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBeaker]:
    """A Beaker, and the variables that lead to it."""
    for name in ("BEAKER_TOKEN", "RUN_NAME", "WANDB_ENTITY", "WANDB_PROJECT", "WANDB_TAGS"):
        monkeypatch.delenv(name, raising=False)
    with FakeBeaker(tmp_path / "beaker") as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def typed(fake: FakeBeaker, capsys: pytest.CaptureFixture[str]) -> Typed:
    """A command line, typed: its exit code and what it printed."""

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main((*_LINE, *words))
        return code, capsys.readouterr().out

    return call


def test_what_is_printed_is_what_is_sent_and_runs(fake: FakeBeaker, typed: Typed) -> None:
    fake.add_secret("HF_TOKEN", "the workspace's")
    fake.add_secret("me_HF_TOKEN", "my own")
    words = ("--workspace", fake.workspace, "--env", "A=1", "--", "echo", "$A", "and", "$HF_TOKEN", "'two  blanks'")
    _, printed = typed("--emit", "beaker", *words)
    assert fake.experiments == []
    code, sent = typed(*words)
    (experiment,) = fake.experiments
    assert (code, sent.strip()) == (0, experiment.id)
    assert experiment.spec == json.loads(printed)
    fake.wait(experiment)
    assert "1 and my own two  blanks\n" in experiment.jobs[0].text


def test_replicas_know_their_leader(fake: FakeBeaker, typed: Typed) -> None:
    code, _ = typed(
        "--num_nodes", "3", "--yes", "--", "echo", "rank", "$BEAKER_REPLICA_RANK", "of", "$BEAKER_REPLICA_COUNT"
    )
    (experiment,) = fake.experiments
    fake.wait(experiment)
    assert code == 0
    assert sorted(job.text.strip().split("\n")[-1] for job in experiment.jobs) == [
        f"rank {rank} of 3" for rank in range(3)
    ]


def test_each_launch_is_an_experiment_and_a_run_keeps_its_id(fake: FakeBeaker, typed: Typed) -> None:
    words = ("--run-id", "mine", "--no_auto_dataset_cache", "--", "true", "open_instruct/grpo.py")
    assert [typed(*words)[0], typed(*words)[0]] == [0, 0]
    first, second = fake.experiments
    assert first.spec == second.spec
    assert first.name != second.name


def test_a_secret_that_is_not_there_is_refused_and_nothing_is_sent(fake: FakeBeaker, typed: Typed) -> None:
    assert typed("--secret", "KEY=nobody", "--", "true")[0] == 5
    assert fake.experiments == []


def test_a_lost_reply_makes_one_experiment(fake: FakeBeaker, typed: Typed) -> None:
    fake.scenario.lose_next_reply("CreateExperiment")
    assert typed("--", "true")[0] == 0
    assert len(fake.experiments) == 1
