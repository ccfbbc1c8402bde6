"""Stop texts: found in any place between tokens, at the same token as a search of the whole text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from windlass.post.rollout.stops import StopTexts, TextPieces

BYTES = list(range(256))
WORDS = ["a", "b", "ab", "ba", "\n", " a", "####", "# ", "##", "é", "", "b\n#"]


def words(ids: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in ids)


def stripped(ids: Sequence[int]) -> str:
    """A tokenizer that drops the first space of a text, as sentencepiece does."""
    return words(ids).removeprefix(" ")


def utf8(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def first_stop(decode: object, ids: Sequence[int], texts: Sequence[str]) -> int | None:
    assert callable(decode)
    return next((n for n in range(1, len(ids) + 1) if any(text in decode(ids[:n]) for text in texts)), None)


def found_at(decode: object, ids: Sequence[int], texts: Sequence[str]) -> int | None:
    assert callable(decode)
    stops = StopTexts(texts, TextPieces(decode))
    return next((n for n in range(1, len(ids) + 1) if stops.found(list(ids[:n]))), None)


@pytest.mark.parametrize("decode", [words, stripped], ids=["words", "stripped"])
@pytest.mark.parametrize(
    "texts", [("abab",), ("\n####",), ("a a", "b# b"), ("é",), ("b ",), ("####ab####ba####",)], ids=str
)
def test_a_text_is_found_at_the_token_that_completes_it(decode: object, texts: tuple[str, ...]) -> None:
    rng = random.Random(0)
    for _ in range(60):
        ids = [rng.randrange(len(WORDS)) for _ in range(rng.randrange(1, 120))]
        assert found_at(decode, ids, texts) == first_stop(decode, ids, texts)


def test_a_character_of_several_bytes_is_one_text() -> None:
    rng = random.Random(1)
    for _ in range(40):
        text = "".join(rng.choice("aé€😀b ") for _ in range(60))
        ids = list(text.encode())
        for stop in ("€", "é😀", "b a"):
            assert found_at(utf8, ids, (stop,)) == first_stop(utf8, ids, (stop,))


def test_a_long_sample_is_not_decoded_again_and_again() -> None:
    decoded: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return words(ids)

    stops, ids = StopTexts(("a\n#",), TextPieces(decode)), []
    for _ in range(4000):
        ids.append(7)  # `# `, which may end the text
        assert not stops.found(ids)
    assert max(decoded) < 100
