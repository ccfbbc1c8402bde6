"""Verifier that asks a chat model on a server what an answer is worth.

The server speaks the OpenAI-compatible `/v1/chat/completions`. What it costs is counted in requests and tokens. Recorded replies are used
again instead of asking, so that a run can be repeated, and tests need no server.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.core.errors import UsageError
from windlass.core.json_text import decode_object
from windlass.post.http_requests import JsonServer
from windlass.post.rewards.protocol import Answer, Score

__all__ = ["judge", "load_judge"]

TEMPLATE = """Rate an answer to a question from 0 (wrong or useless) to 10 (right and complete).

Question:
{prompt}

Reference answer (may be empty):
{ground_truth}

Answer to rate:
{answer}

End with a line `Score: N`."""

_SCORE = r"Score:\s*(-?\d+(?:\.\d+)?)"
_FIELD = re.compile(r"\{(prompt|answer|ground_truth)\}")
_MAX_REPLY = 1 << 20

_recorded: dict[str, dict[str, Any]] = {}
"""Replies by the digest of their request; read once, before answers are scored."""


def load_judge(settings: Mapping[str, Any]) -> None:
    """Check the settings and read recorded replies.

    Raises:
        UsageError: an invalid address, pattern, template or record.
        PreconditionError: the environment lacks the key.
    """
    if not settings.get("only_recorded"):
        JsonServer(str(settings["url"]), key_variable=str(settings.get("key_variable", "")))
    try:
        groups = re.compile(str(settings.get("pattern", _SCORE))).groups
    except re.error as error:
        raise UsageError(
            f"`pattern` of verifier `judge`: {error}", hint="write a regex", code="invalid-value"
        ) from error
    if groups != 1:
        hint = "write one group around the number, such as `Score: (\\d+)`"
        raise UsageError(f"`pattern` of verifier `judge` has {groups} groups", hint=hint, code="invalid-value")
    if "{answer}" not in str(settings.get("template", TEMPLATE)):
        message = "`template` of verifier `judge` has no place for the answer"
        raise UsageError(message, hint="write `{answer}` into it", code="invalid-value")
    path = str(settings.get("record", ""))
    if path and Path(path).exists():
        for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
            try:
                entry = decode_object(line)
                _recorded[str(entry["request"])] = entry
            except (ValueError, KeyError) as error:
                message = f"{path}:{number} is not a recorded reply"
                raise UsageError(message, hint="remove the line", code="invalid-value") from error


def judge(
    answer: Answer,
    ground_truth: object,
    *,
    url: str = "",
    model: str = "",
    template: str = TEMPLATE,
    pattern: str = _SCORE,
    low: float = 0.0,
    high: float = 10.0,
    max_tokens: int = 512,
    key_variable: str = "",
    timeout_s: float = 60.0,
    retries: int = 2,
    record: str = "",
    only_recorded: bool = False,
) -> Score:
    """Return a chat model's score, from 0 for `low` to 1 for `high`; no value if it gives none within these.

    Args:
        url: the server's address.
        model: name of the chat model.
        template: the request; `{prompt}`, `{answer}` and `{ground_truth}` stand for the texts.
        pattern: regex whose group is the score; its last match in the reply counts.
        key_variable: environment variable with the server's key.
        record: file of replies; a request with a recorded reply is not sent, others are appended.
        only_recorded: send nothing; an answer without a recorded reply is not scored.

    Raises:
        ServerError: the server did not answer.
        ValueError: the reply has no score.
    """
    texts = {
        "prompt": answer.prompt,
        "answer": answer.text,
        "ground_truth": "" if ground_truth is None else ground_truth,
    }
    content = _FIELD.sub(lambda found: str(texts[found[1]]), template)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0.0,
        "max_tokens": max_tokens,
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]
    entry, cost = _recorded.get(digest), {"judge_recorded": 1.0}
    if entry is None:
        if only_recorded:
            return Score(value=None, error="no recorded reply to this request", kind="exception")
        server = JsonServer(url, key_variable=key_variable, timeout_s=timeout_s, retries=retries)
        entry = _read(server.request("/v1/chat/completions", body, max_bytes=_MAX_REPLY))
        cost = {"judge_requests": 1.0, **{f"judge_tokens_{name}": entry[name] for name in ("read", "written")}}
        if record:
            _append(Path(record), {"request": digest, **entry})
    found = re.findall(pattern, str(entry["reply"]))
    if not found:
        return Score(value=None, error=f"no score in the reply {entry['reply'][-80:]!r}", kind="exception", cost=cost)
    value = float(found[-1])
    if not low <= value <= high:
        return Score(value=None, error=f"score {value:g} is not from {low:g} to {high:g}", kind="exception", cost=cost)
    return Score(value=(value - low) / (high - low), cost=cost)


def _read(reply: Any) -> dict[str, Any]:
    """Return the text of a reply and the tokens that were read and written."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    message = (
        choices[0].get("message") if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    )
    text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str):
        raise ValueError("the server did not send a message")
    usage = reply.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    found = {"read": counts.get("prompt_tokens"), "written": counts.get("completion_tokens")}
    return {"reply": text} | {name: float(each) if type(each) is int else 0.0 for name, each in found.items()}


def _append(path: Path, entry: Mapping[str, Any]) -> None:
    """Append a line; several processes may do so."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(descriptor)
