"""`windlass train samples`: what a policy wrote, in the terminal and as JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from tests.post.samples.test_log import scored
from tests.runs.journals import RunScript
from windlass.cli.verbs.run.train import train_command
from windlass.post import read_samples
from windlass.post.samples.log import SampleLog
from windlass.post.samples.records import DropGroup, PlanGroup, ReserveBatch
from windlass.runs.home import Home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two steps with two groups each, of two members."""
    return filled(tmp_path / "run")


def filled(folder: Path) -> Path:
    log = SampleLog(folder / "samples", decode=lambda ids: f"prompt {ids[0]}")
    for step in range(2):
        groups = (2 * step, 2 * step + 1)
        for group in groups:
            log.append(PlanGroup(group=group, row=group, oldest_version=step))
            log.append(scored(group, 0, text="first\nsecond"), scored(group, 1, reward=0.0, text="x" * 50))
        log.append(ReserveBatch(step=step, groups=groups))
    log.append(scored(4), DropGroup(group=4, reason="too old", length=3))
    log.flush()
    log.close()
    return folder


def test_samples_stand_in_tables_of_80_columns(windlass: Windlass, folder: Path) -> None:
    result = windlass("train", "samples", str(folder), "--step", "1")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "step 1, group 2: prompt 2\n"
        "  MEMBER  REWARD  VERSION  TOKENS  FINISH  ANSWER\n"
        "  0       1.00    2        3       stop    first\\nsecond\n"
        "  1       0.00    2        3       stop    xxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\n"
        "step 1, group 3: prompt 3\n"
        "  MEMBER  REWARD  VERSION  TOKENS  FINISH  ANSWER\n"
        "  0       1.00    3        3       stop    first\\nsecond\n"
        "  1       0.00    3        3       stop    xxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\n"
    )


def test_a_group_is_shown_with_its_whole_text(windlass: Windlass, folder: Path) -> None:
    result = windlass("train", "samples", str(folder), "--group", "2")
    assert result.out == (
        "step 1, group 2: prompt 2\n"
        "  member 0: reward 1.00 (exact 1.00), version 2, 3 tokens, stop, generated 0.50 s\n"
        "    first\n"
        "    second\n"
        "  member 1: reward 0.00 (exact 0.00), version 2, 3 tokens, stop, generated 0.50 s\n"
        f"    {'x' * 50}\n"
        "  mean reward 0.50\n"
    )


def test_what_no_step_learns_from_comes_last_and_the_limit_is_told(windlass: Windlass, folder: Path) -> None:
    result = windlass("train", "samples", str(folder))
    assert result.out.splitlines()[-3] == "dropped (too old), group 4: prompt 4"
    short = windlass("train", "samples", str(folder), "--limit", "3")
    assert len(short.out.splitlines()) == 7
    assert short.err == "only the first 3 samples; see more with `--limit`, `--step` or `--group`\n"
    assert windlass("train", "samples", str(folder), "--step", "7").err == "no sample matches\n"


def test_json_lines_hold_everything(windlass: Windlass, folder: Path) -> None:
    lines = [json.loads(line) for line in windlass("train", "samples", str(folder), "--json").out.splitlines()]
    assert len(lines) == 9
    first = lines[0]
    assert first.pop("stored_at") > 1e9
    assert first == {
        "schema": "windlass.sample/1",
        "episode": None,
        "step": 0,
        "group": 0,
        "member": 0,
        "attempt": 0,
        "dropped": "",
        "prompt": "prompt 0",
        "text": "first\nsecond",
        "reward": 1.0,
        "rewards": {"exact": 1.0},
        "finish": "stop",
        "spans": [{"start": 0, "stop": 3, "version": 0, "origin": "policy"}],
        "seconds": {"generated": 0.5},
        "prompt_ids": [0, 7],
        "ids": [0, 1, 2],
        "logp": [-0.5, -0.5, -0.5],
        "raw_logp": [-0.25, -0.25, -0.25],
    }
    assert lines[-1]["dropped"] == "too old"
    assert len(windlass("train", "samples", str(folder), "--json", "--limit", "2").out.splitlines()) == 2


def test_control_characters_do_not_reach_the_terminal(windlass: Windlass, tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "samples")
    log.append(scored(0, text="a\x1b[2Jb"))
    log.flush()
    for group in ((), ("--group", "0")):
        out = windlass("train", "samples", str(tmp_path), *group).out
        assert "\x1b" not in out
        assert "a\\x1b[2Jb" in out


def test_looking_changes_nothing(windlass: Windlass, folder: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    with (folder / "samples" / "000000.samples").open("ab") as file:
        file.write(b"0000")  # a frame that is being written
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    assert windlass("train", "samples", str(folder)).code == 0
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before
    assert len(list(read_samples(folder))) == 9


def test_a_run_is_found_by_its_name(windlass: Windlass, home: Path) -> None:
    script = RunScript(Home(home), "hello-aaaaaaaa", others=("score",))
    run = script.submit().start(1).close()
    empty = windlass("train", "samples", "hello")
    assert (empty.code, empty.err.splitlines()[0].split("  ")[0]) == (
        4,
        "error: hello-aaaaaaaa has 0 tasks with samples: none",
    )
    filled(run.checkpoints("train"))
    assert windlass("train", "samples", "hello", "--group", "1").out.startswith("step 0, group 1: prompt 1\n")


def test_a_replay_may_name_a_run(windlass: Windlass, home: Path) -> None:
    run = RunScript(Home(home), "hello-aaaaaaaa").submit().start(1).close()
    folder = filled(run.checkpoints("train"))
    words = ("train", "grpo", "model.from=x", "objective.correction={clamp_max: 2}", "--dry-run", "--json")
    shown = json.loads(windlass(*words, "rollout.replay=hello").out)
    assert shown["recipe"]["rollout"]["replay"] == str(folder)
    assert windlass(*words, "rollout.replay=none").code == 4


def test_a_folder_without_samples_is_an_error(windlass: Windlass, tmp_path: Path) -> None:
    result = windlass("train", "samples", str(tmp_path))
    assert result.code == 4
    assert f"no samples in {tmp_path}" in result.err
    assert windlass("train", "samples").code == 2


def test_rollouts_only_sets_the_recipe(windlass: Windlass) -> None:
    words = ("train", "grpo", "model.from=x", "--dry-run", "--json")
    plain, only = (json.loads(windlass(*words, *more).out) for more in ((), ("--rollouts-only",)))
    assert (plain["recipe"]["rollout"]["only"], only["recipe"]["rollout"]["only"]) == (False, True)
    assert only["overrides"][-1] == "rollout.only=true"
    assert train_command.name == "train"
