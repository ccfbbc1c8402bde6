"""Verifiers on real and hostile answers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.post.rewards.protocol import Answer
from windlass.post.rewards.registry import find_verifier
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
    assert "math-verify" in caught.value.hint
    assert find_verifier("math").score(answer("$7$"), "7").value is None


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
    folder = os.environ.get("WINDLASS_TEST_DATA", "")
    files = [file for split in ("train", "test") if (file := Path(folder, f"gsm8k-{split}.jsonl")).is_file()]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()] if folder else []
    assert len(rows) in (0, 7473 + 1319)
    verifier = find_verifier("gsm8k")
    for row in (*ROWS, *rows):
        assert last_number(row["answer"]) is not None
        assert verifier.score(answer(row["answer"]), row["answer"]).value == 1.0
