from __future__ import annotations

from typing import Any

import pytest

from windlass.compat.spec.reading import checked_spec
from windlass.core.errors import SpecError


def refused(**task: Any) -> list[str]:
    return refused_spec({"tasks": [{"image": {"docker": "x"}, **task}]})


def refused_spec(spec: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        checked_spec(spec)
    assert all(problem.code == "beaker-refused" for problem in caught.value.problems)
    return [problem.message for problem in caught.value.problems]


def mount(path: str, **more: Any) -> dict[str, Any]:
    return {"mountPath": path, "source": {"weka": "b"}, **more}


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"image": {"docker": "x", "beaker": "y"}}, "exactly one of beaker, docker"),
        ({"image": None}, "image is missing"),
        ({"image": "python:3"}, "image must be a mapping"),
        ({"command": "python a.py"}, "command must be a list of words"),
        ({"command": ["a", None]}, "tasks.0.command.1 must be text or a number, not nothing"),
        ({"constraints": {"cluster": ["a", 1]}}, "tasks.0.constraints.cluster.1 must be text, not the"),
        ({"envVars": [{"name": "A"}, {"name": "A"}]}, "duplicate variable"),
        ({"envVars": [{"value": "A"}]}, "has no name"),
        ({"envVars": [{"name": "A", "value": "x", "secret": "y"}]}, "a value and a secret"),
        ({"envVars": [{"name": "A", "value": ["x"]}]}, "value must be text or a number"),
        ({"envVars": {"A": 1}}, "envVars must be a list"),
        ({"datasets": [mount("data")]}, "mountPath is `data`"),
        ({"datasets": [mount("/a"), mount("/a/b")]}, "overlaps `/a`"),
        ({"datasets": [mount("/Data"), mount("/data")]}, "overlaps `/Data`"),
        ({"datasets": [mount("/a", mode="rw")]}, "mode is `rw`"),
        ({"datasets": [{"mountPath": "/a"}]}, "it has none"),
        ({"datasets": [{"mountPath": "/a", "source": {"weka": "x", "beaker": "y"}}]}, "it has weka and beaker"),
        ({"datasets": [{"mountPath": "/a", "source": {"weka": 3}}]}, "weka must be text"),
        ({"datasets": [mount("/a", source={"secret": "s"}, mode="readwrite")]}, "source is read-only"),
        ({"datasets": [mount("/a", source={"result": "other"})]}, "not another task of this spec"),
        ({"name": "me", "datasets": [mount("/a", source={"result": "me"})]}, "not another task of this spec"),
        ({"datasets": ["x"]}, "must be a mapping"),
        ({"replicas": 0}, "replicas is `0`"),
        ({"replicas": "2"}, "replicas must be a whole number"),
        ({"resources": {"gpuCount": -1}}, "gpuCount is `-1`"),
        ({"resources": {"gpuCount": 1.5}}, "gpuCount must be a whole number"),
        ({"resources": {"memory": 5}}, "memory must be a size"),
        ({"resources": {"sharedMemory": "lots"}}, "sharedMemory must be a size"),
        ({"context": {"priority": "hihg"}}, "unknown priority `hihg`"),
        ({"context": {"autoResume": "yes"}}, "autoResume must be `true` or `false`"),
        ({"synchronizedStartTimeout": "49h"}, "at most 48h"),
        ({"synchronizedStartTimeout": 0}, "at most 48h"),
        ({"timeout": "3 days"}, "timeout must be a duration"),
        ({"hostNetworking": 1}, "hostNetworking must be `true` or `false`"),
    ],
)
def test_a_task_that_beaker_refuses(task: dict[str, Any], words: str) -> None:
    messages = refused(**task)
    assert len(messages) == 1
    assert words in messages[0]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"tasks": []}, "no task"),
        ({}, "no task"),
        ({"tasks": None}, "no task"),
        ({"tasks": {}}, "tasks must be a list"),
        ({"tasks": ["x"]}, "tasks.0 must be a mapping"),
        ({"tasks": [{"image": {"docker": "x"}, "name": "a"}] * 2}, "two tasks are named `a`"),
        ({"tasks": [{"image": {"docker": "x"}}], "retry": {"allowedTaskRetries": 11}}, "allowedTaskRetries is `11`"),
        ({"tasks": [{"image": {"docker": "x"}}], "groups": "g"}, "groups must be a list of texts"),
    ],
)
def test_a_spec_that_beaker_refuses(spec: dict[str, Any], words: str) -> None:
    assert words in "\n".join(refused_spec(spec))


def test_all_problems_at_once() -> None:
    assert len(refused(replicas=0, timeout="x", image=None, envVars=[{}])) == 4


def test_nulls_newer_sources_and_unknown_keys_are_taken() -> None:
    nulls = dict.fromkeys(("name", "command", "envVars", "datasets", "resources", "context", "timeout", "replicas"))
    newer = [{"mountPath": "/a", "source": {"someday": {"x": 1}}}]
    spec = {"tasks": [{"image": {"docker": "x"}, **nulls, "datasets": newer, "unknown": {"a": [None]}}], "more": 1}
    assert checked_spec(spec) == spec
