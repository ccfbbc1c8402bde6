"""Verifiers on real and hostile answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.post.gsm8k import rows_of_gsm8k
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.post.rewards.protocol import Answer
from windlass.post.rewards.registry import FunctionVerifier, find_verifier
from windlass.post.rewards.text import last_number


def answer(text: str) -> Answer:
    return Answer(text=text, num_tokens=len(text), is_complete=True)


@pytest.mark.parametrize(
    ("name", "text", "truth", "value"),
    [
        ("gsm8k", "so 3 + 4 = 7\n#### 7", "#### 7", 1.0),
        ("gsm8k", "the answer is 1,000.", "reasons\n#### 1000", 1.0),
        ("gsm8k", "#### 7.0 apples, not 8", "#### 7", 1.0),
        ("gsm8k", "#### -7", "#### 7", 0.0),
        ("gsm8k", "no idea", "#### 7", 0.0),
        ("gsm8k", "7\n####", "#### 7", 0.0),
        ("gsm8k", "9" * 5000, "#### 7", 0.0),
        ("exact", " Paris\n", "Paris", 1.0),
        ("exact", "paris", "Paris", 0.0),
        ("f1", "The cat, a dog", "cat dog bird", 0.8),
        ("f1", "", "cat", 0.0),
        ("f1", "the", "a", 1.0),
    ],
)
def test_rewards(name: str, text: str, truth: str, value: float) -> None:
    assert find_verifier(name).score(answer(text), truth).value == pytest.approx(value)


@pytest.mark.parametrize(("name", "truth"), [("gsm8k", "no number"), ("gsm8k", None), ("exact", 7), ("f1", ["a"])])
def test_an_unusable_ground_truth_is_no_reward_of_zero(name: str, truth: object) -> None:
    score = find_verifier(name).score(answer("7"), truth)
    assert score.value is None
    assert "ground truth" in score.error


def test_errors_of_own_code_are_counted_and_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "def half(answer, truth):\n    return 0.5\n\ndef bad(answer, truth):\n    return {}[truth]\n\n"
        "def endless(answer, truth):\n    return float('nan')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert find_verifier("mine.py:half").score(answer("x"), "y").value == 0.5
    assert find_verifier("mine.py:bad").score(answer("x"), "y").error == "KeyError: 'y'"
    assert find_verifier("mine.py:endless").score(answer("x"), "y").error == "the reward is nan"
    assert find_verifier("mine.py:half").version != find_verifier("mine.py:bad").version


@pytest.mark.parametrize(
    ("name", "settings", "text", "value"),
    [
        (
            "format",
            {"regex": r"<think>.*</think>\s*<answer>.+</answer>"},
            "<think>a\nb</think>\n<answer>4</answer>\n",
            1.0,
        ),
        ("format", {"regex": r"<answer>.+</answer>"}, "so <answer>4</answer>", 0.0),
        ("length", {"low": 4, "high": 8}, "abcd", 1.0),
        ("length", {"low": 4, "high": 8}, "abcdef", 0.5),
        ("length", {"low": 4, "high": 8}, "abcdefghi", 0.0),
    ],
)
def test_rewards_with_settings(name: str, settings: dict[str, object], text: str, value: float) -> None:
    verifier = find_verifier(name, settings)
    assert verifier.score(answer(text), None).value == value
    assert (
        verifier.version
        != find_verifier(name, {**settings, **({"high": 9} if name == "length" else {"regex": ""})}).version
    )


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="regex"):
        find_verifier("format", {"regexp": "a"})
    with pytest.raises(UsageError, match="low"):
        find_verifier("length", {"high": 3})
    assert "low < high" in find_verifier("length", {"low": 3, "high": 3}).score(answer("a"), None).error


def test_math_names_the_package_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(PreconditionError) as caught:
        find_verifier("math").load()
    assert caught.value.code == "extra-missing"
    assert "math-verify" in caught.value.message
    assert caught.value.hint == "`pip install 'windlass[post]'`"
    assert find_verifier("math").score(answer("$7$"), "7").value is None


@pytest.fixture
def maths() -> FunctionVerifier:
    pytest.importorskip("math_verify", reason="needs math-verify: run the tests with `make test`")
    verifier = find_verifier("math")
    verifier.load()
    return verifier


@pytest.mark.parametrize(
    ("text", "truth", "value"),
    [
        ("The probability is $\\boxed{\\frac{1}{2}}$.", "0.5", 1.0),
        ("$\\boxed{2\\sqrt{3}}$", "\\sqrt{12}", 1.0),
        ("We get $\\boxed{x^2+2x+1}$.", "(x+1)^2", 1.0),
        ("The set is $\\{1,2,3\\}$", "\\{3,2,1\\}", 1.0),
        ("$\\boxed{[0, 1)}$", "[0,1)", 1.0),
        ("\\boxed{50\\%}", "0.5", 1.0),
        ("\\boxed{(1, 2)}", "(1,2)", 1.0),
        ("\\boxed{\\text{B}}", "B", 1.0),
        ("It costs 1,200 dollars.", "1200", 1.0),
        ("She makes 9 * 2 = $18.\n#### 18", "18", 1.0),
        ("$\\boxed{\\frac{1}{3}}$", "0.5", 0.0),
        ("$\\boxed{(2, 1)}$", "(1,2)", 0.0),
        ("#### 17", "18", 0.0),
        ("I do not know.", "7", 0.0),
        ("", "7", 0.0),
    ],
)
def test_mathematical_answers(maths: FunctionVerifier, text: str, truth: str, value: float) -> None:
    assert maths.score(answer(text), truth).value == value


def test_a_ground_truth_without_an_expression_is_no_reward_of_zero(maths: FunctionVerifier) -> None:
    score = maths.score(answer("7"), "")
    assert score.value is None
    assert "no expression" in score.error


def test_where_verifiers_run() -> None:
    assert find_verifier("gsm8k").isolation == "inline"
    assert find_verifier("format", {"regex": "a"}).isolation == "process"


def test_an_unknown_name_gets_a_near_one() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_verifier("gsm8")
    assert "did you mean `gsm8k`" in caught.value.hint


ROWS = (
    {"answer": "He has 3*4=<<3*4=12>>12 apples.\n#### 12"},
    {"answer": "1,200+300=<<1200+300=1500>>1,500 dollars\n#### 1,500"},
    {"answer": "It falls by 7 degrees.\n#### -7"},
    {"answer": "Each costs $2.50.\n#### 2.5"},
)
"""Rows in the form of GSM8K, where its files are not at hand."""


def test_all_answers_of_gsm8k_are_read() -> None:
    rows = rows_of_gsm8k()
    verifier = find_verifier("gsm8k")
    for row in (*ROWS, *rows):
        assert last_number(row["answer"]) is not None
        assert verifier.score(answer(row["answer"]), row["answer"]).value == 1.0


def test_math_agrees_on_gsm8k(maths: FunctionVerifier) -> None:
    rows = [*ROWS, *rows_of_gsm8k()[::20]]
    num_right = 0.0
    for row in rows:
        wanted = last_number(row["answer"])
        assert wanted is not None
        num_right += maths.score(answer(row["answer"]), f"{wanted}").value or 0.0
        assert maths.score(answer(row["answer"]), f"{wanted + 1000}").value == 0.0
    assert num_right >= 0.98 * len(rows)  # it reads `8%` before the mark rather than `#### 8`
