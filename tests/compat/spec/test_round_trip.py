from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings

from tests.compat.spec.generated import specs
from windlass import config
from windlass.compat.spec import from_experiment, to_experiment
from windlass.core.merge_patch import same
from windlass.spec import Experiment


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs())
def test_import_and_export_lose_nothing(spec: dict[str, Any]) -> None:
    before = json.dumps(spec)
    experiment = to_experiment(spec, name="brought")
    assert same(from_experiment(experiment), spec)
    assert json.dumps(spec) == before  # what was given is not changed
    text = config.to_yaml(experiment)
    loaded = config.load(Experiment, text, source="brought.yaml").value
    assert same(from_experiment(loaded), spec)
