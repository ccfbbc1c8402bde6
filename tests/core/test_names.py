from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.names import as_name, is_name, nearest, new_run_id, new_token


@pytest.mark.parametrize("name", ["a", "0", "train", "gpt-2.small_v1", "a" * 64])
def test_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", ".a", "a.", "..", "A", "a b", "a/b", "a\n", "\u00e4", "a" * 65, "a\0", "_a"]
)
def test_what_is_no_name(name: str) -> None:
    assert not is_name(name)


@given(st.text(max_size=70))
def test_a_name_is_one_plain_file_name(text: str) -> None:
    if is_name(text):
        assert text.isascii()
        assert text == text.lower()
        assert not set(text) & set("/\\\0 \n~")
        assert text not in (".", "..")


@pytest.mark.parametrize(
    ("text", "name"), [("My Run!", "my-run"), ("-_.", ""), ("a" * 60, "a" * 50), ("x" * 49 + "-y", "x" * 49)]
)
def test_a_text_as_a_name(text: str, name: str) -> None:
    assert as_name(text) == name


def test_the_nearest() -> None:
    assert nearest("nodez", ["name", "nodes", "run"]) == "nodes"
    assert nearest("xyzzy", ["name", "nodes", "run"]) == ""
    assert nearest("a", []) == ""


def test_run_ids_and_tokens_are_fresh() -> None:
    ids = {new_run_id("hello") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(each.startswith("hello-") and len(each) == 14 and is_name(each) for each in ids)
    assert not any(set(each[6:]) & set("ilou") for each in ids)  # letters that are mistaken for others
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {32}
