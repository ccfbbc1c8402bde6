"""The post-chain example, with fewer steps: four stages as one run, every number in its provenance, and reproduced."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.example_copy import copy_example
from windlass import Run, launch, load
from windlass.record.state import State

pytestmark = pytest.mark.system

WAIT_S = 900.0
STEPS = "params.steps={sft: 30, reward: 12, dpo: 12, grpo: 6}"
SCORES = ("sft", "reward", "dpo", "grpo")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_example("post-chain", tmp_path_factory.mktemp("chain") / "project")


def numbers_of(run: Run) -> dict[str, float]:
    """What the task `score` wrote, by metric."""
    found: dict[str, float] = {}
    for name in SCORES:
        found |= json.loads((run.output("score") / f"{name}.json").read_text())
    return found


def test_four_stages_are_one_run_whose_numbers_are_in_its_provenance_and_come_out_again(
    need: Callable[[str], None], home: Path, project: Path
) -> None:
    need("torch")
    run = launch(load(project / "experiment.yaml", [f"env.python={sys.executable}", STEPS]))
    assert run.wait(WAIT_S) is State.SUCCEEDED
    numbers = numbers_of(run)
    assert numbers["eval/sft/answer_tokens"] > 4  # it has seen the form of an answer
    assert 0.0 < numbers["eval/reward/accuracy"] <= 1.0
    assert {f"eval/{name}/pass@1" for name in ("sft", "dpo", "grpo")} <= set(numbers)
    windlass = str(Path(sys.executable).with_name("windlass"))
    page = subprocess.run(
        [windlass, "show", "--provenance", "--json", run.id], capture_output=True, text=True, check=True, cwd=project
    )
    nodes = [node for node in json.loads(page.stdout)["nodes"] if node["kind"] == "metric"]
    shown = {node["title"]: node["details"][0] for node in nodes if "reported by score" in node["details"]}
    assert shown == {name: f"{value:.6g}" for name, value in numbers.items()}
    done = subprocess.run([windlass, "verify", run.id], capture_output=True, text=True, cwd=project, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("bit-identical") == len(SCORES) + 1  # four models and the scores


def test_no_held_out_sum_is_learned(project: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, project / "rows.py", tmp_path / "rows"], check=True)

    def rows(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (tmp_path / "rows" / f"{name}.jsonl").read_text().splitlines()]

    held = rows("held-prompts")
    assert not {row["prompt"] for row in held} & {
        row["prompt"] for name in ("prompts", "pairs", "chats") for row in rows(name)
    }
    assert len(held) == len(rows("held-pairs")) == 1000
