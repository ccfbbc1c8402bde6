"""Named transforms of rows: pure functions from columns to columns, or to a reason to drop the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from windlass.core.errors import NotFoundError
from windlass.core.names import nearest
from windlass.train.reference import load_reference

__all__ = ["TRANSFORMS", "DropRow", "Transform", "find_transform"]

Columns = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DropRow:
    """Result of a transform that drops its row, with a reason for the statistics."""

    reason: str


Transform = Callable[[Columns], "Columns | DropRow"]


def find_transform(name: str) -> Transform:
    """Return a transform by name, or your own by `module:function` or `file.py:function`.

    Raises:
        NotFoundError: there is none of this name.
    """
    if ":" in name:
        found = load_reference(name)
        if callable(found):
            return found
    elif name in TRANSFORMS:
        return TRANSFORMS[name]
    close = nearest(name, TRANSFORMS)
    hint = f"did you mean `{close}`?" if close else f"transforms: {', '.join(TRANSFORMS)}; or `module:function`"
    raise NotFoundError(f"unknown transform `{name}`", hint=hint, code="unknown-name")


def sharegpt(columns: Columns) -> Columns | DropRow:
    """Convert `conversations` of {from, value} to `messages`."""
    turns = columns.get("conversations")
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        return DropRow("no conversations")
    roles = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}
    messages = [
        {"role": roles.get(str(turn.get("from")), str(turn.get("from"))), "content": turn.get("value")}
        for turn in turns
        if isinstance(turn, Mapping)
    ]
    return {**columns, "messages": messages}


def alpaca(columns: Columns) -> Columns | DropRow:
    """Convert `instruction`, `input` and `output` to `prompt` and `completion`."""
    instruction, given, output = (columns.get(name) for name in ("instruction", "input", "output"))
    if not isinstance(instruction, str) or not isinstance(output, str):
        return DropRow("no instruction or no output")
    prompt = f"{instruction}\n\n{given}" if isinstance(given, str) and given else instruction
    return {**columns, "prompt": prompt, "completion": output}


def gsm8k(columns: Columns) -> Columns | DropRow:
    """Convert GSM8K's `question` and `answer` to `prompt` and `completion`."""
    question, answer = columns.get("question"), columns.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        return DropRow("no question or no answer")
    return {**columns, "prompt": question, "completion": answer}


def last_turn_only(columns: Columns) -> Columns | DropRow:
    """Keep the conversation up to its last answer, and learn only that one: it becomes prompt and completion."""
    messages = columns.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        return DropRow("no messages")
    if not isinstance(messages[-1], Mapping) or messages[-1].get("role") != "assistant":
        return DropRow("last message is not an answer")
    kept = {key: value for key, value in columns.items() if key != "messages"}
    return {**kept, "prompt": list(messages[:-1]), "completion": [messages[-1]]}


def single_turn(columns: Columns) -> Columns | DropRow:
    """Drop conversations with more than one answer."""
    messages = columns.get("messages")
    if not isinstance(messages, Sequence):
        return columns
    answers = sum(isinstance(message, Mapping) and message.get("role") == "assistant" for message in messages)
    return columns if answers == 1 else DropRow("several answers")


TRANSFORMS: Mapping[str, Transform] = {
    "sharegpt": sharegpt,
    "alpaca": alpaca,
    "gsm8k": gsm8k,
    "last-turn-only": last_turn_only,
    "single-turn": single_turn,
}
"""Transforms by name."""
