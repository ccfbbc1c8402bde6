from __future__ import annotations

import pytest

from windlass.compat.spec.unsupported_settings import LEAVING, check_export
from windlass.compat.spec.writing import from_experiment
from windlass.config.loading import load_config
from windlass.core.errors import SpecError
from windlass.plan.capabilities import LOCAL_RULES
from windlass.spec import Experiment


def load(text: str) -> Experiment:
    return load_config(Experiment, text, source="x").value


def test_every_setting_of_the_file_is_judged() -> None:
    assert set(LEAVING) == set(LOCAL_RULES)


def test_what_only_windlass_does_is_named() -> None:
    text = "{name: x, code: src, env: {image: i}, tasks: {main: {run: f, grace: 5s}}, limit: {jobs: 3}}"
    notes = check_export(load(text))
    assert [note.split()[0].rstrip(":") for note in notes] == ["code", "tasks.main.grace", "limit.jobs"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{name: x, env: {uv: .}, run: f}", "env.uv"),
        ("{name: x, run: f}", "no image"),
        ("{name: x, env: {image: Dockerfile}, run: f}", "env.image"),
        ("{name: x, env: {image: i}, tasks: {t: {run: f, cluster: torchrun}}}", "tasks.t.cluster"),
        ("{name: x, env: {image: i}, tasks: {t: {run: f, total_gpus: 8}}}", "tasks.t.total_gpus"),
        ("{name: x, env: {image: i, secrets: {name: A, as: file}}, run: f}", "env.secrets"),
    ],
)
def test_what_would_be_another_experiment_is_refused(text: str, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_export(load(text))
    assert path in str(caught.value)


def test_parameters_are_filled_in() -> None:
    text = "{name: x, env: {image: i, vars: {A: '${params.a}'}}, params: {a: 3, b: p q}, run: 'f ${params.b} $${H}'}"
    task = from_experiment(load(text))["tasks"][0]
    assert task["command"] == ["/bin/sh", "-c", "f 'p q' ${H}"]
    assert task["envVars"] == [{"name": "A", "value": "3"}]


@pytest.mark.parametrize("token", ["${out}", "${rank}", "${params.none}", "${open"])
def test_tokens_that_only_a_run_has(token: str) -> None:
    with pytest.raises(SpecError):
        from_experiment(load(f"{{name: x, env: {{image: i}}, run: 'f {token}'}}"))


def test_an_order_of_tasks_becomes_mounted_results() -> None:
    spec = from_experiment(load("{name: x, env: {image: i}, tasks: {a: {run: f}, b: {run: g, after: a}}}"))
    assert spec["tasks"][1]["datasets"] == [{"mountPath": "/results-of/a", "source": {"result": "a"}}]


def test_what_is_kept_and_contradicts_is_named() -> None:
    kept = "{timeout: 60m, envVars: [{name: A, value: 8}], replicas: 1}"
    text = "{name: x, env: {image: i, vars: {A: '4'}}, limit: {time: 2h}, tasks: {t: {run: f, beaker: KEPT}}}"
    notes = check_export(load(text.replace("KEPT", kept)))
    assert [note.partition("=")[0] for note in notes] == ["tasks.t.beaker.timeout", "tasks.t.beaker.envVars.0"]
    assert not check_export(load(text.replace("KEPT", kept).replace("2h", "1h").replace("'4'", "'8'")))
