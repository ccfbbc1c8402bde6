from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import yaml

from windlass.compat.spec.importing import to_experiment
from windlass.compat.spec.reading import read_spec, sent
from windlass.compat.spec.writing import from_experiment
from windlass.config.emit import to_yaml, yaml_of_data
from windlass.config.loading import load_config
from windlass.core.errors import NotFoundError, SpecError
from windlass.spec import Experiment

FILES = sorted((Path(__file__).parent / "files").iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_come_back_as_beakers_client_reads_them(path: Path) -> None:
    experiment = to_experiment(read_spec(path).data, name="x")
    text = to_yaml(experiment)
    again = from_experiment(load_config(Experiment, text, source="x").value)
    read = (json.loads if path.suffix == ".json" else yaml.safe_load)(path.read_text())  # as Beaker's client does
    assert yaml.safe_load(yaml_of_data(again)) == read


@pytest.mark.parametrize("path", [path for path in FILES if path.name in ("multi-node.yaml", "sent.json")])
def test_what_is_sent_is_what_the_client_would_send(path: Path) -> None:
    from beaker import types

    data = read_spec(path).data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = types.BeakerExperimentSpec.from_json(data)
    task = sent(data)["tasks"][0]
    assert task.get("timeout") == theirs.tasks[0].timeout
    assert task.get("synchronizedStartTimeout") == theirs.tasks[0].synchronized_start_timeout
    assert (task.get("context") or {}).get("minRuntime") == theirs.tasks[0].context.min_runtime
    assert task["command"] == theirs.tasks[0].command


def read(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    return [f"{problem.place.line if problem.place else 0} {problem.code}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["0 no-tasks"]),
        ("[]", ["1 beaker-refused"]),
        ("version: v3\ntasks: 1", ["1 beaker-refused"]),
        ("version: v2\n---\nversion: v2", ["2 yaml-syntax"]),
        ("version: v2\ntasks: [", ["3 yaml-syntax"]),
        ('{"version": "v2", "tasks": [', ["2 yaml-syntax"]),
        ("version: v2", ["1 beaker-refused"]),
    ],
)
def test_what_is_no_spec_is_refused_with_its_line(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert read(tmp_path, text) == expected


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_spec(tmp_path / "none.yaml")


def test_a_bare_number_that_is_hardly_meant_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    task = "{image: {docker: x}, command: [x], timeout: 3600, context: {minRuntime: 0}}"
    other = "{image: {docker: x}, command: [x], timeout: 3600000000000, context: {minRuntime: 60}}"
    path.write_text(f"tasks: [{task}, {other}]")
    assert read_spec(path).notes == (
        "tasks.0.timeout is 3600 nanoseconds, because it has no unit; for seconds write `3600s`",
        "tasks.1.context.minRuntime is 60 nanoseconds, because it has no unit; for seconds write `60s`",
    )


def test_notes_name_keys_that_beaker_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("tasks: [{image: {docker: x}, comand: [a], resources: {gpuCont: 1}}]\nowner: me")
    notes = read_spec(path).notes
    assert "tasks.0.comand is not a key of Beaker's spec v2 and is kept; did you mean `command`?" in notes
    assert [note.partition(" ")[0] for note in notes] == ["owner", "tasks.0.comand", "tasks.0.resources.gpuCont"]


def test_what_is_sent() -> None:
    task = {
        "image": {"docker": "x"},
        "command": ["a", 1, 0.5, True],
        "envVars": [{"name": "A", "value": True}, {"name": "B", "value": 2}],
        "timeout": "90",
        "context": {"preemptible": True, "minRuntime": "1h30m"},
    }
    made = sent({"tasks": [task]})["tasks"][0]
    assert made["command"] == ["a", "1", "0.5", "True"]
    assert [each["value"] for each in made["envVars"]] == ["true", "2"]
    assert made["timeout"] == 90 * 10**9
    assert made["context"] == {"minRuntime": 5400 * 10**9}
    assert task["timeout"] == "90"
