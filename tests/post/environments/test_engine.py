"""Samples over several turns: what is appended, what is trained, and that they are the same whatever happens around."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.post.environments.test_process import HOSTILE, PATIENT, TALKER
from tests.post.rollout.policies import embedded, finish
from tests.train.model import tiny
from windlass.core.clock import SystemClock
from windlass.post.control.assembly import rollout_rows
from windlass.post.control.scoring import ScoredSample
from windlass.post.control.sharing import answer_sequences, shared_rows
from windlass.post.data.chat import ChatEncoder, chat_encoder, special_tokens
from windlass.post.data.config import MixSource, MixtureConfig
from windlass.post.data.rows import Chat
from windlass.post.data.templates import ChatTemplate
from windlass.post.environments.engine import EnvironmentEngine
from windlass.post.environments.process import EpisodePool
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.fake import FakeEngine, Script
from windlass.post.rollout.types import EpisodeTask, Sample, SampleId, SampleRequest, Sampling, ScoreRequest
from windlass.post.workers.messages import read_request, read_sample, request_data, sample_data
from windlass.train.batch import IGNORE
from windlass.train.data.config import TokenizerConfig
from windlass.train.model.decoder import Decoder

BYTES = TokenizerConfig(path="bytes")
REWRITING = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.role == 'assistant' and not loop.last %}(cut){% else %}{{ message.content }}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Shows the text of an answer only while it is the last message."""


def encoder(template: str = "plain") -> ChatEncoder:
    found = chat_encoder(MixtureConfig(mix=(MixSource(source="x"),), template="plain"), BYTES)
    if template == "plain":
        return found
    compiled = ChatTemplate.compile(template, name="test", tokens=special_tokens(found.tokenizer))
    return ChatEncoder(compiled, found.tokenizer, BYTES)


@pytest.fixture(scope="module")
def pool() -> Iterator[EpisodePool]:
    pool = EpisodePool({PATIENT: {}, TALKER: {}, HOSTILE: {}}, deadline_s=120.0, num_workers=8)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny.decoder(vocab_size=258)


def request(
    group: int, member: int, environment: str | None, encoder: ChatEncoder, *, length: int = 30, **row: Any
) -> SampleRequest:
    messages = [{"role": "user", "content": f"{group}+2="}]
    columns = {"messages": messages, "answer": "4", **row}
    sampling = Sampling(max_new_tokens=length, stop_ids=(256,), seed=5)
    return SampleRequest(
        id=SampleId(group=group, member=member),
        prompt_ids=tuple(encoder.prompt(Chat(messages=tuple(messages)))),
        sampling=sampling,
        task=None if environment is None else EpisodeTask(environment=environment, row=columns),
    )


def wrapped(engine: RolloutEngine, pool: EpisodePool, encoder: ChatEncoder, max_turns: int = 4) -> EnvironmentEngine:
    """An engine around a pool of several tests, which is not closed with it."""
    return EnvironmentEngine(engine, pool, encoder, dict.fromkeys((PATIENT, TALKER, HOSTILE), max_turns))


def fake(num_tokens: int = 3, **changes: Any) -> FakeEngine:
    script = Script(num_tokens=lambda work: num_tokens, seconds_per_token=lambda work: 0.0005)
    return FakeEngine(SystemClock(), script, **{"vocab_size": 258, "max_length": 128, **changes})


def origins(sample: Sample) -> list[tuple[str, int, int | None]]:
    return [(span.origin, span.stop - span.start, span.version) for span in sample.spans]


def scored(sample: Sample, work: SampleRequest) -> ScoredSample:
    return ScoredSample(sample=sample, prompt_ids=work.prompt_ids, text="", rewards={}, reward=1.0)


def test_turns_are_appended_and_the_policy_s_tokens_stay(pool: EpisodePool) -> None:
    plain = encoder()
    engine = wrapped(fake(), pool, plain)
    works = [request(1, 0, TALKER, plain), request(1, 1, None, plain)]
    samples = finish(engine, works)
    sample = samples[works[0].id]
    assert [each[0] for each in origins(sample)] == ["policy", "template", "tool"] * 2 + ["policy"]
    # the end token, which the policy did not write, and then the tool's text
    text = [sample.ids[span.start : span.stop] for span in sample.spans if span.origin != "policy"]
    assert text[0] == text[2] == (256,)
    assert bytes(text[1]).decode().split(":")[1] == "1"
    assert bytes(text[3]).decode().split(":")[1] == "2"
    assert all(
        sample.logp[at] == 0.0 for span in sample.spans if span.version is None for at in range(span.start, span.stop)
    )
    assert sample.raw_logp is not None
    assert len(sample.ids) == len(sample.logp) == len(sample.raw_logp)
    assert sample.episode is not None
    assert [turn.reward for turn in sample.episode.turns] == [None, None, 0.5]
    assert sample.episode.turns[-1].stop == len(sample.ids)
    assert (sample.finish, sample.num_policy_tokens) == ("stop", 9)
    assert sample.last_turn() == sample.ids[-3:]
    assert set(sample.seconds) == {"queued", "generated", "environment"}
    assert samples[works[1].id].episode is None
    assert read_sample(sample_data(sample)) == sample
    assert read_request(request_data(works[0])) == works[0]


def test_tokens_and_turns_are_bounded_and_the_environment_scores_what_it_has(pool: EpisodePool) -> None:
    plain = encoder()
    work = request(1, 0, TALKER, plain)
    two = finish(wrapped(fake(), pool, plain, max_turns=2), [work])[work.id]
    assert two.episode is not None
    assert (two.finish, [turn.reward for turn in two.episode.turns]) == ("stop", [None, 0.25])
    short = request(2, 0, TALKER, plain, length=8)  # 3 of the policy, 1 of the template, 5 of the tool: no room
    cut = finish(wrapped(fake(), pool, plain), [short])[short.id]
    assert cut.episode is not None
    assert (cut.finish, [turn.reward for turn in cut.episode.turns]) == ("length", [0.25])
    long = request(3, 0, TALKER, plain, length=10)
    whole = finish(wrapped(fake(num_tokens=50), pool, plain), [long])[long.id]
    assert (whole.finish, len(whole.ids)) == ("length", 10)


def test_first_messages_of_an_environment_are_read(pool: EpisodePool) -> None:
    plain = encoder()
    name = f"{PATIENT}"
    own = EpisodePool({name: {"first": "hello "}}, deadline_s=120.0, num_workers=2)
    engine = EnvironmentEngine(fake(), own, plain, {name: 1})
    work = request(1, 0, name, plain)
    sample = finish(engine, [work])[work.id]
    engine.close()
    assert sample.episode is not None
    assert sample.episode.forks == (0,)
    (sequence,) = answer_sequences((scored(sample, work), 1.0))
    assert bytes(sequence.prompt_ids).decode() == "1+2=hello "
    assert len(sequence.ids) == 3


@pytest.mark.parametrize("at", ["reset", "step"])
def test_an_environment_that_fails_leaves_no_reward(pool: EpisodePool, at: str) -> None:
    plain = encoder()
    engine = wrapped(fake(), pool, plain)
    works = [request(1, member, HOSTILE, plain, trick="die", at=at) for member in range(3)]
    works += [request(2, member, PATIENT, plain) for member in range(3)]
    samples = finish(engine, works)
    for work in works:
        episode = samples[work.id].episode
        assert episode is not None
        assert ("exit code 7" in episode.error) == (work.id.group == 1)
        assert (episode.reward is None) == (work.id.group == 1)
        assert samples[work.id].spans  # of some version, so that its age is known


def test_a_rewritten_history_forks_and_weighs_as_one(pool: EpisodePool) -> None:
    rewriting = encoder(REWRITING)
    work = request(1, 0, TALKER, rewriting, length=60)
    sample = finish(wrapped(fake(max_length=160), pool, rewriting), [work])[work.id]
    assert sample.episode is not None
    assert len(sample.episode.forks) == 2
    sequences = answer_sequences((scored(sample, work), 1.0))
    assert len(sequences) == 3
    assert sum(len(each.ids) for each in sequences) == sample.num_policy_tokens
    assert all(each.is_policy is not None and each.is_policy.all() for each in sequences)
    second = bytes(sequences[1].prompt_ids).decode()
    assert second.startswith("<user>1+2=;<assistant>(cut);<tool>")
    assert second.endswith(";<assistant>")
    rows = rollout_rows([(scored(sample, work), 2.0)], pad_id=257)
    assert rows.tokens_BT.shape[0] == 3
    assert rows.num_sequences == 1
    assert float(rows.weights["policy"].sum()) == sample.num_policy_tokens
    labels = rows.sequences_BT[rows.labels_BT != IGNORE]
    assert (labels == 0).all()
    shared = shared_rows([[(scored(sample, work), 2.0)]], pad_id=257)
    assert sorted(shared.labels_BT[shared.labels_BT != IGNORE]) == sorted(rows.labels_BT[rows.labels_BT != IGNORE])


def test_samples_are_the_same_alone_together_and_in_any_order(pool: EpisodePool, model: Decoder) -> None:
    plain = encoder()
    works = [request(g, member, TALKER, plain, length=40) for g in range(2) for member in range(3)]

    def made(order: Sequence[SampleRequest]) -> Mapping[SampleId, tuple[object, ...]]:
        engine = wrapped(embedded(model), pool, plain)
        return {name: (each.ids, each.logp, each.episode) for name, each in finish(engine, order).items()}

    first = made(works)
    assert made(works[::-1]) == first
    assert made(works[4:5])[works[4].id] == first[works[4].id]


def test_log_probabilities_are_those_of_teacher_forcing(pool: EpisodePool, model: Decoder) -> None:
    long = tiny.decoder(vocab_size=258, max_length=256)
    for template, decoder, most in (("plain", model, 56), (REWRITING, long, 200)):
        found = encoder(template)
        works = [request(g, member, TALKER, found, length=most) for g in range(2) for member in range(3)]
        inner: EmbeddedEngine = embedded(decoder, max_length=64 if decoder is model else 256)
        for work, sample in finish_pairs(wrapped(inner, pool, found), works):
            sequences = answer_sequences((scored(sample, work), 1.0))
            num_own = 0
            for sequence in sequences:
                ids = (*sequence.prompt_ids, *sequence.ids)
                forced = inner.score([ScoreRequest(ids=ids, start=len(sequence.prompt_ids))])[0]
                assert sequence.is_policy is not None
                num_own += int(sequence.is_policy.sum())
                pairs = zip(sequence.is_policy, forced, sequence.logp, strict=True)
                assert all(abs(wanted - own) < 1e-5 for is_own, wanted, own in pairs if is_own)
            assert num_own == sample.num_policy_tokens


def finish_pairs(engine: EnvironmentEngine, works: Sequence[SampleRequest]) -> list[tuple[SampleRequest, Sample]]:
    samples = finish(engine, works)
    return [(work, samples[work.id]) for work in works]


def test_a_load_between_turns_gives_the_next_turn_its_version(pool: EpisodePool, model: Decoder) -> None:
    plain = encoder()
    inner = embedded(model)
    engine = wrapped(inner, pool, plain)
    work = request(0, 0, TALKER, plain, length=50)
    engine.submit([work])
    samples: list[Sample] = []
    version = 1
    while not samples:
        samples += engine.poll(0.01)
        version += 1
        engine.load(dict(model.named_parameters()), version)
    versions = [span.version for span in samples[0].spans if span.origin == "policy"]
    assert versions == sorted(versions)  # type: ignore[type-var]
    assert len(set(versions)) > 1


def test_cancelled_episodes_return_what_they_have(pool: EpisodePool) -> None:
    plain = encoder()
    engine = wrapped(fake(num_slots=2), pool, plain)
    works = [request(1, member, TALKER, plain) for member in range(4)] + [request(2, 0, None, plain)]
    assert engine.submit(works) == 5
    engine.cancel([work.id for work in works])
    samples: list[Sample] = []
    while len(samples) < 5:
        samples += engine.poll(1.0)
    assert {sample.finish for sample in samples} == {"cancelled"}
    assert finish(engine, works[:1])[works[0].id].finish == "stop"
