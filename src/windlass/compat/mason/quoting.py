"""Conversion of a command's words to shell text as in mason, but without losing quotes.

mason joins words with blanks, so that the job's shell expands `$VAR` and interprets `&&`; this module does the same.
mason puts words with `{` or `</` in single quotes (later versions also tags such as `<think>` and `<|im_end|>`), and
loses the quotes of any other word with a blank; this module keeps such a word as one word.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from windlass.core.dataclass import dataclass

__all__ = ["join_words", "kept_whole"]

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_TAG = re.compile(r"(?:--?[\w-]+=)?(?:<[^<>]+>)+")
_BEFORE_COMMANDS = ("do", "then", "else", "!", "time", "(")
_OPERATORS = frozenset(("&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1", "&>", "2>/dev/null"))


@dataclass(frozen=True, slots=True)
class _At:
    """Word of a command with its position."""

    word: str
    before: str
    is_start: bool
    """True if a shell command begins with it."""
    is_last: bool


def join_words(words: Sequence[str]) -> str:
    """Return the text for `bash -c`; a command that is a single word is shell text already."""
    if len(words) == 1 and not _is_marked(words[0]):
        return words[0]
    return " ".join(_word(at) if at.word or _is_flag(at.before) else "" for at in _placed(words))


def kept_whole(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words containing blanks that are kept whole here but that mason would split."""
    if len(words) == 1:
        return ()
    return tuple(at.word for at in _placed(words) if not _is_marked(at.word) and _is_one(at) and at.word.split())


def _placed(words: Sequence[str]) -> Iterator[_At]:
    is_start = True
    for index, (before, word) in enumerate(zip(["", *words], words, strict=False)):
        yield _At(word, before, is_start, index == len(words) - 1)
        is_start = _ends_command(word) or (is_start and _ASSIGNMENT.fullmatch(word) is not None)


def _ends_command(word: str) -> bool:
    """Return True if a new shell command begins after this word."""
    return word.endswith((";", "&&", "||", "|", "&")) or word in _BEFORE_COMMANDS


def _word(at: _At) -> str:
    word = at.word
    if _is_marked(word):
        return word if _is_quoted(word) and '"' not in (word[0], word[-1]) else _single(word)
    if not _is_one(at):
        return word
    match = _ASSIGNMENT.fullmatch(word)
    return f"{match.group(1)}={_quote(match.group(2))}" if match else _quote(word)


def _is_one(at: _At) -> bool:
    """Return True if a word is meant as a single word and needs quotes to remain one."""
    word = at.word
    if word and not any(letter.isspace() for letter in word):
        return False
    if word and at.is_start and (at.is_last or not _ASSIGNMENT.fullmatch(word)):
        return False  # a whole command written as one word: no program has such a name
    return not _is_quoted(word) and (_is_flag(at.before) or not _is_script(word))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and "=" not in word


def _is_marked(word: str) -> bool:
    """Return True if mason itself quotes the word.

    It does so for JSON, and for tags, which a shell takes for redirections.
    """
    return "{" in word or "</" in word or _TAG.fullmatch(word) is not None


def _is_quoted(word: str) -> bool:
    """Return True if the word contains quotes that make the shell read it as one word."""
    if not word or ("'" not in word and '"' not in word):
        return False
    try:
        return len(shlex.split(word)) == 1 and (word[0] in "'\"" or "='" in word or '="' in word)
    except ValueError:
        return False


def _is_script(word: str) -> bool:
    """Return True if a word is part of a script, with shell operators between blanks."""
    parts = word.split()
    return any(part in _OPERATORS or part.endswith(";") for part in parts) or "$(" in word or "`" in word


def _quote(word: str) -> str:
    """Quote a word for the shell; variables in it are still expanded, as in words without blanks."""
    return '"' + re.sub(r'([\\"`])', r"\\\1", word) + '"' if "$" in word and "'" not in word else _single(word)


def _single(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"
