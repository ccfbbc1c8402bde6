"""What a waiting job learns of an environment that is built elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.supervise.gang.test_leader import Scene
from windlass.core.files import lock, write_json
from windlass.record import events
from windlass.record.journal import read_journal
from windlass.supervise.builds.watch import PATIENCE_S, BuildWatch


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "envs" / ("k" * 32)


@pytest.fixture
def watch(place: Path) -> BuildWatch:
    place.parent.mkdir()
    return BuildWatch(f"{place}/.ready", f"{place}.lock")


def finish(place: Path, proof: str = ".") -> None:
    place.mkdir()
    write_json(place / ".ready", {"proof": proof})


def test_a_finished_environment_opens(watch: BuildWatch, place: Path) -> None:
    finish(place)
    assert (watch.look(0.0), watch.reason) == ("", "")


def test_it_waits_as_long_as_somebody_builds(watch: BuildWatch, place: Path) -> None:
    with lock(Path(f"{place}.lock")):
        for now in (0.0, 1000.0, 100000.0):
            assert watch.look(now) == ""
            assert watch.reason == f"waits for the environment that is being built (log: {place}.log)"
    finish(place)
    assert (watch.look(100001.0), watch.reason) == ("", "")


def test_a_failed_build_is_told_with_its_own_words(watch: BuildWatch, place: Path) -> None:
    write_json(Path(f"{place}.failed"), {"message": "the module `cuda/13` cannot be loaded on n1", "hint": ""})
    assert watch.look(0.0) == "the environment could not be built: the module `cuda/13` cannot be loaded on n1"


def test_a_build_that_died_without_a_word_is_given_up(watch: BuildWatch, place: Path) -> None:
    Path(f"{place}.log").write_text("Building flash-attn\n")
    assert watch.look(10.0) == ""
    assert watch.reason == "waits for the environment"
    assert watch.look(10.0 + PATIENCE_S - 1) == ""
    said = watch.look(10.0 + PATIENCE_S)
    assert said.startswith(f"the environment {place} does not exist, and no process builds it")
    assert said.endswith("Building flash-attn")


def test_patience_begins_anew_after_a_build(watch: BuildWatch, place: Path) -> None:
    assert watch.look(0.0) == ""
    with lock(Path(f"{place}.lock")):
        assert watch.look(PATIENCE_S - 1) == ""
    assert watch.look(PATIENCE_S + 1) == ""
    assert watch.look(2 * PATIENCE_S) == ""
    assert "no process builds it" in watch.look(2 * PATIENCE_S + 2)


def test_an_interpreter_that_this_node_does_not_have_is_named(watch: BuildWatch, place: Path) -> None:
    (place / "bin").mkdir(parents=True)
    (place / "bin/python").symlink_to("/opt/login-only/python3.12")
    write_json(place / ".ready", {"proof": "bin/python"})
    said = watch.look(0.0)
    assert "its interpreter /opt/login-only/python3.12 does not exist" in said
    assert "build: compute" in said


def test_an_overlay_waits_for_the_environment_below_it(tmp_path: Path) -> None:
    envs = tmp_path / "envs"
    envs.mkdir()
    watch = BuildWatch(f"{envs}/overlay/.ready", f"{envs}/base.lock")
    with lock(envs / "base.lock"):
        assert watch.look(0.0) == ""
        assert "being built" in watch.reason
    finish(envs / "overlay")
    assert watch.look(1.0) == ""
    assert watch.reason
    finish(envs / "base")
    assert (watch.look(2.0), watch.reason) == ("", "")


def test_the_leader_ends_the_task_when_its_environment_cannot_come(tmp_path: Path, place: Path) -> None:
    scene = Scene(tmp_path / "run")
    place.parent.mkdir()
    paths = replace(scene.job.paths, environment=f"{place}/.ready", build_lock=f"{place}.lock")
    scene.job = replace(scene.job, paths=paths)
    leader = scene.lead()
    with lock(Path(f"{place}.lock")):
        leader.start()
    write_json(Path(f"{place}.failed"), {"message": "no wheel for torch", "hint": ""})
    leader.tick()
    records = [r for r in read_journal(scene.folder / "journal") if r.kind in (events.TASK_QUEUED, events.TASK_ENDED)]
    assert records[0].data["reason"].startswith("waits for the environment that is being built")
    ended = records[-1].data
    assert (ended["verdict"], ended["cause"]) == ("failed", "setup-failed")
    assert ended["message"] == "the environment could not be built: no wheel for torch"
