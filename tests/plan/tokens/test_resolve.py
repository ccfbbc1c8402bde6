from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import SpecError
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.tokens.resolve import Scope, fill_tokens, resolve_text, text_of_value
from windlass.plan.tokens.tokens import flat_params

_TEXTS = st.text(alphabet="ab $'\"\\#{}`;|&\n*", max_size=10)
_LATER = frozenset({"out", "rank", "data.x"})


def resolved(text: str, params: dict[str, object], *, is_shell: bool = False) -> str:
    diagnostics = Diagnostics()
    scope = Scope(task="t", values=flat_params(json.loads(json.dumps(params))), later=_LATER)
    result = resolve_text(text, scope, diagnostics, "tasks.t.run", is_shell=is_shell)
    diagnostics.raise_all()
    return result


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1e-6, "1e-06"),
        (0.5, "0.5"),
        (True, "true"),
        (False, "false"),
        ("a b", "a b"),
        ([1, "a b", True], "1 'a b' true"),
        ([], ""),
    ],
)
def test_values_as_text(value: float | bool | str | list[int | str | bool], text: str) -> None:
    assert text_of_value(value) == text  # type: ignore[arg-type]  # lists are invariant; the value is JSON


@given(_TEXTS)
def test_a_parameter_is_one_shell_word(value: str) -> None:
    line = fill_tokens(
        resolved("x --a=${params.v} '${params.v}' ${out}", {"v": value}, is_shell=True), {"out": "/o"}, is_shell=True
    )
    assert shlex.split(line) == ["x", f"--a={value}", value, "/o"]


@given(_TEXTS)
def test_a_parameter_is_raw_in_a_list(value: str) -> None:
    assert fill_tokens(resolved("--a=${params.v}/${out}", {"v": value}), {"out": "/o"}) == f"--a={value}//o"


@given(_TEXTS)
def test_a_path_is_one_shell_word(value: str) -> None:
    assert shlex.split(fill_tokens("x ${out}/a '${out}'", {"out": value}, is_shell=True)) == ["x", f"{value}/a", value]


@given(st.text(alphabet="ab $'\"\\#{};|&\n*", max_size=20).filter(lambda text: "${" not in text))
def test_text_without_tokens_is_untouched(text: str) -> None:
    assert resolved(text, {}, is_shell=True) == text
    assert fill_tokens(text, {}, is_shell=True) == text


@given(st.lists(_TEXTS, max_size=4))
def test_a_list_is_several_shell_words(values: list[str]) -> None:
    assert shlex.split(fill_tokens(resolved("x ${params.v}", {"v": values}, is_shell=True), {}, is_shell=True)) == [
        "x",
        *values,
    ]


def test_escapes_reach_the_job_as_literals() -> None:
    assert resolved("echo $${HOME:-x} ${rank}", {}, is_shell=True) == "echo $${HOME:-x} ${rank}"
    assert fill_tokens("echo $${HOME:-x} ${rank}", {}, is_shell=True) == "echo ${HOME:-x} ${rank}"


def test_nested_parameters() -> None:
    assert resolved("${params.model.dim}-${params.model.deep.er}", {"model": {"dim": 8, "deep": {"er": "x"}}}) == "8-x"


def test_all_problems_of_a_text_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        resolved("${params.a} ${nope} ${params.b}", {"a": None, "b": {}})
    assert [problem.code for problem in caught.value.problems] == [
        "invalid-expression",
        "unknown-token",
        "invalid-expression",
    ]


def test_a_dollar_before_a_token_is_refused() -> None:
    with pytest.raises(SpecError, match=r"a `\$` is directly before `\$\{out}` in tasks\.t\.run"):
        resolved("${params.a}${out}", {"a": "x$"})


def test_a_path_that_needs_quotes_where_none_can_stand() -> None:
    with pytest.raises(ValueError, match=r"needs quotes, .* there is a backquote or a here-document"):
        fill_tokens("x `ls ${out}`", {"out": "/a b"}, is_shell=True)
    assert fill_tokens("x `ls ${out}`", {"out": "/ab"}, is_shell=True) == "x `ls /ab`"


@pytest.mark.parametrize(
    ("token", "hint"),
    [
        ("data.corpus", "declare it: `data: {corpus: file:PATH}`"),
        ("params.momentum", "declare it: `params: {momentum: VALUE}`"),
        ("tasks.prepare.out", "declare it: `tasks: {prepare: {run: COMMAND}}`"),
    ],
)
def test_a_token_that_the_file_does_not_declare(token: str, hint: str) -> None:
    diagnostics = Diagnostics()
    resolve_text("f ${" + token + "}", Scope(task="t"), diagnostics, "tasks.t.run", is_shell=True)
    with pytest.raises(SpecError) as caught:
        diagnostics.raise_all()
    assert (caught.value.code, caught.value.hint) == ("unknown-token", hint)
