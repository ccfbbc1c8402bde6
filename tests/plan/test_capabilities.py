from __future__ import annotations

import dataclasses

from windlass.plan.capabilities import RULES, Treatment, settings
from windlass.spec import (
    Best,
    BestCheckpoint,
    Bundle,
    Checkpoints,
    Context,
    DataSource,
    Env,
    Evaluate,
    Experiment,
    Gpus,
    KeptCheckpoints,
    Limit,
    Retain,
    Retry,
    SecretUse,
    Stall,
    Task,
)


def leaves(cls: type[object], prefix: str, nested: dict[str, type[object]]) -> set[str]:
    found: set[str] = set()
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every class here is a dataclass
        key = prefix + field.name.rstrip("_")
        found |= leaves(nested[key], key + ".", nested) if key in nested else {key}
    return found


def test_every_setting_has_a_treatment() -> None:
    nested: dict[str, type[object]] = {
        "env": Env,
        "context": Context,
        "limit": Limit,
        "retry": Retry,
        "retain": Retain,
        "retain.checkpoints": KeptCheckpoints,
        "retain.checkpoints.best": Best,
        "tasks.*.gpus": Gpus,
        "tasks.*.checkpoints": Checkpoints,
        "tasks.*.evaluate": Evaluate,
        "tasks.*.evaluate.best": BestCheckpoint,
        "tasks.*.stall": Stall,
    }
    expected = leaves(Experiment, "", nested) - {"data", "tasks"}
    expected |= leaves(DataSource, "data.*.", nested) | leaves(Task, "tasks.*.", nested) - {"tasks.*.bundles"}
    expected |= leaves(Bundle, "tasks.*.bundles.*.", nested)
    assert all(set(rules) == expected for rules in RULES.values())


def test_refusals_and_notes_have_reasons() -> None:
    rules = [rule for rules in RULES.values() for rule in rules.values()]
    assert all(rule.reason for rule in rules if rule.treatment is not Treatment.HONOURED)


def test_settings_are_those_that_were_made() -> None:
    experiment = Experiment(
        name="x",
        env=Env(secrets=(SecretUse(name="A"),)),
        tasks={"t": Task(run="f", gpus=Gpus(count=2, type="a"), stall=Stall(enabled=False))},
        limit=Limit(jobs=2),
    )
    assert [(pattern, path) for pattern, path, _ in settings(experiment)] == [
        ("name", "name"),
        ("env.secrets", "env.secrets"),
        ("tasks.*.run", "tasks.t.run"),
        ("tasks.*.gpus.count", "tasks.t.gpus.count"),
        ("tasks.*.gpus.type", "tasks.t.gpus.type"),
        ("tasks.*.stall.enabled", "tasks.t.stall.enabled"),
        ("limit.jobs", "limit.jobs"),
    ]
