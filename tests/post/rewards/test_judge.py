"""The verifier that asks a chat model: what it sends, reads, records and counts; what it never takes for a score."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.post.rollout.served import Reply, listening
from windlass.core.errors import PreconditionError, UsageError
from windlass.post.rewards.pool import PoolConfig, RewardPool, RewardRequest
from windlass.post.rewards.protocol import Answer
from windlass.post.rewards.registry import find_verifier

pytestmark = pytest.mark.system


class Chat:
    """A server of a chat model that replies with what a test sets."""

    def __init__(self, *replies: object) -> None:
        self.replies, self.bodies = list(replies), list[dict[str, Any]]()

    def answer(self, path: str, body: dict[str, Any], handler: object) -> Reply:
        assert path == "/v1/chat/completions"
        self.bodies.append(body)
        reply = self.replies[min(len(self.bodies), len(self.replies)) - 1]
        if not isinstance(reply, str):
            return reply  # type: ignore[return-value]
        message = {"choices": [{"message": {"role": "assistant", "content": reply}}]}
        return 200, message | {"usage": {"prompt_tokens": 20, "completion_tokens": 5}}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def scored(settings: dict[str, Any], *texts: str, on_error: str = "exclude") -> tuple[list[Any], RewardPool]:
    requests = [
        RewardRequest(
            verifier="judge",
            answer=Answer(text=text, num_tokens=1, is_complete=True, prompt="What is 1+1?"),
            ground_truth="2",
        )
        for text in texts
    ]
    config = PoolConfig(num_workers=1, deadline_s=300.0, on_error=on_error)  # type: ignore[arg-type]
    with RewardPool([find_verifier("judge", settings)], config) as pool:
        return pool.score(requests), pool


def test_a_judge_reads_prompt_answer_and_truth_and_its_cost_is_counted(stack: ExitStack) -> None:
    chat = Chat("Fine.\nScore: 3\nOn reflection:\nScore: 7.5")
    url = stack.enter_context(listening(chat.answer))
    scores, pool = scored({"url": url, "model": "big"}, "It is {ground_truth}, I think. Score: 10")
    assert [score.value for score in scores] == [0.75]
    (body,) = chat.bodies
    text = body["messages"][0]["content"]
    assert (body["model"], body["temperature"]) == ("big", 0.0)
    assert "What is 1+1?" in text
    assert "It is {ground_truth}, I think." in text  # what an answer says is not filled in
    assert pool.costs == {"judge_requests": 1, "judge_tokens_read": 20, "judge_tokens_written": 5}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("I would rather not.", "no score in the reply"),
        ("Score: 11", "score 11 is not from 0 to 10"),
        ("Score: -1", "score -1 is not from 0 to 10"),
        ((200, {"choices": []}), "did not send a message"),
        ((200, b"<html>"), "something else than JSON"),
        ((401, {"error": {"message": "who are you"}}), "401: who are you"),
        ((200, b"x" * (2 << 20)), "more than 1048576 bytes"),
    ],
    ids=["words", "above", "below", "no choice", "no JSON", "401", "huge"],
)
def test_a_failure_is_no_score_of_zero(stack: ExitStack, reply: object, why: str) -> None:
    url = stack.enter_context(listening(Chat(reply).answer))
    (score,), pool = scored({"url": url, "retries": 0}, "2")
    assert score.value is None
    assert why in score.error
    assert pool.errors == {"exception": 1}


def test_failed_attempts_cost_too(stack: ExitStack) -> None:
    url = stack.enter_context(listening(Chat("no", "Score: 10").answer))
    (score,), pool = scored({"url": url}, "2", on_error="retry")
    assert (score.value, pool.costs["judge_requests"], pool.num_retries) == (1.0, 2, 1)


def test_recorded_replies_are_used_instead_of_asking(stack: ExitStack, tmp_path: Path) -> None:
    chat, record = Chat("Score: 4", "Score: 6"), tmp_path / "replies.jsonl"
    url = stack.enter_context(listening(chat.answer))
    settings = {"url": url, "record": str(record)}
    first, _ = scored(settings, "one", "two")
    again, pool = scored(settings, "one", "two")
    assert [score.value for score in again] == [score.value for score in first] == [0.4, 0.6]
    assert (len(chat.bodies), pool.costs) == (2, {"judge_recorded": 2})
    alone, _ = scored({"record": str(record), "only_recorded": True}, "two", "three")
    assert [(score.value, score.error) for score in alone] == [(0.6, ""), (None, "no recorded reply to this request")]
    assert all(set(json.loads(line)) == {"request", "reply", "read", "written"} for line in record.open())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"url": "nowhere"}, "not the address of a server"),
        ({"url": "http://x", "pattern": "("}, "`pattern` of verifier `judge`"),
        ({"url": "http://x", "pattern": "Score"}, "has 0 groups"),
        ({"url": "http://x", "template": "Rate this."}, "no place for the answer"),
        ({"url": "http://x", "key_variable": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
    ],
    ids=str,
)
def test_mistakes_end_the_run_before_it_starts(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(PreconditionError, match=why):
        scored(settings, "2")
    with pytest.raises(UsageError, match="invalid settings"):
        find_verifier("judge", {"uri": "x"})


def test_the_key_is_in_no_error(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    url = stack.enter_context(listening(Chat((400, {"error": "key s3cret is old"})).answer))
    (score,), _ = scored({"url": url, "key_variable": "JUDGE_KEY"}, "2")
    assert "key *** is old" in score.error
