"""Rows of post-training data: chats and pairs, in the forms in which people keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windlass.core.errors import Problem, SpecError
from windlass.post.data.config import RowKind

__all__ = ["Chat", "Message", "Pair", "Prompt", "RowError", "read_chat", "read_pair", "read_prompt", "read_row"]

Message = Mapping[str, object]
"""A turn: `role`, `content`, and what templates know besides, such as `tool_calls`."""

_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "environment")


class RowError(ValueError):
    """A row that has none of the known forms; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation whose assistant turns are learned.

    Attributes:
        num_given: leading messages that are given, such as a prompt: their assistant turns are not learned.
        tools: tool definitions for the template.
    """

    messages: tuple[Message, ...]
    num_given: int = 0
    tools: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two conversations that differ in the last answer, of which one is preferred."""

    chosen: Chat
    rejected: Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation to be answered.

    Attributes:
        ground_truth: what verifiers compare answers with, as the row has it; None if it has none.
        columns: all columns of the row but the prompt, for environments.
    """

    chat: Chat
    ground_truth: object
    columns: Mapping[str, object] = field(default_factory=dict)


def read_row(kind: RowKind, columns: Mapping[str, object], place: str) -> Chat | Pair | Prompt:
    """Return a row of the kind; raises SpecError with its place and what to change."""
    try:
        if kind == "prompt":
            return read_prompt(columns)
        return read_chat(columns) if kind == "chat" else read_pair(columns)
    except RowError as error:
        hint = "see docs/concepts/post-training.md, or convert rows with `data.transforms`"
        raise SpecError([Problem(f"{place}: {error}", "text-broken", hint=hint)]) from error


def read_chat(columns: Mapping[str, object]) -> Chat:
    """Return the chat of a row with `messages`, or with `prompt` and `completion` (text or messages).

    Raises:
        RowError: no answer to learn from, or an invalid message.
    """
    num_given = 0
    if columns.get("messages") is not None:
        messages = _messages(columns["messages"], "messages")
    elif columns.get("prompt") is not None and columns.get("completion") is not None:
        messages = _messages(columns["prompt"], "prompt", role="user")
        num_given = len(messages)
        messages += _messages(columns["completion"], "completion", role="assistant")
    else:
        raise RowError(f"a chat needs `messages`, or `prompt` and `completion`; this row has {_names(columns)}")
    if not any(message["role"] == "assistant" for message in messages[num_given:]):
        raise RowError("no message to learn: none has the role `assistant`")
    return Chat(messages=messages, num_given=num_given, tools=_tools(columns.get("tools")))


def read_pair(columns: Mapping[str, object]) -> Pair:
    """Return the pair of a row with `chosen` and `rejected` (text or messages) and perhaps `prompt`.

    Raises:
        RowError: an answer is missing, or the conversations before the answers differ.
    """
    missing = [name for name in ("chosen", "rejected") if columns.get(name) is None]
    if missing:
        raise RowError(f"a preference needs `chosen` and `rejected`; this row has {_names(columns)}")
    prompt = columns.get("prompt")
    before = () if prompt is None else _messages(prompt, "prompt", role="user")
    tools = _tools(columns.get("tools"))
    sides = []
    for name in ("chosen", "rejected"):
        messages = _messages(columns[name], name, role="assistant")
        # TRL's and open-instruct's files repeat the prompt in both conversations
        whole = messages if messages[: len(before)] == before else before + messages
        if whole[-1]["role"] != "assistant":
            raise RowError(f"the last message of `{name}` has the role `{whole[-1]['role']}`, not `assistant`")
        sides.append(Chat(messages=whole, num_given=len(whole) - 1, tools=tools))
    chosen, rejected = sides
    if chosen.messages[:-1] != rejected.messages[:-1]:
        raise RowError("`chosen` and `rejected` differ before the last message")
    if len(chosen.messages) < 2:
        raise RowError("the answers have no prompt: set `prompt`, or begin both with the same messages")
    return Pair(chosen=chosen, rejected=rejected)


def read_prompt(columns: Mapping[str, object]) -> Prompt:
    """Return the prompt of a row with `prompt` or `messages`, and `ground_truth` or `answer`.

    Of `messages` that end with an answer, the answer is left out.

    Raises:
        RowError: there is no prompt, or it ends with an answer.
    """
    value = columns.get("prompt") if columns.get("prompt") is not None else columns.get("messages")
    if value is None:
        raise RowError(f"a prompt needs `prompt` or `messages`; this row has {_names(columns)}")
    messages = _messages(value, "prompt")
    if columns.get("prompt") is None and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages or messages[-1]["role"] == "assistant":
        raise RowError("the prompt ends with an answer")
    truth = columns.get("ground_truth") if columns.get("ground_truth") is not None else columns.get("answer")
    others = {name: value for name, value in columns.items() if name not in ("prompt", "messages", "tools")}
    return Prompt(chat=Chat(messages=messages, tools=_tools(columns.get("tools"))), ground_truth=truth, columns=others)


def _messages(value: object, name: str, *, role: str = "user") -> tuple[Message, ...]:
    if isinstance(value, str):
        return ({"role": role, "content": value},)
    if not isinstance(value, Sequence) or not value:
        raise RowError(f"`{name}` is {'empty' if not value else type(value).__name__}; it must be text or messages")
    return tuple(_message(each, f"{name}.{at}") for at, each in enumerate(value))


def _message(value: object, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise RowError(f"`{where}` is {type(value).__name__}; a message is an object with `role` and `content`")
    role, content = value.get("role"), value.get("content")
    if role not in _ROLES:
        raise RowError(f"`{where}` has the role {role!r}; known roles: {', '.join(_ROLES)}")
    if content is None and value.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise RowError(f"`{where}.content` is {type(content).__name__}, not text")
    # Parquet and Arrow fill absent keys of a struct with null
    return {**{str(key): each for key, each in value.items() if each is not None}, "role": role, "content": content}


def _tools(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _names(columns: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}`" for name in columns) or "no columns"
