"""Verifier of instructions that a program can check: those of IFEval.

Source: Zhou et al. 2023, "Instruction-following evaluation for large language models", table 1, and the checks that the
paper publishes. Some use models of other packages there. Here sentences and words are split by a rule, and the language of
an answer is unknown: `language:response_language` is not supported, and text in capitals is not required to be English.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence

from windlass.core.json_text import decode_json
from windlass.post.rewards.protocol import Answer

__all__ = ["INSTRUCTIONS", "ifeval"]

_SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s|$)")
_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "less than": lambda number, bound: number < bound,
    "at least": lambda number, bound: number >= bound,
}
_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}


def ifeval(answer: Answer, ground_truth: object) -> float:
    """Return the share of the instructions that the answer follows; what stands before `</think>` is ignored.

    Args:
        answer: the answer.
        ground_truth: `[{"instruction_id": [ID, ...], "kwargs": [{...} or null, ...]}]`, or its text as JSON or Python, as in
            open-instruct's data.

    Raises:
        ValueError: the ground truth has another form, or an instruction that is not supported.
    """
    text = answer.text.rpartition("</think>")[2].replace("<answer>", "").replace("</answer>", "").strip()
    checks = [_check(name, settings) for name, settings in _instructions(ground_truth)]
    return sum(bool(text) and check(text) for check in checks) / len(checks)


def _instructions(ground_truth: object) -> list[tuple[str, Mapping[str, object]]]:
    data = ground_truth
    for _ in range(3):  # the text of a list, the list, and the text of its item
        if isinstance(data, str):
            data = _decoded(data)
        elif isinstance(data, Sequence) and data:
            data = data[0]
    names, settings = (data.get("instruction_id"), data.get("kwargs")) if isinstance(data, Mapping) else (None, None)
    if not isinstance(names, Sequence) or not isinstance(settings, Sequence) or not names:
        raise ValueError("the ground truth is not a list of {instruction_id, kwargs}")
    if len(names) != len(settings):
        raise ValueError(f"the ground truth has {len(names)} instructions and {len(settings)} kwargs")
    return [(str(name), dict(each or {})) for name, each in zip(names, settings, strict=True)]


def _decoded(text: str) -> object:
    try:
        return decode_json(text)
    except ValueError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError(f"the ground truth {text[:80]!r} is neither JSON nor Python") from None


def _check(name: str, settings: Mapping[str, object]) -> Callable[[str], bool]:
    function = INSTRUCTIONS.get(name)
    if function is None:
        raise ValueError(f"instruction `{name}` is not supported")
    given = {key: value for key, value in settings.items() if value is not None}
    try:
        inspect.signature(function).bind("", **given)
    except TypeError as error:
        raise ValueError(f"instruction `{name}`: {error}") from error
    return lambda text: function(text, **given)


def _compare(number: int, relation: str, bound: int) -> bool:
    if relation not in _RELATIONS:
        raise ValueError(f"unknown relation {relation!r}: it is one of {', '.join(_RELATIONS)}")
    return _RELATIONS[relation](number, bound)


def _occurrences(text: str, keyword: str) -> int:
    return len(re.findall(re.escape(keyword), text, re.IGNORECASE))


def _num_sentences(text: str) -> int:
    tail = _SENTENCE_END.split(text)[-1]
    return len(_SENTENCE_END.findall(text)) + bool(tail.strip())


def _parts(text: str, divider: str) -> list[str]:
    """Return the parts of a text; an empty first or last one is left out."""
    parts = [part.strip() for part in re.split(divider, text)]
    return parts[not parts[0] : len(parts) - (len(parts) > 1 and not parts[-1])]


def _paragraphs(text: str, *, num_paragraphs: int) -> bool:
    parts = _parts(text, r"\s?\*\*\*\s?")
    return all(parts) and len(parts) == num_paragraphs


def _first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    if len(parts) != num_paragraphs or not 1 <= nth_paragraph <= len(parts):
        return False
    word = re.split(r"[.,?!'\"]", parts[nth_paragraph - 1].split()[0].lstrip("'\""))[0]
    return word.lower() == first_word.lower()


def _postscript(text: str, *, postscript_marker: str) -> bool:
    marker = postscript_marker.strip()
    return re.search(_POSTSCRIPTS.get(marker, re.escape(marker.lower())), text.lower()) is not None


def _bullets(text: str, *, num_bullets: int) -> bool:
    return len(re.findall(r"^[^\S\n]*(?:\*[^*\n]|-)", text, re.MULTILINE)) == num_bullets


def _highlights(text: str, *, num_highlights: int) -> bool:
    once = [part for part in re.findall(r"\*[^\n*]*\*", text) if part.strip("*").strip()]
    twice = [part for part in re.findall(r"\*\*[^\n*]*\*\*", text) if part.strip("*").strip()]
    return len(once) + len(twice) >= num_highlights


def _sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def _is_json(text: str) -> bool:
    body = re.sub(r"^```(?:json)?|```$", "", text.strip(), flags=re.IGNORECASE).strip()
    try:
        decode_json(body)
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str) -> bool:
    return any(title.strip("<>").strip() for title in re.findall(r"<<[^\n]+>>", text))


def _two_responses(text: str) -> bool:
    parts = _parts(text, r"\*{6}")
    return all(parts) and len(parts) == 2 and parts[0] != parts[1]


def _letters(text: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _compare(text.lower().count(letter.lower()), let_relation, let_frequency)


def _capital_words(text: str, *, capital_frequency: int, capital_relation: str) -> bool:
    words = re.findall(r"\w+(?:[-']\w+)*", text)
    return _compare(sum(word.isupper() for word in words), capital_relation, capital_frequency)


INSTRUCTIONS: Mapping[str, Callable[..., bool]] = {
    "keywords:existence": lambda text, *, keywords: all(_occurrences(text, word) for word in keywords),
    "keywords:frequency": lambda text, *, keyword, frequency, relation: _compare(
        _occurrences(text, keyword.strip()), relation, frequency
    ),
    "keywords:forbidden_words": lambda text, *, forbidden_words: (
        not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)
    ),
    "keywords:letter_frequency": _letters,
    "length_constraints:number_sentences": lambda text, *, num_sentences, relation: _compare(
        _num_sentences(text), relation, num_sentences
    ),
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_words": lambda text, *, num_words, relation: _compare(
        len(re.findall(r"\w+", text)), relation, num_words
    ),
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": lambda text, *, num_placeholders: (
        len(re.findall(r"\[.*?\]", text)) >= num_placeholders
    ),
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": lambda text: any(option in text for option in _OPTIONS),
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _is_json,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda text, *, prompt_to_repeat: text.lower().startswith(
        prompt_to_repeat.strip().lower()
    ),
    "startend:end_checker": lambda text, *, end_phrase: text.strip('"').lower().endswith(end_phrase.strip().lower()),
    "startend:quotation": lambda text: len(text) > 1 and text[0] == text[-1] == '"',
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": str.isupper,
    "change_case:english_lowercase": str.islower,
    "punctuation:no_comma": lambda text: "," not in text,
}
"""Functions of an answer's text and the instruction's settings, by the paper's name of the instruction."""
