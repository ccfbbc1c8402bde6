"""Prepared data in containers: the build runs in the image, and nothing but its own output may be written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.stage import Stage
from windlass import Run
from windlass.record.state import State

pytestmark = pytest.mark.system

SCRIPT = """\
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=pathlib.Path)
folder = parser.parse_args().output_dir
(folder / "who").write_text(f"{os.getuid()} {pathlib.Path('/.dockerenv').exists()}")
"""


def test_a_build_runs_in_the_image_and_its_task_reads_it(
    stage: Stage, launch: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "raw").write_text("raw")
    stage.write("prepare.py", SCRIPT)
    build = "cat ${from} > ${out}/raw; touch ${out}/../../outside; python3 prepare.py --output_dir ${out}"
    spec = {
        "data": {"tokens": {"from": f"file:{tmp_path}/raw", "build": build, "code": "prepare.py"}},
        "tasks": {
            "main": {
                "run": "cat ${data.tokens}/*; touch ${data.tokens}/more || echo; python3 prepare.py --output_dir ${out}",
                "grace": "1s",
            }
        },
    }
    run = launch(spec)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    refusal = re.compile(r"touch: .*: Read-only file system\n")  # the engine brings stderr through a pipe of its own
    assert len(refusal.findall(stage.log(run))) == 1
    assert refusal.sub("", stage.log(run)) == "raw0 True\n"
    assert (run.folder.out("main") / "who").read_text() == "0 True"
    assert not list(stage.home.path.rglob("outside"))
    again = launch(spec)
    assert list(again.facts.tasks) == ["main"]
    assert stage.end(again, 300) is State.SUCCEEDED


def test_a_build_that_fails_inside_names_its_lines(stage: Stage, launch: Callable[..., Run]) -> None:
    spec = {
        "data": {"tokens": {"build": "echo 'no such tokenizer'; exit 4", "code": "trainer.py"}},
        "tasks": {"main": {"run": "ls ${data.tokens}", "grace": "1s"}},
    }
    run = launch(spec)
    assert stage.end(run, 300) is State.FAILED
    (end,) = stage.ends(run, "data.tokens")
    assert (end.cause, end.code) == ("data-failed", 4)
    assert "no such tokenizer" in end.tail
