"""Command lines of mason, each with the whole specification that Beaker gets."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from windlass.compat.mason.account import KnownAccount
from windlass.compat.mason.reading import MasonLaunch, read_command_line
from windlass.core.errors import WindlassError

_CASES = Path(__file__).parent / "cases"
_DOCS = Path(__file__).parents[3] / "docs" / "mason.md"
_DEFAULTS = (
    "RAY_CGRAPH_get_timeout=300",
    "VLLM_DISABLE_COMPILE_CACHE=1",
    "NCCL_DEBUG=ERROR",
    "VLLM_LOGGING_LEVEL=WARNING",
    "VLLM_ALLOW_INSECURE_SERIALIZATION=1",
)
_WEKA = (
    "HF_HOME=/weka/oe-adapt-default/allennlp/.cache/huggingface",
    "HF_DATASETS_CACHE=/weka/oe-adapt-default/allennlp/.cache/huggingface",
    "HF_HUB_CACHE=/weka/oe-adapt-default/allennlp/.cache/hub",
    "CHECKPOINT_OUTPUT_DIR=/weka/oe-adapt-default/allennlp/deletable_checkpoint_states/aaaaaaaa",
)


def cases(name: str) -> list[dict[str, Any]]:
    """The cases of a file."""
    found = yaml.safe_load((_CASES / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, list)
    return found


def launch_of(case: dict[str, Any]) -> MasonLaunch:
    """What a case's command line becomes."""
    name = "" if case.get("external") else "me"
    return read_command_line(
        shlex.split(case["line"]),
        environ={"PATH": "/bin", **case.get("environ", {})},
        account=KnownAccount(name=name, secret_names=tuple(case.get("secrets", ()))),
        folder="/home/me/here",
        random=lambda count: "a" * count,
    )


def expected(case: dict[str, Any]) -> dict[str, Any]:
    """The whole specification that a case describes."""
    spec = {
        "version": "v2",
        "description": "Beaker-Mason job.",
        "tasks": [_task(case, index, task) for index, task in enumerate(case["tasks"])],
        "retry": {"allowedTaskRetries": 0},
    }
    return {**spec, **case.get("experiment", {})}


def _task(case: dict[str, Any], index: int, given: dict[str, Any]) -> dict[str, Any]:
    words = shlex.split(case["line"])
    cluster = next((word for word in words if word.startswith("ai2/")), "ai2/prior")
    nodes = given.get("nodes", 1)
    base: dict[str, Any] = {
        "image": {"beaker": "ai2/cuda11.8-cudnn8-dev-ubuntu20.04"},
        "context": {"priority": "normal", "preemptible": False},
        "result": {"path": "/output"},
        "constraints": {"cluster": [cluster]},
        "name": f"beaker_mason__{index}",
        "command": ["/bin/bash", "-c"],
        "arguments": [given["run"]],
        "resources": {"gpuCount": 0, "sharedMemory": "10.24gb"},
        "hostNetworking": True,
        "replicas": nodes,
        "leaderSelection": nodes > 1,
    }
    if nodes > 1:
        base |= {"propagateFailure": True, "propagatePreemption": True}
    base |= {key: value for key, value in given.items() if key not in ("run", "nodes", "env", "datasets")}
    mounts = [mount for each in given.get("datasets", []) for mount in _mounts(each)]
    return {**base, "envVars": _variables(given.get("env", ["defaults"])), "datasets": mounts}


def _variables(lines: list[str]) -> list[dict[str, str]]:
    sets = {"defaults": _DEFAULTS, "weka": _WEKA}
    return [_variable(line) for each in lines for line in sets.get(each, (each,))]


def _variable(line: str) -> dict[str, str]:
    for sign, key in (("=", "value"), ("@", "secret")):
        name, found, value = line.partition(sign)
        if found:
            return {"name": name, key: value}
    raise ValueError(line)


def _mounts(text: str) -> list[dict[str, Any]]:
    if text == "weka":
        buckets = ("oe-adapt-default", "oe-training-default")
        return [{"source": {"weka": bucket}, "mountPath": f"/weka/{bucket}"} for bucket in buckets]
    if text.startswith("weka:"):
        bucket = text.removeprefix("weka:")
        return [{"source": {"weka": bucket}, "mountPath": f"/weka/{bucket}"}]
    if text == "socket":
        return [{"source": {"hostPath": "/var/run/docker.sock"}, "mountPath": "/var/run/docker.sock"}]
    path, _, dataset = text.partition("=")
    return [{"source": {"beaker": dataset}, "mountPath": path}]


_ALL = [*cases("options"), *cases("environment"), *cases("commands")]


@pytest.mark.parametrize("case", _ALL, ids=[case["name"] for case in _ALL])
def test_a_command_line_becomes_the_specification(case: dict[str, Any]) -> None:
    launch = launch_of(case)
    assert launch.spec == expected(case)
    for note in case.get("notes", ()):
        assert note in launch.notes


def refusal_of(case: dict[str, Any]) -> WindlassError:
    try:
        launch_of({**case, "secrets": ["HF_TOKEN", "me_HF_TOKEN"]})
    except WindlassError as error:
        return error
    raise AssertionError(f"not refused: {case['line']}")


def test_wrong_command_lines_are_refused() -> None:
    for case in cases("refusals"):
        error = refusal_of(case)
        assert error.message == case["says"], case["line"]
        assert error.hint, case["line"]
        assert error.hint == case.get("hint", error.hint), case["line"]


def test_the_table_is_as_long_as_it_must_be() -> None:
    assert len(_ALL) >= 80


def test_every_difference_is_in_the_docs() -> None:
    text = _DOCS.read_text(encoding="utf-8").lower()
    missing = {case["differs"] for case in _ALL if "differs" in case and f"**{case['differs'].lower()}**" not in text}
    assert not missing


def test_every_option_of_mason_is_in_the_table() -> None:
    from windlass.compat.mason.flags import FLAGS, RETIRED

    typed = {word.partition("=")[0] for case in _ALL for word in shlex.split(case["line"])}
    assert not {flag.name for flag in (*FLAGS, *RETIRED)} - typed
