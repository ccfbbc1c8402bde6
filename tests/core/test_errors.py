from __future__ import annotations

import pickle
import traceback

import pytest

from windlass.core import errors
from windlass.core.errors import Problem, SourcePlace, SpecError, UsageError, WindlassError

EXIT_CODES = {
    "WindlassError": (1, "error"),
    "UsageError": (2, "usage"),
    "SpecError": (3, "spec-refused"),
    "NotFoundError": (4, "not-found"),
    "AccessError": (5, "not-allowed"),
    "UnreachableError": (6, "unreachable"),
    "WaitTimeoutError": (7, "timed-out"),
    "PreconditionError": (8, "precondition"),
    "InternalError": (70, "internal"),
}


def test_every_kind_has_its_exit_code() -> None:
    kinds = {name: getattr(errors, name) for name in errors.__all__ if name.endswith("Error")}
    assert {name: (kind.exit_code, kind.default_code) for name, kind in kinds.items()} == EXIT_CODES
    assert all(issubclass(kind, WindlassError) for kind in kinds.values())


def test_an_error_as_it_is_shown() -> None:
    error = UsageError("no run `x`", hint="`windlass ps` lists them", code="run-not-found")
    assert str(error) == "no run `x`"
    assert error.render() == (
        "error: no run `x`                                             [run-not-found]\nhint: `windlass ps` lists them"
    )


def test_an_error_without_hint_and_code() -> None:
    assert UsageError("so").render().split() == ["error:", "so", "[usage]"]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (SourcePlace("exp.yaml"), "exp.yaml"),
        (SourcePlace("exp.yaml", 24, 5), "exp.yaml:24:5"),
        (SourcePlace("exp.yaml", 24, 5, "nodez: 10"), "exp.yaml:24:5   nodez: 10"),
        (SourcePlace("--on", excerpt="labb"), "--on   labb"),
    ],
)
def test_places(place: SourcePlace, text: str) -> None:
    assert str(place) == text


def test_a_refused_experiment_holds_every_problem() -> None:
    first = Problem("unknown key `nodez`", "unknown-key", SourcePlace("e.yaml", 2, 1), "did you mean `nodes`?")
    second = Problem("missing key `run`", "missing-key")
    error = SpecError([first, second])
    assert (error.message, error.code, error.hint, error.place) == (
        first.message,
        "unknown-key",
        first.hint,
        first.place,
    )
    assert error.problems == (first, second)
    assert error.render() == f"{first}\n{second}"
    assert error.exit_code == 3


def test_a_refused_experiment_without_problems_still_says_something() -> None:
    error = SpecError([])
    assert error.message == "the experiment is refused"
    assert [problem.code for problem in error.problems] == ["spec-refused"]


def test_a_refusal_as_python_shows_it() -> None:
    first = Problem(
        "unknown key `nodez` in tasks.t", "unknown-key", SourcePlace("e.yaml", 3, 5, "nodez: 1"), "did you mean?"
    )
    second = Problem("missing key `run`", "missing-key")
    assert str(SpecError([first, second])) == (
        "unknown key `nodez` in tasks.t (e.yaml:3:5   nodez: 1); did you mean?\nmissing key `run`"
    )


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_traceback_shows_place_hint_and_code() -> None:
    error = UsageError(
        "no run `x`", hint="`windlass ps` lists them", code="run-not-found", place=SourcePlace("e.yaml", 2, 1)
    )
    assert shown(error) == (
        "windlass.core.errors.UsageError: no run `x`\ne.yaml:2:1\nhint: `windlass ps` lists them\n"
        "[run-not-found]: `windlass explain run-not-found`\n"
    )
    assert shown(pickle.loads(pickle.dumps(error))) == shown(error)


def test_a_traceback_of_a_refused_experiment_shows_every_code() -> None:
    first = Problem("unknown key `nodez`", "unknown-key", hint="did you mean `nodes`?")
    error = SpecError([first, Problem("missing key `run`", "missing-key"), Problem("missing key `x`", "missing-key")])
    assert shown(error).endswith(
        "unknown key `nodez`; did you mean `nodes`?\nmissing key `run`\nmissing key `x`\n"
        "[unknown-key]: `windlass explain unknown-key`\n[missing-key]: `windlass explain missing-key`\n"
    )
    assert shown(pickle.loads(pickle.dumps(error))) == shown(error)
