from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.compat.spec.generated import specs
from windlass.compat.spec import keys
from windlass.compat.spec.importing import to_experiment
from windlass.compat.spec.reading import sent
from windlass.compat.spec.writing import from_experiment
from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.core.merge_patch import same
from windlass.spec import Experiment


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs())
def test_import_and_export_lose_nothing(spec: dict[str, Any]) -> None:
    before = json.dumps(spec)
    experiment = to_experiment(spec, name="brought")
    assert same(from_experiment(experiment), spec)
    assert json.dumps(spec) == before  # what was given is not changed
    text = to_yaml(experiment)
    loaded = load_config(Experiment, text, source="brought.yaml").value
    assert same(from_experiment(loaded), spec)


_NOTHING: dict[str, list[Any]] = {
    "flag": [False],
    "number": [0],
    "whole": [0],
    "text": [""],
    "texts": [[]],
    "names": [[], ""],
    "words": [[]],
    "list": [[]],
    "mapping": [{}],
    "duration": [0],
    "size": ["0"],
}
_REFUSED = (("replicas", 0), ("synchronizedStartTimeout", 0), ("priority", ""))


def nothings() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key of a task with every value of its kind that Python takes for false, and null."""
    tables = {
        "resources": keys.RESOURCES,
        "context": keys.CONTEXT,
        "constraints": keys.CONSTRAINTS,
        "result": keys.RESULT,
    }
    paths: list[tuple[tuple[str, ...], str]] = [((key,), kind) for key, kind in keys.TASK.items() if key != "image"]
    paths += [((group, key), kind) for group, table in tables.items() for key, kind in table.items()]
    for path, kind in paths:
        yield from ((path, value) for value in [*_NOTHING[kind], None] if (path[-1], value) not in _REFUSED)


@pytest.mark.parametrize("replicas", [1, 2, None])
@pytest.mark.parametrize(("path", "value"), list(nothings()), ids=str)
def test_a_value_that_is_nothing_survives_the_export(path: tuple[str, ...], value: Any, replicas: int | None) -> None:
    task: dict[str, Any] = {"name": "a", "image": {"docker": "x"}, "command": ["a"], "context": {"priority": "low"}}
    task |= {"replicas": replicas} if replicas else {}
    *groups, key = path
    for place in [task.setdefault(group, {}) for group in groups] or [task]:
        place[key] = value
    spec = {"version": "v2", "tasks": [task]}
    text = to_yaml(to_experiment(spec))
    again = from_experiment(load_config(Experiment, text, source="brought.yaml").value)
    assert same(again, spec)
    found: Any = sent(again)["tasks"][0]
    for part in path:
        found = found[part]
    assert same(found, value)


def test_a_cluster_and_a_host_may_be_text_as_the_client_takes_them() -> None:
    from beaker import BeakerExperimentSpec

    task = {"name": "a", "image": {"docker": "x"}, "command": ["a"], "context": {"priority": "low"}}
    constraints = {"cluster": "ai2/ceres", "hostname": "n1"}
    spec = {"version": "v2", "tasks": [{**task, "constraints": constraints}]}
    experiment = to_experiment(spec)
    assert experiment.tasks["a"].hosts == ("n1",)
    exported = sent(from_experiment(experiment))
    assert exported == spec
    assert BeakerExperimentSpec.from_json(exported).to_json()["tasks"][0]["constraints"] == constraints
