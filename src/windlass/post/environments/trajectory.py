"""Tokens of a sample over several turns: only appended to, or begun again where the chat template rewrites history.

What is appended after a turn is the difference between two renderings of the conversation: the tokens that the policy
wrote stay exactly as they are. If a template renders the earlier turns differently now (Qwen 3's removes their
reasoning), the sample forks: another sequence begins with the whole conversation as it is rendered now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from windlass.post.data.chat import ChatEncoder, SpanError, answer_span
from windlass.post.data.rows import Message
from windlass.post.environments.protocol import Reply
from windlass.post.rollout.types import Episode, Finish, Origin, Sample, SampleRequest, TokenSpan, TurnEnd

__all__ = ["Trajectory"]

_PROBE = "answer"


class Trajectory:
    """A sample in progress.

    Args:
        request: what was asked for, with the task of an environment.
    """

    def __init__(self, request: SampleRequest, encoder: ChatEncoder) -> None:
        assert request.task is not None
        self.request, self._encoder = request, encoder
        row = request.task.row
        self._messages: list[Message] = list(row["messages"])
        self._tools: Sequence[object] = tuple(row.get("tools") or ())
        self._context = list(request.prompt_ids)
        self._ids: list[int] = []
        self._logp: list[float] = []
        self._raw_logp: list[float] | None = []
        self._spans: list[TokenSpan] = []
        self._turns: list[TurnEnd] = []
        self._forks: list[int] = []
        self._seconds: dict[str, float] = {}
        self._has_end = False

    @property
    def num_turns(self) -> int:
        """Return the number of the policy's turns."""
        return len(self._turns)

    @property
    def room(self) -> int:
        """Return the number of tokens that the current sequence may still get."""
        used = len(self._context) - len(self.request.prompt_ids)
        return self.request.sampling.max_new_tokens - used

    def next_request(self) -> SampleRequest:
        """Return the request for the policy's next turn."""
        sampling = replace(self.request.sampling, max_new_tokens=self.room)
        context = tuple(self._context) if self._ids else ()
        return replace(self.request, sampling=sampling, context_ids=context, position=len(self._ids), task=None)

    def add_policy(self, sample: Sample) -> Reply:
        """Append a turn of the policy, and return it as text."""
        begin = len(self._ids)
        self._spans += [replace(span, start=span.start + begin, stop=span.stop + begin) for span in sample.spans]
        self._ids += sample.ids
        self._context += sample.ids
        self._logp += sample.logp
        if self._raw_logp is not None:
            self._raw_logp = None if sample.raw_logp is None else [*self._raw_logp, *sample.raw_logp]
        self._turns.append(TurnEnd(stop=len(self._ids)))
        self.add_seconds(sample.seconds)
        text, tail = self._encoder.tokenizer.decode(sample.ids), self._tail()
        eos = self._encoder.tokenizer.ids.eos_id
        is_ended = bool(sample.ids) and sample.ids[-1] == eos
        self._has_end = is_ended and tail == self._encoder.template.tokens.get("eos_token")
        if tail and text.rstrip().endswith(tail):
            text, self._has_end = text.rstrip().removesuffix(tail), True
        self._messages.append({"role": "assistant", "content": text})
        return Reply(text=text, is_complete=sample.finish == "stop")

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add to the time of phases."""
        for name, value in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value

    def reward(self, value: float | None) -> None:
        """Add a reward to the policy's last turn; without one yet, nothing can be rewarded."""
        if value is not None and self._turns:
            last = self._turns[-1]
            self._turns[-1] = replace(last, reward=(last.reward or 0.0) + value)

    def add_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Append messages of the environment, and what begins the policy's next turn.

        Raises:
            TemplateError: the template rejects the conversation.
        """
        if not self._turns and not messages:
            return
        before = list(self._messages)
        self._messages += messages
        text = self._render(self._messages, is_begun=True)
        rest = self._rest(before, text) if self._turns else None
        if rest is None:
            self._forks.append(len(self._ids))
            self._context = []
            rest = text
        self._append(rest, messages)

    def sample(self, finish: Finish, *, version: int, error: str = "") -> Sample:
        """Return the sample as it is.

        Args:
            version: of the weights now; a sample without a token of the policy has an empty span of it.
        """
        assert self.request.task is not None
        if not self._turns:
            self._spans.append(TokenSpan(start=len(self._ids), stop=len(self._ids), version=version))
        return Sample(
            id=self.request.id,
            ids=tuple(self._ids),
            logp=tuple(self._logp),
            raw_logp=None if self._raw_logp is None else tuple(self._raw_logp),
            spans=tuple(self._spans),
            finish=finish,
            seconds=self._seconds,
            episode=Episode(
                environment=self.request.task.environment,
                turns=tuple(self._turns),
                forks=tuple(self._forks),
                error=error,
            ),
        )

    def _rest(self, before: Sequence[Message], text: str) -> str | None:
        """Return what follows the policy's last turn in a rendered conversation; None if its history is another one."""
        begun = self._render(before[:-1], is_begun=True)
        answered = self._render(before, is_begun=False)
        content = str(before[-1]["content"])
        try:
            _, end = answer_span(begun, answered, content)
        except SpanError:
            return None
        if not text.startswith(answered[:end]):
            return None
        words_begin = answered.find(content.strip(), len(begun))
        return None if words_begin < 0 else text[end if self._has_end else words_begin + len(content.strip()) :]

    def _tail(self) -> str:
        """Return what the template writes after an answer, without white space: its end token, if any."""
        begun = self._render(self._messages, is_begun=True)
        answered = self._render([*self._messages, {"role": "assistant", "content": _PROBE}], is_begun=False)
        _, found, tail = answered[len(begun) :].partition(_PROBE)
        return tail.strip() if found and answered.startswith(begun) else ""

    def _append(self, text: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """Append text that the policy did not write, with the content of messages marked as a tool's."""
        ids, places = self._encoder.spans(text)
        contents: list[tuple[int, int]] = []
        at = 0
        for message in messages:
            content = str(message["content"]).strip()
            begin = text.find(content, at)
            if content and begin >= 0:
                at = begin + len(content)
                contents.append((begin, at))
        begin_at = len(self._ids)
        for number, (start, stop) in enumerate(places):
            is_tool = any(first <= start and stop <= last for first, last in contents)
            self._mark(begin_at + number, "tool" if is_tool else "template")
        self._ids += ids
        self._context += ids
        self._logp += [0.0] * len(ids)
        if self._raw_logp is not None:
            self._raw_logp += [0.0] * len(ids)

    def _mark(self, at: int, origin: Origin) -> None:
        last = self._spans[-1] if self._spans else None
        if last is not None and last.origin == origin and last.stop == at:
            self._spans[-1] = replace(last, stop=at + 1)
        else:
            self._spans.append(TokenSpan(start=at, stop=at + 1, version=None, origin=origin))

    def _render(self, messages: Sequence[Message], *, is_begun: bool) -> str:
        return self._encoder.template.render(messages, add_generation_prompt=is_begun, tools=self._tools)
