"""The table of metrics: what runs record is in it, and the documentation has its rows."""

from __future__ import annotations

import json
from pathlib import Path

from tests.post.test_grpo import base, grpo, trainer_of
from windlass.post.control.metrics import METRICS, metric_of

__all__ = ["base"]

PAGE = Path(__file__).parents[2] / "docs/concepts/post-training.md"
OF_EVERY_RUN = ("optim/", "memory/", "speed/")


def recorded(folder: Path, start: Path, *overrides: str) -> set[str]:
    log = folder / "metrics.jsonl"
    extra = (f"callbacks.log={{kind: jsonl, path: {log}}}", "callbacks.speed={kind: speed}", "collect_every=1")
    trainer_of(grpo(folder, start, *extra, *overrides)).fit()
    return {name for line in log.read_text().splitlines() for name in json.loads(line) if "/" in name}


def test_what_a_run_records_is_in_the_table(tmp_path: Path, base: Path) -> None:
    names = recorded(tmp_path, base, "duration=2steps", "objective.kl.coefficient=0.1")
    assert {"speed/data_wait_s", "rollout/reward", "rollout/reward_exact", "train/kl", "train/ratio"} <= names
    assert [name for name in names if metric_of(name) is None and not name.startswith(OF_EVERY_RUN)] == []


def test_the_learner_waits_and_samples_wait_are_both_measured(tmp_path: Path, base: Path) -> None:
    bound = ("async.bound=1", "objective.correction={clamp_max: 2.0}", "rollout.drop_constant_groups=false")
    names = recorded(tmp_path, base, "duration=4steps", *bound)
    assert {"rollout/learner_wait_s", "rollout/samples_wait_s", "rollout/lag", "rollout/lag_max"} <= names
    assert [name for name in names if metric_of(name) is None and not name.startswith(OF_EVERY_RUN)] == []


def test_the_documentation_has_the_table() -> None:
    page = PAGE.read_text()
    rows = [f"| `{row.name}` | {row.unit} | {row.meaning} |" for row in METRICS]
    assert "\n".join(rows) in page
    assert len({row.name for row in METRICS}) == len(METRICS)
    assert [row.name for row in METRICS[:2]] == ["rollout/learner_wait_s", "rollout/samples_wait_s"]


def test_a_name_with_a_part_of_its_own_is_found() -> None:
    assert metric_of("rollout/reward") is not metric_of("rollout/reward_exact")
    assert metric_of("rollout/reward_exact") is not None
    assert metric_of("rollout/unknown") is None
