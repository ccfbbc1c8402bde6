from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Windlass
from windlass.runs.home import Home
from windlass.runs.store import create

SPEC = """\
version: v2
budget: lab/money
tasks:
  - name: train
    image: {beaker: me/img}
    command: [python, train.py, --lr, 1e-4]
    envVars: [{name: HF_TOKEN, secret: me_HF_TOKEN}]
    timeout: 90m
    context: {priority: high}
    owner: null
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "My Spec.yaml"
    path.write_text(SPEC)
    return path


def test_a_spec_comes_in_and_goes_out_the_same(windlass: Windlass, spec: Path) -> None:
    brought = windlass("beaker", "import", str(spec))
    assert brought.code == 0
    assert brought.out.startswith("# Imported from 'My Spec.yaml', a Beaker spec; ")
    assert "name: my-spec\n" in brought.out
    assert "note: tasks.0.owner is not a key of Beaker's spec v2 and is kept" in brought.err
    assert "kept for Beaker only: beaker.budget, tasks.train.beaker.timeout, tasks.train.beaker.owner" in brought.err
    Path("e.yaml").write_text(brought.out)
    taken = windlass("beaker", "export", "e.yaml")
    assert (taken.code, taken.err) == (0, "")
    assert yaml.safe_load(taken.out) == yaml.safe_load(SPEC)


def test_files_are_written_and_never_over_another(windlass: Windlass, spec: Path) -> None:
    assert windlass("beaker", "import", str(spec), "-o", "e.yaml", "--name", "abl").err.startswith("wrote e.yaml\n")
    before = Path("e.yaml").read_text()
    assert "name: abl\n" in before
    again = windlass("beaker", "import", str(spec), "-o", "e.yaml")
    assert (again.code, Path("e.yaml").read_text()) == (8, before)
    assert "[already-exists]" in again.err
    assert windlass("beaker", "export", "e.yaml", "-o", "spec.yaml").err == "wrote spec.yaml\n"
    assert windlass("beaker", "export", "e.yaml", "-o", "none/spec.yaml").code == 8


def test_what_would_be_sent(windlass: Windlass, spec: Path) -> None:
    windlass("beaker", "import", str(spec), "-o", "e.yaml")
    result = windlass("beaker", "export", "e.yaml", "limit.time=2h", "~tasks.train.beaker.timeout", "--json")
    (task,) = json.loads(result.out)["tasks"]
    assert task["timeout"] == 7200 * 10**9
    assert task["command"][-1] == "1e-4"


def test_what_stays_behind_is_named_and_what_changes_the_work_is_refused(windlass: Windlass, spec: Path) -> None:
    Path("e.yaml").write_text("{name: x, env: {image: i}, run: f, limit: {jobs: 2}}")
    assert windlass("beaker", "export", "e.yaml").err == "note: limit.jobs: Beaker has no such limit\n"
    refused = windlass("beaker", "export", "e.yaml", "tasks.main.cluster=torchrun", "env={uv: .}")
    assert (refused.code, refused.out) == (3, "")
    assert refused.err.count("[unsupported-setting]") == 3


def test_every_problem_of_a_spec_is_said_with_its_line(windlass: Windlass, spec: Path) -> None:
    spec.write_text("version: v2\ntasks:\n- image: {}\n  replicas: 0\n")
    result = windlass("beaker", "import", str(spec))
    assert (result.code, result.out) == (3, "")
    assert result.err.count("[beaker-refused]") == 2
    assert "My Spec.yaml:4:13" in result.err


def test_a_run_is_exported_as_it_was_planned(windlass: Windlass, home: Path) -> None:
    experiment = {"name": "x", "env": {"image": "i"}, "params": {"lr": 1}, "run": "f ${params.lr}"}
    create(Home(home), "x-0123abcd", {"plan.json": json.dumps({"experiment": experiment}).encode()})
    for ref in ("x-0123abcd", "last"):
        assert yaml.safe_load(windlass("beaker", "export", ref).out)["tasks"][0]["command"][-1] == "f 1"
    assert "f 2" in windlass("beaker", "export", "last", "params.lr=2").out


def test_a_run_that_is_none(windlass: Windlass, spec: Path) -> None:
    assert windlass("beaker", "export", "nothing").code == 4
