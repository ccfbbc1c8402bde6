from __future__ import annotations

import pytest

from tests.plan.sample import plan_of
from windlass.core.errors import Problem, SpecError

TEXT = """
name: x
params: {lr: 1, seed: 2, model: {dim: 8, depth: 2}, tag: a}
env: {vars: {TAG: "${params.tag}"}}
tasks: {t: {run: "f ${params.lr} ${params.model.dim}", vars: {D: "${params.model.depth}"}}}
"""


def refused(*overrides: str) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        plan_of(TEXT, overrides=overrides)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("override", "path", "hint"),
    [
        ("params.lrr=3", "params.lrr", "did you mean `params.lr`?"),
        ("--params.lrr=3", "params.lrr", "did you mean `params.lr`?"),
        ("params.model.dimm=3", "params.model.dimm", "did you mean `params.model.dim`?"),
        (
            "params.batch_size=3",
            "params.batch_size",
            "use it in a command as ${params.batch_size}, or leave the override out",
        ),
        ("params.seed=3", "params.seed", "use it in a command as ${params.seed}, or leave the override out"),
    ],
)
def test_an_override_without_effect_is_refused(override: str, path: str, hint: str) -> None:
    (problem,) = refused(override)
    assert problem.message == f"no command or variable uses `{path}`, so this override has no effect"
    assert (problem.code, problem.hint) == ("unknown-name", hint)
    assert str(problem.place) == f"command line   {override}"


@pytest.mark.parametrize(
    "override",
    ["params.lr=3", "params.model.dim=4", "params.model={dim: 4, depth: 1}", "params.tag=b", "~params.seed"],
)
def test_an_override_with_an_effect_is_taken(override: str) -> None:
    assert plan_of(TEXT, overrides=[override]).overrides == (override,)


def test_parameters_of_the_file_that_nothing_uses_are_noted() -> None:
    assert plan_of(TEXT).notes == ("params.seed: no command or variable uses it",)
    assert plan_of(TEXT, overrides=["~params.seed"]).notes == ()


def test_a_misspelt_token_is_the_only_problem() -> None:
    with pytest.raises(SpecError) as caught:
        plan_of(TEXT.replace("params.lr}", "params.lrr}"), overrides=["params.lr=3"])
    assert [problem.code for problem in caught.value.problems] == ["unknown-token"]
