"""Forms of chats and preferences, and what is refused."""

from __future__ import annotations

import pytest

from windlass.core.errors import SpecError
from windlass.post.data.rows import RowError, read_chat, read_pair, read_row

USER, ANSWER = {"role": "user", "content": "2+2="}, {"role": "assistant", "content": "4"}


def test_a_chat_is_messages_or_prompt_and_completion() -> None:
    chat = read_chat({"messages": [USER, ANSWER]})
    assert (chat.messages, chat.num_given) == ((USER, ANSWER), 0)
    for prompt, completion in (("2+2=", "4"), ([USER], [ANSWER]), ([USER], "4")):
        chat = read_chat({"prompt": prompt, "completion": completion})
        assert (chat.messages, chat.num_given) == ((USER, ANSWER), 1)


def test_nulls_that_parquet_adds_to_messages_are_removed() -> None:
    chat = read_chat({"messages": [{**USER, "tool_calls": None}, {**ANSWER, "name": None}]})
    assert chat.messages == (USER, ANSWER)


def test_a_pair_may_repeat_its_prompt_or_name_it_once() -> None:
    wrong = {"role": "assistant", "content": "5"}
    forms = (
        {"chosen": [USER, ANSWER], "rejected": [USER, wrong]},
        {"prompt": "2+2=", "chosen": "4", "rejected": "5"},
        {"prompt": "2+2=", "chosen": [USER, ANSWER], "rejected": [USER, wrong]},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [wrong]},
    )
    for columns in forms:
        pair = read_pair(columns)
        assert pair.chosen.messages == (USER, ANSWER)
        assert pair.rejected.messages == (USER, wrong)
        assert pair.chosen.num_given == pair.rejected.num_given == 1


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({}, "needs `messages`"),
        ({"text": "x"}, "this row has `text`"),
        ({"messages": []}, "`messages` is empty"),
        ({"messages": [USER]}, "no message to learn"),
        ({"messages": [{"role": "king", "content": "x"}]}, "the role 'king'"),
        ({"messages": [USER, {"role": "assistant", "content": 4}]}, "content` is int"),
        ({"messages": "2+2=4"}, "no message to learn"),
        ({"messages": ["2+2="]}, "`messages.0` is str"),
        ({"prompt": [ANSWER], "completion": []}, "`completion` is empty"),
    ],
)
def test_a_chat_of_another_form_is_refused(columns: dict[str, object], why: str) -> None:
    with pytest.raises(RowError, match=why):
        read_chat(columns)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"chosen": "4"}, "needs `chosen` and `rejected`"),
        ({"chosen": "4", "rejected": "5"}, "no prompt"),
        ({"chosen": [USER], "rejected": [USER, ANSWER]}, "last message of `chosen` has the role `user`"),
        ({"chosen": [USER, ANSWER], "rejected": [{**USER, "content": "3+3="}, ANSWER]}, "differ before the last"),
    ],
)
def test_a_pair_of_another_form_is_refused(columns: dict[str, object], why: str) -> None:
    with pytest.raises(RowError, match=why):
        read_pair(columns)


def test_the_error_names_the_place() -> None:
    with pytest.raises(SpecError, match=r"chats\.jsonl:7: a chat needs") as caught:
        read_row("chat", {"text": "x"}, "chats.jsonl:7")
    assert caught.value.code == "text-broken"
