"""Two thousand mutated frames and files; `WINDLASS_SEED=NAME:NUMBER` replays one. 100,000 more are in tests/soak."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.targets import GOOD, RUN, TARGETS, Bench
from tests.runs.journals import RunScript

pytestmark = pytest.mark.system

NUM_EACH = 2000 // len(TARGETS) + 1


@pytest.fixture
def bench(tmp_path: Path, home: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "bench")
    yield bench
    bench.close()


@pytest.mark.parametrize("name", TARGETS)
def test_no_document_breaks_its_reader(bench: Bench, name: str) -> None:
    wanted, _, seed = os.environ.get("WINDLASS_SEED", "").partition(":")
    seeds = range(NUM_EACH) if not wanted else [int(seed)] if wanted == name else []
    problems = [problem for seed in seeds if (problem := bench.try_one(name, int(seed)))]
    assert not problems, f"{len(problems)} of {len(seeds)}:\n" + "\n".join(problems[:20])


@pytest.mark.parametrize("command", [["ps"], ["gc", "--dry-run"], ["gc", "--runs", "--older-than", "0s", "--dry-run"]])
def test_a_damaged_run_is_shown_and_hides_no_other(bench: Bench, command: list[str]) -> None:
    (bench.run.path / "plan.json").write_text("[" * 100_000)
    moving = RunScript(bench.home, "moving-cccccccc").submit().start()
    (moving.run.path / "plan.json").write_text('{"a":' * 100_000)
    environ = {**os.environ, "WINDLASS_HOME": str(bench.home.path)}
    done = subprocess.run([sys.executable, "-m", "windlass", *command], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if command == ["ps"]:
        lines = {line.split()[0]: line for line in done.stdout.splitlines()}
        assert " succeeded " in lines[GOOD]
        assert "is damaged" in lines[RUN]
        assert moving.run.id in lines
        assert f"{moving.run.id}: could not refresh its state" in done.stderr
    elif "--runs" in command:
        assert str(bench.home.runs / GOOD) in done.stdout
    else:
        assert "nested more than 100 levels deep" in done.stdout + done.stderr
