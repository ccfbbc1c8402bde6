"""Work and samples as JSON, for engines in other processes; importable without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from windlass.core.json_text import decode_json
from windlass.post.rollout.types import (
    Episode,
    EpisodeTask,
    Sample,
    SampleId,
    SampleRequest,
    Sampling,
    TokenSpan,
    TurnEnd,
)

__all__ = [
    "episode_data",
    "id_data",
    "pack",
    "read_episode",
    "read_id",
    "read_request",
    "read_sample",
    "request_data",
    "sample_data",
    "unpack",
]


def pack(kind: str, *values: object) -> bytes:
    """Return a message."""
    return json.dumps([kind, *values], separators=(",", ":")).encode()


def unpack(frame: bytes) -> tuple[str, list[Any]]:
    """Return the kind and the values of a message. Raises ValueError."""
    message = decode_json(frame)
    if not isinstance(message, list) or not message or not isinstance(message[0], str):
        raise ValueError("not a message")
    return message[0], message[1:]


def id_data(sample: SampleId) -> list[int]:
    """Return a sample's identity as a list."""
    return [sample.group, sample.member, sample.attempt]


def read_id(data: Sequence[int]) -> SampleId:
    """Return the identity that `id_data` wrote."""
    group, member, attempt = data
    return SampleId(group=group, member=member, attempt=attempt)


def request_data(request: SampleRequest) -> list[object]:
    """Return a request as a list."""
    task = None if request.task is None else [request.task.environment, request.task.row]
    start = [request.oldest_version, request.context_ids, request.position]
    return [id_data(request.id), request.prompt_ids, asdict(request.sampling), *start, task]


def read_request(data: Sequence[Any]) -> SampleRequest:
    """Return the request that `request_data` wrote."""
    sample, prompt_ids, sampling, oldest_version, context_ids, position, task = data
    values: Mapping[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in sampling.items()
    }
    return SampleRequest(
        id=read_id(sample),
        prompt_ids=tuple(prompt_ids),
        sampling=Sampling(**values),
        oldest_version=oldest_version,
        context_ids=tuple(context_ids),
        position=position,
        task=None if task is None else EpisodeTask(environment=task[0], row=task[1]),
    )


def sample_data(sample: Sample) -> list[object]:
    """Return a sample as a list; numbers are kept to the last bit."""
    spans = [[span.start, span.stop, span.version, span.origin, span.oldest_read] for span in sample.spans]
    raw_logp, seconds = sample.raw_logp, dict(sample.seconds)
    return [id_data(sample.id), sample.ids, sample.logp, raw_logp, spans, sample.finish, seconds, episode_data(sample)]


def read_sample(data: Sequence[Any]) -> Sample:
    """Return the sample that `sample_data` wrote."""
    sample, ids, logp, raw_logp, spans, finish, seconds, episode = data
    return Sample(
        id=read_id(sample),
        ids=tuple(ids),
        logp=tuple(logp),
        raw_logp=None if raw_logp is None else tuple(raw_logp),
        spans=tuple(
            TokenSpan(start=start, stop=stop, version=version, origin=origin, oldest_read=oldest_read)
            for start, stop, version, origin, oldest_read in spans
        ),
        finish=finish,
        seconds=seconds,
        episode=read_episode(episode),
    )


def episode_data(sample: Sample) -> list[object] | None:
    """Return a sample's episode as a list; None if it has none."""
    found = sample.episode
    if found is None:
        return None
    return [found.environment, [[turn.stop, turn.reward] for turn in found.turns], found.forks, found.error]


def read_episode(data: Sequence[Any] | None) -> Episode | None:
    """Return the episode that `episode_data` wrote."""
    if data is None:
        return None
    environment, turns, forks, error = data
    ends = tuple(TurnEnd(stop=stop, reward=reward) for stop, reward in turns)
    return Episode(environment=environment, turns=ends, forks=tuple(forks), error=error)
