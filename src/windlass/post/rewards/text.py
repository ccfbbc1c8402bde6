"""Verifiers that compare text.

Each is a function from the answer's text and the ground truth to a reward; a `ValueError` means that the ground truth
cannot be used.
"""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal, InvalidOperation

from windlass.post.rewards.protocol import Answer

__all__ = ["exact", "f1", "format_match", "gsm8k", "last_number", "length"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_MARK = "####"


def gsm8k(answer: Answer, ground_truth: object) -> float:
    """Return 1 if the answer's final number equals the ground truth's, else 0.

    The final number is the first one after the last `####` or, without this mark, the last one of the text. Numbers are
    compared by value: `1,000`, `1000` and `1000.0` are equal. Source: Cobbe et al. 2021, "Training verifiers to solve math
    word problems", appendix on data format.
    """
    wanted = last_number(str(ground_truth))
    if wanted is None:
        raise ValueError(f"the ground truth {str(ground_truth)[:80]!r} has no number")
    return float(last_number(answer.text) == wanted)


def last_number(text: str) -> Decimal | None:
    """Return the first number after the last `####` or, without the mark, the last number; None if there is none."""
    _, mark, tail = text.rpartition(_MARK)
    found = _NUMBER.findall(tail)
    if not found:
        return None
    try:
        return Decimal(found[0 if mark else -1].replace(",", ""))
    except InvalidOperation:
        return None


def exact(answer: Answer, ground_truth: object) -> float:
    """Return 1 if the answer is the ground truth, apart from white space around both."""
    return float(answer.text.strip() == _text(ground_truth).strip())


def f1(answer: Answer, ground_truth: object) -> float:
    """Return the harmonic mean of precision and recall over words, without articles and punctuation.

    Source: Rajpurkar et al. 2016, "SQuAD", section 6.1, and its evaluation script.
    """
    mine, theirs = _words(answer.text), _words(_text(ground_truth))
    common = sum((Counter(mine) & Counter(theirs)).values())
    if not mine or not theirs:
        return float(mine == theirs)
    return 2.0 * common / (len(mine) + len(theirs))


def format_match(answer: Answer, ground_truth: object, *, regex: str) -> float:
    """Return 1 if the whole answer, apart from white space around it, matches a regular expression; `.` matches newlines."""
    return float(re.fullmatch(regex, answer.text.strip(), re.DOTALL) is not None)


def length(answer: Answer, ground_truth: object, *, low: int, high: int) -> float:
    """Return 1 for at most `low` tokens, 0 from `high` tokens on, and linear values in between.

    Source: Yu et al. 2025, "DAPO", equation 13, whose values are these minus 1.
    """
    if not 0 <= low < high:
        raise ValueError(f"low is {low} and high is {high}: 0 <= low < high is required")
    return min(1.0, max(0.0, (high - answer.num_tokens) / (high - low)))


def _words(text: str) -> list[str]:
    plain = re.sub(r"[^\w\s]", "", text.lower())
    return [word for word in plain.split() if word not in ("a", "an", "the")]


def _text(ground_truth: object) -> str:
    if not isinstance(ground_truth, str):
        raise ValueError(f"the ground truth is {type(ground_truth).__name__}, not text")
    return ground_truth
