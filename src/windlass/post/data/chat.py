"""Chats as token ids, with the tokens to learn marked.

An answer's place in the text is found by rendering the conversation before and after it. A template that rewrites
earlier turns (by removing their reasoning, for example) makes the conversation fork: each answer whose history was
rewritten becomes a sequence of its own, and every answer is learned exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from windlass.post.data.config import MixtureConfig
from windlass.post.data.rows import Chat
from windlass.post.data.templates import ChatTemplate, find_template
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import Tokenizer, load_tokenizer

__all__ = ["ChatEncoder", "EncodedSequence", "SpanError", "answer_span", "chat_encoder", "special_tokens"]

_EOS_MARK = "\ue000windlass-eos\ue000"
"""Text of the end token in templates, for tokenizers without one; private-use characters."""

_REASONING_END = "</think>"


class SpanError(ValueError):
    """An answer whose tokens do not cover exactly its text; the row cannot be learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSequence:
    """Token ids (int32), and whether each is learned (bool); both have the same length."""

    ids: np.ndarray
    is_learned: np.ndarray

    @property
    def num_learned(self) -> int:
        """Number of tokens to learn."""
        return int(self.is_learned.sum())


@dataclass(frozen=True, slots=True)
class _Answers:
    """A rendered text, and the character range of each answer in it."""

    text: str
    spans: tuple[tuple[int, int], ...]


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the texts of special tokens, as templates name them."""
    found = {"bos_token": tokenizer.ids.bos_id, "eos_token": tokenizer.ids.eos_id, "pad_token": tokenizer.ids.pad_id}
    texts = {
        name: (tokenizer.special_text(number) or "") if number is not None else "" for name, number in found.items()
    }
    if not texts["eos_token"] and tokenizer.ids.eos_id is not None:
        texts["eos_token"] = _EOS_MARK
    return texts


def chat_encoder(data: MixtureConfig, tokenizer_config: TokenizerConfig, *, folder: str = "") -> ChatEncoder:
    """Return what encodes rows: the tokenizer, and the template that the data's settings name.

    Args:
        folder: where the template `auto` is found; if empty, beside the tokenizer.

    Raises:
        SpecError: no tokenizer, or a template that is unknown or broken.
    """
    tokenizer, path = load_tokenizer(tokenizer_config), Path(tokenizer_config.path)
    beside = str(path if path.is_dir() else path.parent)
    template = find_template(data.template, folder=folder or beside, tokens=special_tokens(tokenizer))
    return ChatEncoder(template, tokenizer, tokenizer_config)


class ChatEncoder:
    """Renders and tokenizes conversations."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, tokenizer_config: TokenizerConfig) -> None:
        self.template, self.tokenizer, self.tokenizer_config = template, tokenizer, tokenizer_config

    def prompt(self, chat: Chat) -> list[int]:
        """Return the ids of a conversation up to where the assistant's turn begins.

        Raises:
            TemplateError: the template rejects the messages.
        """
        text = self.template.render(chat.messages, add_generation_prompt=True, tools=chat.tools)
        return self.spans(text)[0]

    def sequences(self, chat: Chat) -> list[EncodedSequence]:
        """Return the sequences of a conversation: one, or several if the template rewrites history.

        Raises:
            TemplateError: the template rejects the messages.
            SpanError: an answer is missing from the rendered text, or its tokens do not match its text.
        """
        return [self._encoded(answers) for answers in self._forks(chat)]

    def _forks(self, chat: Chat) -> Iterator[_Answers]:
        """Yield texts with their answers; an answer joins the previous text if that is its unchanged beginning."""
        text, spans = "", list[tuple[int, int]]()
        for at, message in enumerate(chat.messages):
            if message["role"] != "assistant" or at < chat.num_given:
                continue
            before = self.template.render(chat.messages[:at], add_generation_prompt=True, tools=chat.tools)
            after = self.template.render(chat.messages[: at + 1], tools=chat.tools)
            span = answer_span(before, after, str(message["content"]))
            if spans and not after.startswith(text):
                yield _Answers(text, tuple(spans))
                spans = []
            text = after
            spans.append(span)
        if spans:
            yield _Answers(text, tuple(spans))

    def _encoded(self, answers: _Answers) -> EncodedSequence:
        text = answers.text[: answers.spans[-1][1]] if answers.spans else answers.text
        ids, places = self.spans(text)
        if any(_straddles(place, border) for border in _borders(answers.spans) for place in places):
            ids, places = self._in_parts(text, answers.spans)
        is_learned = [any(start <= place[0] and place[1] <= stop for start, stop in answers.spans) for place in places]
        for start, stop in answers.spans:
            _check_cover(text, places, is_learned, start, stop)
        return EncodedSequence(ids=np.array(ids, dtype=np.int32), is_learned=np.array(is_learned, dtype=bool))

    def _in_parts(self, text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokenize the parts between the borders of answers one by one, as generation does."""
        borders = sorted({0, *_borders(spans), len(text)})
        ids, places = list[int](), list[tuple[int, int]]()
        for start, stop in pairwise(borders):
            part_ids, part_places = self.spans(text[start:stop])
            ids += part_ids
            places += [(start + first, start + last) for first, last in part_places]
        return ids, places

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids and their characters; the mark of the end token becomes its id."""
        ids, places, begin = list[int](), list[tuple[int, int]](), 0
        parts = text.split(_EOS_MARK) if self.tokenizer.ids.eos_id is not None else [text]
        for number, part in enumerate(parts):
            if number:
                assert self.tokenizer.ids.eos_id is not None
                ids.append(self.tokenizer.ids.eos_id)
                places.append((begin, begin + len(_EOS_MARK)))
                begin += len(_EOS_MARK)
            part_ids, part_places = self.tokenizer.encode_spans(part)
            ids += part_ids
            places += [(begin + first, begin + last) for first, last in part_places]
            begin += len(part)
        return ids, places


def answer_span(before: str, after: str, content: str) -> tuple[int, int]:
    """Return where an answer begins and ends, its end token included and white space after it excluded."""
    if not after.startswith(before):
        raise SpanError("the template changes the text before an answer when the answer is added")
    words = content.strip()
    found = after.find(words, len(before))
    if found < 0:  # reasoning templates render the two parts of an answer apart
        words = content.rpartition(_REASONING_END)[2].strip()
        found = after.find(words, len(before)) if words else -1
    if found < 0:
        raise SpanError("the template does not render the answer's text")
    end = found + len(words)
    tail = after[end:]
    kept = content[len(content.rstrip()) :]
    tail = kept + tail[len(kept) :].rstrip() if tail.startswith(kept) else tail.rstrip()
    if end + len(tail) == len(before):
        raise SpanError("the answer is empty")
    return len(before), end + len(tail)


def _borders(spans: Sequence[tuple[int, int]]) -> list[int]:
    return [border for span in spans for border in span]


def _straddles(place: tuple[int, int], border: int) -> bool:
    return place[0] < border < place[1]


def _check_cover(
    text: str, places: Sequence[tuple[int, int]], is_learned: Sequence[bool], start: int, stop: int
) -> None:
    """Check that the learned tokens cover an answer's text, without gaps other than white space."""
    at = start
    for place, learned in zip(places, is_learned, strict=True):
        if learned and start <= place[0] and place[1] <= stop:
            if place[0] > at and text[at : place[0]].strip():
                break
            at = max(at, place[1])
    if text[at:stop].strip():
        raise SpanError(f"no tokens cover {text[at:stop][:40]!r} of the answer")
