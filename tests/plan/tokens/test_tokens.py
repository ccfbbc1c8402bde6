from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.tokens.tokens import Token, hidden_token, parse_tokens, render_tokens

_NAMES = st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5}){0,2}", fullmatch=True)
_LITERALS = st.text(alphabet="a$ {}'\"\\\n", max_size=12)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", ()),
        ("plain $HOME $(date) $$ $", ("plain $HOME $(date) $$ $",)),
        ("${out}", (Token("out"),)),
        ("a${ out }b", ("a", Token("out"), "b")),
        ("$${out}", ("${out}",)),
        ("$$${out}", ("$${out}",)),
        ("{out}", ("{out}",)),
        ("${a}${b.c}", (Token("a"), Token("b.c"))),
        ("$${X:-1} ${y}", ("${X:-1} ", Token("y"))),
    ],
)
def test_parse(text: str, pieces: tuple[str | Token, ...]) -> None:
    assert parse_tokens(text) == pieces


def test_a_token_must_end() -> None:
    with pytest.raises(ValueError, match="`\\$\\{out` has no closing `}`"):
        parse_tokens("x ${out")


@given(_LITERALS)
def test_a_literal_reads_back(literal: str) -> None:
    assert "".join(str(piece) for piece in parse_tokens(render_tokens([literal]))) == literal


@given(st.lists(st.one_of(_LITERALS, _NAMES.map(Token)), max_size=6))
def test_pieces_read_back_or_are_refused(pieces: list[str | Token]) -> None:
    merged: list[str | Token] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        elif piece:
            merged.append(piece)
    clash = any(
        isinstance(first, str) and first.endswith("$") and isinstance(second, Token)
        for first, second in pairwise(merged)
    )
    if clash:
        with pytest.raises(ValueError, match="directly before"):
            render_tokens(pieces)
    else:
        assert parse_tokens(render_tokens(pieces)) == tuple(merged)


@given(st.text(alphabet="a${} .rnk", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        pieces = parse_tokens(text)
    except ValueError:
        assert "${" in text
        return
    assert all(piece for piece in pieces)


def test_hidden_tokens_are_those_of_the_job() -> None:
    assert hidden_token(["echo ${rank}"]) == "${rank}"
    assert hidden_token([Token("rank"), " ${HOME} ${ranks}"]) == ""
    assert hidden_token(["${leader.", Token("out"), "address}"]) == ""
