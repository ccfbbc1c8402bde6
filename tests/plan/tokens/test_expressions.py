from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.sample import plan_of
from windlass.config.annotations import JsonValue
from windlass.core.errors import SpecError
from windlass.plan.tokens.expressions import ExpressionError, evaluate, is_expression, names_in

VALUES: dict[str, JsonValue] = {
    "nodes": 10,
    "num_gpus": 40,
    "params.tp": 2,
    "params.lr": 1e-6,
    "params.fast": True,
    "name": "grpo",
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("num_gpus - 2 * nodes", 20),
        ("repeat(2, nodes)", (2,) * 10),
        ("repeat(2, 0)", ()),
        ("(num_gpus - 2*nodes) // params.tp", 10),
        ("-7 // 2", -4),
        ("-7 % 4", 1),
        ("2 - -3", 5),
        ("10 - 3 - 2", 5),
        ("min(nodes, 4, 7)", 4),
        ("max(nodes, 4)", 10),
        ("ceil_div(7, 2)", 4),
        ("ceil_div(-7, 2)", -3),
        ("max(1, min(2, 3) * (4 - 1))", 6),
    ],
)
def test_it_calculates(text: str, value: object) -> None:
    assert is_expression(text)
    assert evaluate(text, VALUES) == value


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("nodez + 1", "unknown name `nodez`", "did you mean `nodes`?"),
        ("zzz + 1", "unknown name `zzz`", "the names are: nodes, num_gpus, params.tp"),
        ("repaet(2, nodes)", "unknown function `repaet`", "did you mean `repeat`?"),
        ("nodes / 2", "`/` may return a fraction", "write `//`, which rounds down, or `ceil_div(a, b)`"),
        ("nodes // (num_gpus - 40)", "`//` divides by 0", "check the shape"),
        ("nodes % 0", "`%` divides by 0", "check the shape"),
        ("params.lr * 2", "`params.lr` is `1e-06`, but expressions need whole numbers", "use the token alone"),
        ("params.fast + 1", "`params.fast` is `True`", "use the token alone"),
        ("name + 1", "`name` is `grpo`", "use the token alone"),
        ("(nodes", "a `)` is missing", "expressions may contain"),
        ("nodes +", "the expression ends too early", "expressions may contain"),
        ("* nodes", "`*` is unexpected", "expressions may contain"),
        ("nodes nodes + 1", "`nodes` is unexpected", "expressions may contain"),
        ("repeat(2)", "`repeat` takes 2 numbers, not 1", "write `repeat(a, b)`"),
        ("min()", "`min` has no arguments", "write `min(a, b)`"),
        ("min(1 2)", "a `,` is missing", "expressions may contain"),
        ("repeat(2, nodes) + 1", "`repeat` returns a list", "write it alone"),
        ("repeat(repeat(1, 2), 2)", "`repeat` returns a list", "write it alone"),
        ("-repeat(1, 2)", "`repeat` returns a list", "write it alone"),
        ("repeat(2, 0 - 1)", "`repeat` would return -1 numbers", "from 0 to 10000"),
        ("repeat(2, 99999999)", "`repeat` would return 99999999 numbers", "from 0 to 10000"),
        ("9999999999 * 9999999999", "too large", "in the code"),
        ("9" * 80 + " + 1", "too large", "in the code"),
        ("(" * 100 + "1" + ")" * 100, "more than 120 characters", "in the code"),
    ],
)
def test_it_says_what_is_wrong(text: str, message: str, hint: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, VALUES)
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "text", ["nodes", "params.lr", "1", "*", "-", "", "HOME:-x", "#x", "x%%.*", "a b c", "__import__('os')", "1.5 + 1"]
)
def test_what_is_no_expression(text: str) -> None:
    assert not is_expression(text)


def test_the_names_of_an_expression() -> None:
    assert names_in("repeat(params.n, min(nodes, 3)) + 2") == ("params.n", "nodes")


def expressions() -> st.SearchStrategy[str]:
    """Texts of the grammar without functions, which Python reads in the same way."""
    leaf = st.sampled_from(["nodes", "num_gpus", "0", "1", "7", "12"])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(" ".join),
            inner.map(lambda text: f"({text})"),
            inner.map(lambda text: f"-({text})"),
        ),
        max_leaves=8,
    )


@given(expressions())
def test_it_calculates_as_python_does(text: str) -> None:
    if len(text) > 120:
        return
    try:
        expected = eval(text, {"__builtins__": {}}, {"nodes": 10, "num_gpus": 40})
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="divides by 0"):
            evaluate(text, VALUES)
        return
    assert evaluate(text, VALUES) == expected


@given(st.text(alphabet="nodes12+-*/%(), .repeatmin", max_size=200))
def test_any_text_has_a_value_or_an_error_of_its_own(text: str) -> None:
    value: object = None
    with contextlib.suppress(ExpressionError):
        value = evaluate(text, VALUES)
    assert value is None or isinstance(value, int | tuple)


def shell(run: str, *overrides: str) -> str:
    text = "name: x\nparams: {tp: 2, my-size: 3, lr: 0.5, my: 5}\ntasks: {main: {nodes: 3, gpus: 2, run: %s}}\n"
    return plan_of(text % run, overrides=overrides).tasks[0].argv[-1]


def test_commands_follow_the_shape() -> None:
    assert shell('"f ${repeat(2, nodes)} --e ${num_gpus - nodes}"') == "f 2 2 2 --e 3"
    assert shell('"f ${repeat(2, nodes)} --e ${num_gpus - nodes}"', "tasks.main.nodes=2") == "f 2 2 --e 2"


def test_a_list_is_quoted_as_its_place_wants() -> None:
    assert shell("""'f "${repeat(2, nodes)}" ${repeat(1, 2)}'""") == 'f "2 2 2" 1 1'
    assert shell('[f, "${repeat(2, nodes)}"]') == "2 2 2"


def test_a_name_with_a_dash_is_a_name() -> None:
    assert shell('"f ${params.my-size} ${params.my - 1} ${params.my-nodes}"') == "f 3 4 2"


@pytest.mark.parametrize(
    ("run", "message", "hint"),
    [
        (
            "${nodez * 2}",
            "`${nodez * 2}` in tasks.main.run has no value: unknown name `nodez`",
            "did you mean `nodes`?",
        ),
        ("${nodez * 2}", "unknown name `nodez`", "a variable of your shell is written `$${...}`"),
        ("${rank + 1}", "calculates with `rank`, which is known only in the job", "use `${rank}` alone"),
        ("${params.my-sizes}", "unknown token `${params.my-sizes}`", "did you mean `${params.my-size}`?"),
        ("${params.lr * 2}", "`params.lr` is `0.5`", "use the token alone"),
        ("${x%%.*}", "unknown token `${x%%.*}`", "write `$${x%%.*}`"),
    ],
)
def test_a_command_that_has_no_value_is_refused(run: str, message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        shell(f'"f {run}"')
    (problem,) = caught.value.problems
    assert message in problem.message
    assert hint in problem.hint
    assert problem.place is not None
    assert problem.place.line == 3


def test_a_parameter_in_an_expression_is_used() -> None:
    text = 'name: x\nparams: {n: 2}\nrun: "f ${params.n * nodes}"\n'
    assert plan_of(text, overrides=["params.n=5"]).notes == ()
    assert plan_of(text, overrides=["params.n=5"]).tasks[0].argv[-1] == "f 5"


def test_variables_are_calculated_too() -> None:
    text = 'name: x\nenv: {vars: {A: "${nodes * 2}"}}\ntasks: {main: {run: f, vars: {B: "${max(nodes, 4)}"}}}\n'
    env = plan_of(text).tasks[0].env
    assert (env["A"], env["B"]) == ("2", "4")
