"""`windlass mason` as a person types it: help, printed specifications, what is sent, what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Windlass
from windlass.backends.beaker.values import ExperimentRef
from windlass.compat.mason.flags import FLAGS, OWN, RETIRED
from windlass.core.errors import PreconditionError

_LINE = ("--cluster", "ai2/prior", "--gpus", "1", "--pure_docker_mode")
_COMMAND = ("--", "python", "train.py")


class _Service:
    """A Beaker that keeps what it was asked for."""

    made: tuple[dict[str, Any], ...] = ()

    def user(self) -> str:
        return "me"

    def secrets(self, workspace: str = "") -> tuple[str, ...]:
        return ("me_HF_TOKEN", f"of {workspace or 'default'}")

    def create(
        self, spec: Mapping[str, Any], *, workspace: str = "", name: str = "", is_mine: bool = False
    ) -> ExperimentRef:
        _Service.made = (*_Service.made, {"spec": dict(spec), "workspace": workspace, "name": name, "is_mine": is_mine})
        return ExperimentRef(id="01EX", name=name, url="https://beaker.example/ex/01EX")

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No account of Beaker, and no variable that mason reads."""
    for name in ("BEAKER_TOKEN", "BEAKER_CONFIG", "RUN_NAME", "WANDB_ENTITY", "WANDB_PROJECT", "WANDB_TAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> type[_Service]:
    """A Beaker that answers, and a token for it."""
    monkeypatch.setattr("windlass.backends.beaker.service.BeakerService", _Service)
    monkeypatch.setattr(_Service, "made", ())
    monkeypatch.setenv("BEAKER_TOKEN", "a token")
    return _Service


def test_the_help_page_lists_every_option(windlass: Windlass) -> None:
    result = windlass("mason", "--help")
    assert result.code == 0
    assert [flag.name for flag in (*FLAGS, *OWN, *RETIRED) if flag.name not in result.out] == []


def test_the_work_of_its_image_wrapper_has_a_page_of_its_own(windlass: Windlass) -> None:
    for flag in ("-h", "--help"):
        result = windlass("mason", "build", flag)
        assert (result.code, result.out.partition(" [OPTIONS]")[0]) == (0, "Usage: windlass mason build")


def test_help_behind_the_separator_is_the_commands(windlass: Windlass) -> None:
    result = windlass("mason", *_LINE, "--emit", "beaker", "--user", "me", "--", "python", "train.py", "--help")
    assert json.loads(result.out)["tasks"][0]["arguments"] == ["python train.py --help"]


def test_emit_beaker_prints_what_would_be_sent_without_asking(windlass: Windlass) -> None:
    known = ("--user", "me", "--has-secret", "me_HF_TOKEN")
    result = windlass("mason", *_LINE, "--emit", "beaker", *known, *_COMMAND)
    (task,) = json.loads(result.out)["tasks"]
    assert result.code == 0
    assert {"name": "HF_TOKEN", "secret": "me_HF_TOKEN"} in task["envVars"]


def test_emit_beaker_asks_beaker_where_there_is_an_account(windlass: Windlass, service: type[_Service]) -> None:
    result = windlass("mason", *_LINE, "--emit", "beaker", *_COMMAND)
    (task,) = json.loads(result.out)["tasks"]
    assert {"name": "HF_TOKEN", "secret": "me_HF_TOKEN"} in task["envVars"]
    assert service.made == ()


def test_emit_plan_prints_a_page_of_what_would_be_sent(windlass: Windlass) -> None:
    known = ("--user", "me", "--has-secret", "me_HF_TOKEN", "--run-id", "r1")
    words = ("--num_nodes", "2", "--min_runtime", "30m", "--timeout", "2h", "--beaker_datasets", "/data:01D")
    command = ("--", "python", "open_instruct/grpo.py", "--checkpoint_state_dir", "/weka/x")
    result = windlass("mason", *_LINE, *words, *known, "--emit", "plan", *command)
    lines = result.out.splitlines()
    assert result.code == 0
    assert "run           r1; continue it with --run-id r1" in lines
    assert "priority      normal, safe from preemption for 30m" in lines
    assert "timeout       2h" in lines
    assert "mounts        /data (dataset 01D)" in lines
    assert "before        cache the dataset of open_instruct/grpo.py on this machine" in lines
    assert "              HF_TOKEN = secret me_HF_TOKEN" in lines
    assert f"command       {' '.join(command[1:])} --hf_entity allenai --wandb_entity ai2-llm" in lines


def test_without_an_account_the_commands_are_printed(windlass: Windlass) -> None:
    result = windlass("mason", *_LINE, *_COMMAND, "--", "python", "again.py")
    assert (result.code, result.out) == (0, "python train.py\npython again.py\n")
    assert "nothing is submitted" in result.err


def test_a_launch_is_sent_once_under_its_name(windlass: Windlass, service: type[_Service]) -> None:
    result = windlass("mason", *_LINE, "--workspace", "lab/main", "--task_name", "mine", "--run-id", "r1", *_COMMAND)
    (made,) = service.made
    assert (result.code, result.out) == (0, "01EX\n")
    assert (made["workspace"], made["is_mine"]) == ("lab/main", True)
    assert made["name"].startswith("mine-r1-")
    assert made["spec"]["tasks"][0]["arguments"] == ["python train.py"]


def test_an_interrupted_launch_says_where_to_look(
    windlass: Windlass, service: type[_Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **options: Any) -> ExperimentRef:
        raise KeyboardInterrupt

    monkeypatch.setattr(service, "create", interrupted)
    result = windlass("mason", *_LINE, "--run-id", "r1", *_COMMAND)
    assert result.code == 130
    assert "it may have been created already: check with `windlass beaker show me/beaker_mason-r1-" in result.err


def test_a_secret_of_nobody_is_refused(windlass: Windlass) -> None:
    result = windlass("mason", *_LINE, "--has-secret", "X", *_COMMAND)
    assert (result.code, result.out) == (2, "")
    assert "`--has-secret` replaces asking Beaker" in result.err


def test_words_that_are_no_text_are_refused(windlass: Windlass) -> None:
    result = windlass("mason", *_LINE, "--", "python", "\udcff.py")
    assert (result.code, result.out) == (2, "")
    assert "is not UTF-8" in result.err


def test_the_folder_of_a_launch_may_have_blanks(
    windlass: Windlass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path / "a b")
    result = windlass("mason", "--cluster", "ai2/jupiter", *_COMMAND)
    assert result.out == f"cd '{tmp_path / 'a b'}' && python train.py\n"
    (tmp_path / "a b").rmdir()
    assert "no longer exists" in windlass("mason", "--cluster", "ai2/jupiter", *_COMMAND).err


def test_a_run_that_can_be_resumed_says_how(windlass: Windlass, service: type[_Service]) -> None:
    line = (*_LINE, "--no_auto_dataset_cache", "--run-id", "r1", "--", "python", "open_instruct/grpo.py")
    assert "--run-id r1" in windlass("mason", *line).err
    assert len(service.made) == 1


def test_a_dataset_that_cannot_be_cached_stops_the_launch(
    windlass: Windlass, service: type[_Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PreconditionError("the script ended with 1", hint="look above", code="mason-cache-failed")

    monkeypatch.setattr("windlass.compat.mason.launch.cache_datasets", fail)
    result = windlass("mason", *_LINE, "--", "python", "open_instruct/finetune.py")
    assert (result.code, service.made) == (8, ())


def test_a_specification_that_beaker_would_refuse_is_refused_before_anything_is_cached(
    windlass: Windlass, service: type[_Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached: list[object] = []
    monkeypatch.setattr("windlass.compat.mason.launch.cache_datasets", lambda launch, **_: cached.append(launch))
    inside = ("--cluster", "ai2/jupiter", "--pure_docker_mode", "--beaker_datasets", "/weka/oe-adapt-default/x:01D")
    result = windlass("mason", *inside, "--", "python", "open_instruct/finetune.py")
    assert (result.code, service.made, cached) == (3, (), [])
    assert "/weka/oe-adapt-default/x" in result.err
    shown = windlass("mason", *inside, "--emit", "plan", "--user", "me", *_COMMAND)
    assert shown.code == 0
    assert "note: Beaker would reject it: " in shown.err


@pytest.mark.parametrize(
    "words",
    [
        (*_LINE, "python", "train.py"),
        (*_LINE, "--gpuss", "8", *_COMMAND),
        (*_LINE, "--secret", "KEY=nobody", *_COMMAND),
        (*_LINE, "--num_nodes", "2", "--", "accelerate", "launch", "x.py"),
        (*_LINE, "--offline", *_COMMAND),
        (*_LINE, "--has-secret", "x", "--emit", "beaker", *_COMMAND),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_sent(
    windlass: Windlass, service: type[_Service], words: tuple[str, ...]
) -> None:
    result = windlass("mason", *words)
    assert result.code in (2, 5)
    assert "hint:" in result.err
    assert service.made == ()


def test_nothing_is_asked_without_a_terminal(windlass: Windlass, service: type[_Service]) -> None:
    result = windlass("mason", *_LINE, "--num_nodes", "2", *_COMMAND)
    assert result.code == 0
    assert "the network between nodes may be slow" in result.err
    assert len(service.made) == 1


@pytest.mark.parametrize(("answer", "num_made"), [(False, 0), (True, 1)])
def test_a_person_at_a_terminal_is_asked(
    windlass: Windlass, service: type[_Service], monkeypatch: pytest.MonkeyPatch, answer: bool, num_made: int
) -> None:
    monkeypatch.setattr("windlass.cli.verbs.compat.mason._is_terminal", lambda: True)
    monkeypatch.setattr("click.confirm", lambda *_, **__: answer)
    result = windlass("mason", *_LINE, "--num_nodes", "2", *_COMMAND)
    assert (result.code, len(service.made)) == (0 if answer else 2, num_made)
    assert ("[not-confirmed]" in result.err) is not answer
    assert len(service.made) == num_made
    assert windlass("mason", *_LINE, "--num_nodes", "2", "--yes", *_COMMAND).code == 0


@pytest.mark.system
def test_printing_an_experiment_does_not_import_the_client(tmp_path: Path) -> None:
    from windlass.core.process import run

    code = (
        "import sys; from windlass.cli import main; "
        "main(['mason', '--cluster', 'ai2/jupiter', '--emit', 'EMIT', '--user', 'me', '--', 'python', 'x.py']); "
        "sys.exit(bool({'grpc', 'beaker', 'google.protobuf', 'requests'} & set(sys.modules)))"
    )
    for emitted in ("spec", "beaker"):
        done = run([sys.executable, "-c", code.replace("EMIT", emitted)], cwd=tmp_path)
        assert done.code == 0, done.stderr
