from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compat.spec.generated import JSON, specs
from tests.plan.sample_beaker import beaker_site
from windlass.compat.spec.importing import to_experiment
from windlass.compat.spec.reading import sent
from windlass.compat.spec.unsupported_settings import check_export
from windlass.compat.spec.writing import from_experiment
from windlass.config.path import split_path
from windlass.core.errors import SpecError
from windlass.plan.beaker.keys import kept_keys
from windlass.plan.beaker.patch import divided, mounts_of_storage
from windlass.plan.beaker.queue_target import beaker_target_of
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.site import LOCAL

SETTINGS = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def broken(draw: st.DrawFn) -> Any:
    """A spec in which something else stands somewhere."""
    spec = draw(specs())
    here: Any = spec
    for _ in range(draw(st.integers(0, 4))):
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if not isinstance(here[key], dict | list) or draw(st.booleans()):
            here[key] = draw(JSON)
            break
        here = here[key]
    return spec


@SETTINGS
@given(broken())
def test_what_is_wrong_is_refused_and_nothing_else_happens(spec: Any) -> None:
    try:
        experiment = to_experiment(spec, name="x")
    except SpecError:
        pass  # every other error fails the test
    else:
        assert sent(from_experiment(experiment)) == sent(spec)


@SETTINGS
@given(specs())
def test_every_place_has_an_answer_to_every_key(spec: dict[str, Any]) -> None:
    experiment = to_experiment(spec, name="x")
    site = beaker_site()
    places = [(LOCAL, None), (site, beaker_target_of(experiment, site, Diagnostics({})))]
    for place, target in places:
        assert all(key.reason and key.hint for key in kept_keys(experiment, place, target))
    judged = {split_path(key.path)[:-1] for key in kept_keys(experiment, LOCAL)} | {
        split_path(key.path) for key in kept_keys(experiment, LOCAL)
    }
    for name, task in experiment.tasks.items():
        said = {key for key, value in task.beaker.items() if value not in ([], {})}
        assert {("tasks", name, "beaker", key) for key in said} <= {path[:4] for path in judged}
    for task in experiment.tasks.values():
        divided(task.beaker, site.profile.beaker.clusters if site.profile else ())
    mounts_of_storage(experiment)
    check_export(experiment)
