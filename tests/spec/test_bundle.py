from __future__ import annotations

import pytest

from windlass.config.encode import to_data
from windlass.config.loading import from_data, load_config
from windlass.core.errors import SpecError
from windlass.spec import Bundle, Experiment, Task

TEXT = "name: x\ntasks: {main: {run: f, bundles: {a: %s}}}\n"


def test_numbers_and_expressions() -> None:
    loaded = load_config(
        Experiment, TEXT % '{count: "${2 * nodes}", gpus: 1, strategy: strict-spread}', source="e.yaml"
    )
    bundle = loaded.value.tasks["main"].bundles["a"]
    assert bundle == Bundle(count="${2 * nodes}", gpus=1, strategy="strict-spread")
    assert from_data(Experiment, to_data(loaded.value)) == loaded.value


@pytest.mark.parametrize(
    ("bundle", "path", "message"),
    [
        ("{count: nodes, gpus: 1}", "count: nodes", "`nodes` is neither a whole number nor one expression"),
        ('{count: "${a} ${b}", gpus: 1}', "count:", "`${a} ${b}` is neither a whole number nor one expression"),
        ("{gpus: -1}", "gpus: -1", "-1 is too small"),
        ("{count: 2}", "a: {count: 2}", "the bundle requests neither GPUs nor CPUs"),
        ("{gpus: 1, strategy: strict}", "strategy: strict", "strict"),
    ],
)
def test_what_is_no_bundle(bundle: str, path: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_config(Experiment, TEXT % bundle, source="e.yaml")
    (problem,) = caught.value.problems
    assert message in problem.message
    assert problem.place is not None
    assert path in problem.place.excerpt


def test_nodes_are_one_unless_they_are_said() -> None:
    assert (Task(run="f").nodes, Task(run="f").num_nodes) == (None, 1)
    assert Task(run="f", nodes=3).num_nodes == 3
