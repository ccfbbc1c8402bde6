"""The instructions of IFEval: an answer that follows each one, and one that does not."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from windlass.post.rewards.ifeval import INSTRUCTIONS
from windlass.post.rewards.protocol import Answer, Score
from windlass.post.rewards.registry import find_verifier

CASES: list[tuple[str, Mapping[str, object], str, str]] = [
    ("keywords:existence", {"keywords": ["C++", "rain"]}, "Rain in c++.", "Rain in C."),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": "at least"}, "Sun and sun.", "Sunny."),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": "less than"}, "Sunny.", "Sun and sun."),
    ("keywords:forbidden_words", {"forbidden_words": ["rain"]}, "No raining.", "The Rain."),
    (
        "keywords:letter_frequency",
        {"letter": "q", "let_frequency": 2, "let_relation": "less than"},
        "Queen",
        "Queens quilt",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        'It is 3.5 km. He said "no!"',
        "One. Two? Three",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One\n***\nTwo", "One\n\nTwo"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\nOne\n***\nTwo\n***", "One ***\n*** Two"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "one, two three", "one two"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "well"},
        'First.\n\n"Well, then',
        "Well.\n\nFirst",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] at [address]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\np. s. more", "Bye. PS: more"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S. more", "Bye.\nP.S. more"),
    ("detectable_content:postscript", {"postscript_marker": "Note:"}, "Bye. note: more", "Bye."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n  - two", "* one\n**two**"),
    ("detectable_format:constrained_response", {}, "Well: My answer is maybe.", "Maybe."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* and *two*", "*one* and **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1\na\nSECTION 2\nb",
        "Section 1\na",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "<< >>\ntext"),
    ("combination:two_responses", {}, "One\n******\nTwo", "One\n******\nOne"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say why. "}, "say why. Because.", "Because. Say why."),
    ("startend:end_checker", {"end_phrase": "Any questions? "}, 'So. any questions?"', "Any questions? No."),
    ("startend:quotation", {}, '"All of it"', '"Some" of it'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "THIS is WELL-KNOWN",
        "THIS is Known",
    ),
    ("change_case:english_capital", {}, "ALL 3!", "All 3!"),
    ("change_case:english_lowercase", {}, "all 3!", "All 3!"),
    ("punctuation:no_comma", {}, "one; two", "one, two"),
]


def score(text: str, truth: object) -> Score:
    return find_verifier("ifeval").score(Answer(text=text, num_tokens=len(text), is_complete=True), truth)


def truth_of(*instructions: tuple[str, Mapping[str, object] | None]) -> list[dict[str, object]]:
    return [{"instruction_id": [name for name, _ in instructions], "kwargs": [given for _, given in instructions]}]


@pytest.mark.parametrize(("name", "settings", "good", "bad"), CASES)
def test_an_instruction_is_followed_or_not(name: str, settings: Mapping[str, object], good: str, bad: str) -> None:
    truth = truth_of((name, {"language": None, **settings}))
    assert score(good, truth) == Score(value=1.0)
    assert score(bad, truth) == Score(value=0.0)
    assert score("", truth) == Score(value=0.0)


def test_every_instruction_has_a_case() -> None:
    assert {name for name, *_ in CASES} == set(INSTRUCTIONS)


def test_the_reward_is_the_share_that_is_followed_after_the_thoughts() -> None:
    truth = truth_of(("punctuation:no_comma", None), ("change_case:english_lowercase", {}))
    for form in (truth, json.dumps(truth), str(truth), [json.dumps(truth[0])], str([json.dumps(truth[0])])):
        assert score("<think>Well, A, B</think><answer>all is Good</answer>", form).value == 0.5


@pytest.mark.parametrize(
    ("truth", "error"),
    [
        (truth_of(("language:response_language", {"language": "fr"})), "`language:response_language` is not supported"),
        (truth_of(("punctuation:no_comma", {}), ("count:count_unique", {})), "`count:count_unique` is not supported"),
        (truth_of(("startend:end_checker", {"end_phrase": None})), "end_phrase"),
        (truth_of(("length_constraints:number_words", {"num_words": 3, "relation": "about"})), "unknown relation"),
        ([{"instruction_id": ["punctuation:no_comma"], "kwargs": []}], "1 instructions and 0 kwargs"),
        ("[]", "not a list of"),
        ("no list", "neither JSON nor Python"),
        (None, "not a list of"),
    ],
)
def test_what_cannot_be_checked_is_no_reward_of_zero(truth: object, error: str) -> None:
    found = score("text", truth)
    assert found.value is None
    assert error in found.error
