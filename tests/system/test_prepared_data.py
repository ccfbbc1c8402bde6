"""Prepared data end to end: built once, published whole, used by digest; whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.system.stage import PYTHON, Stage, until
from windlass import Run
from windlass.launcher.verify.verify import verify
from windlass.record.state import State

pytestmark = pytest.mark.system

TOKENISE = """\
import os, pathlib, sys, time
source, out = map(pathlib.Path, sys.argv[1:3])
with open(os.environ["BUILDS"], "a") as file:
    file.write("built\\n")
(out / "part").mkdir()
(out / "part" / "0.txt").write_text(source.read_text().upper())
time.sleep(float(os.environ.get("SLOW", "0")))
(out / "part" / "1.txt").write_text("end")
"""


class Mill:
    """A stage with a build that counts how often it ran."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.counter = stage.starts.with_name("builds")
        self.source = stage.starts.with_name("raw.txt")
        self.source.write_text("hello")
        stage.write("tokenise.py", TOKENISE)

    @property
    def num_builds(self) -> int:
        return self.counter.read_text().count("built") if self.counter.exists() else 0

    @property
    def built(self) -> Path:
        return self.stage.home.path / "data" / "built"

    def spec(self, **build: Any) -> dict[str, Any]:
        entry = {"from": "raw", "build": [PYTHON, "tokenise.py", "${from}", "${out}"], "code": "tokenise.py", **build}
        return {
            "env": {"vars": {"BUILDS": str(self.counter)}},
            "data": {"raw": f"file:{self.source}", "tokens": entry},
            "tasks": {"main": {"run": "cat ${data.tokens}/part/*.txt > ${out}/seen; cat ${out}/seen", "grace": "1s"}},
        }

    def launch(self, *overrides: str, **build: Any) -> Run:
        return self.stage.launch(self.spec(**build), *overrides)

    def left_overs(self) -> list[str]:
        """What lies beside finished builds and their locks."""
        names = [entry.name for entry in self.built.iterdir()] if self.built.is_dir() else []
        return [name for name in names if name != ".last" and len(name) != 40 and not name.endswith(".lock")]


@pytest.fixture
def mill(stage: Stage) -> Mill:
    return Mill(stage)


def test_data_is_built_before_its_task_and_not_again(mill: Mill) -> None:
    run = mill.launch()
    assert list(run.facts.tasks) == ["data.tokens", "main"]
    assert mill.stage.end(run) is State.SUCCEEDED, mill.stage.story(run)
    assert mill.stage.log(run) == "HELLOend"
    record = json.loads((run.folder.out("data.tokens") / "built.json").read_bytes())
    assert (record["num_files"], record["size_bytes"], record["is_hit"]) == (2, 8, False)
    again = mill.launch("why=again")
    assert list(again.facts.tasks) == ["main"]
    assert again.plan.plan_hash == run.plan.plan_hash
    assert again.plan.pins.builds["tokens"].digest == record["digest"]
    assert mill.stage.end(again) is State.SUCCEEDED
    assert mill.num_builds == 1
    assert mill.left_overs() == []


def test_a_failed_build_shows_its_last_lines_and_starts_nothing(mill: Mill) -> None:
    run = mill.launch(build="echo reading; echo 'no tokenizer here' >&2; touch ${out}/half; exit 3", code=())
    assert mill.stage.end(run) is State.FAILED
    (end,) = mill.stage.ends(run, "data.tokens")
    assert (end.cause, end.code) == ("data-failed", 3)
    assert end.tail[-3:-1] == ("reading", "no tokenizer here")
    end_of_main = run.facts.task("main").end
    assert end_of_main is not None
    assert end_of_main[:2] == (State.FAILED, "sibling-failed")
    assert mill.stage.attempts(run) == []
    assert [name for name in mill.left_overs() if not name.endswith((".failed", ".refused"))] == []


def test_what_failed_is_built_again_by_the_next_run(mill: Mill) -> None:
    gate = mill.source.with_name("gate")
    build = f"test -e {gate} && mkdir ${{out}}/part && echo fine > ${{out}}/part/0.txt"
    first = mill.launch(build=build, code=())
    assert mill.stage.end(first) is State.FAILED
    gate.touch()
    second = first.rerun()
    assert "data.tokens" in second.facts.tasks
    assert mill.stage.end(second) is State.SUCCEEDED
    first.retry()
    assert mill.stage.end(first) is State.SUCCEEDED
    assert mill.stage.log(first, task="main") == mill.stage.log(second, task="main") == "fine\n"


def test_a_build_that_writes_nothing_or_a_link_outside_is_refused(mill: Mill) -> None:
    run = mill.launch(build="true", code=())
    assert mill.stage.end(run) is State.FAILED
    (end,) = mill.stage.ends(run, "data.tokens")
    assert end.cause == "data-failed"
    assert "wrote no file to ${out}" in end.message
    run = mill.launch(build="ln -s /etc/hostname ${out}/host", code=())
    assert mill.stage.end(run) is State.FAILED
    (end,) = mill.stage.ends(run, "data.tokens")
    assert "created the link host, which points outside of ${out}" in end.message


def test_what_changed_in_a_folder_is_named_by_verify_noticed_by_the_next_and_built_again(mill: Mill) -> None:
    first = mill.launch()
    assert mill.stage.end(first) is State.SUCCEEDED
    second = mill.launch()
    assert mill.stage.end(second) is State.SUCCEEDED
    for run in (first, second):
        assert [each.status for each in verify(run.folder) if each.what == "data tokens"] == ["ok"]
    (content,) = mill.built.glob("*/data")
    (content / "part" / "1.txt").chmod(0o644)
    (content / "part" / "1.txt").write_text("END")
    for run in (first, second):
        (found,) = [each for each in verify(run.folder) if each.what == "data tokens"]
        assert (found.status, "part/1.txt: has other content (sha256)" in found.message) == ("failed", True)
    (content / "part" / "1.txt").write_text("longer than it was")
    third = mill.launch()
    assert "data.tokens" in third.facts.tasks
    assert mill.stage.end(third) is State.SUCCEEDED
    assert mill.stage.log(third) == "HELLOend"
    assert mill.num_builds == 2
    assert "is damaged (part/1.txt has 18 bytes instead of 3)" in mill.stage.log(third, task="data.tokens")


def test_a_chain_of_builds_runs_in_its_order(mill: Mill) -> None:
    spec = mill.spec()
    spec["data"]["packed"] = {"from": "tokens", "build": "cat ${from}/part/* > ${out}/packed; echo packed"}
    spec["tasks"]["main"]["run"] = "cat ${data.packed}/packed"
    run = mill.stage.launch(spec)
    assert list(run.facts.tasks) == ["data.tokens", "data.packed", "main"]
    assert mill.stage.end(run) is State.SUCCEEDED, mill.stage.story(run)
    assert mill.stage.log(run) == "HELLOend"
    again = mill.stage.launch(spec)
    assert list(again.facts.tasks) == ["main"]
    assert mill.stage.end(again) is State.SUCCEEDED


OUTPUT_DIR = """\
import argparse, os, pathlib, signal
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=pathlib.Path)
parser.add_argument("--checkpoint_dir", type=pathlib.Path)
flags = parser.parse_args()
print(flags.output_dir, flags.checkpoint_dir, flush=True)
if not (flags.checkpoint_dir / "half").exists():
    (flags.checkpoint_dir / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
(flags.output_dir / "model").write_text("done")
"""


def test_a_script_with_its_own_flags_gets_paths_of_the_run_that_stay_over_retries(stage: Stage) -> None:
    stage.write("flags.py", OUTPUT_DIR)
    command = [PYTHON, "flags.py", "--output_dir", "${out}", "--checkpoint_dir", "${checkpoints}"]
    first, second = (stage.launch(stage.task(command), name=name) for name in ("one", "two"))
    assert [stage.end(run) for run in (first, second)] == [State.SUCCEEDED] * 2
    assert stage.causes(first) == ["killed", "ok"]
    assert stage.log(first, 1).split()[:2] == stage.log(first, 2).split()[:2]
    assert stage.log(first, 2).split()[:2] == [str(first.output("main")), str(first.folder.checkpoints("main"))]
    assert (first.output("main") / "model").read_text() == (second.output("main") / "model").read_text() == "done"
    assert first.output("main") != second.output("main")


STAND_IN = """\
import argparse, hashlib, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--dataset_mixer")
parser.add_argument("--cache_dataset_only", action="store_true")
parser.add_argument("--dataset_local_cache_dir", type=pathlib.Path)
parser.add_argument("--output_dir", type=pathlib.Path)
parser.add_argument("--with_tracking", action="store_true")
flags = parser.parse_args()
cached = flags.dataset_local_cache_dir / hashlib.sha256(flags.dataset_mixer.encode()).hexdigest()[:10]
if flags.cache_dataset_only:
    assert not flags.with_tracking
    cached.mkdir()
    (cached / "rows").write_text(flags.dataset_mixer)
    sys.exit(0)
(flags.output_dir / "trained").write_text("on " + (cached / "rows").read_text())
"""


def test_the_adapter_prepares_what_the_training_script_then_finds(stage: Stage) -> None:
    stage.write("finetune.py", STAND_IN)
    command = [PYTHON, "finetune.py", "--dataset_mixer", '{"a": 1}', "--with_tracking"]
    command += ["--output_dir", "${out}", "--dataset_local_cache_dir", "${data.cache}"]
    spec = stage.task(command)
    spec["data"] = {"cache": {"adapter": "cache-dataset-only", "code": "finetune.py"}}
    run = stage.launch(spec)
    assert list(run.facts.tasks) == ["data.cache", "main"]
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert (run.output("main") / "trained").read_text() == 'on {"a": 1}'


def test_the_killed_process_of_a_build_is_an_interruption_and_the_next_attempt_builds(mill: Mill) -> None:
    spec = mill.spec()
    spec["env"]["vars"]["SLOW"] = "1"
    run = mill.stage.launch(spec)
    until(lambda: mill.num_builds == 1, "the build runs")
    os.kill(mill.stage.wait_for_user(run, task="data.tokens"), signal.SIGKILL)
    assert mill.stage.end(run) is State.SUCCEEDED, mill.stage.story(run)
    assert mill.stage.causes(run, "data.tokens") == ["killed", "ok"]
    assert mill.num_builds == 2
    assert mill.stage.log(run) == "HELLOend"
    assert mill.left_overs() == []


def test_data_can_be_prepared_without_the_tasks(mill: Mill) -> None:
    path = mill.stage.experiment(mill.spec())

    def build(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [
            PYTHON,
            "-c",
            "import sys; from windlass.cli.program import main; sys.exit(main())",
            "data",
            "build",
            str(path),
            "--allow-dirty",
            *words,
        ]
        environ = {**os.environ, "WINDLASS_HOME": str(mill.stage.home.path)}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=300)

    done = build("tokens")
    assert done.returncode == 0, done.stderr
    (content,) = mill.built.glob("*/data")
    assert done.stdout.strip().endswith(str(content))
    assert "tokens exists: sha256:" in build().stderr
    wrong = build("token")
    assert (wrong.returncode, "did you mean `tokens`?" in wrong.stderr) == (4, True)
    run = mill.launch()
    assert list(run.facts.tasks) == ["main"]
    assert mill.stage.end(run) is State.SUCCEEDED
    assert mill.num_builds == 1
