"""The embedded engine: tokens of generate, log-probabilities of the learner, and no bit that depends on company."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.post.rollout.policies import MODELS, embedded, finish, group, prompt, work
from tests.train.model import tiny
from windlass.core.errors import UsageError
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.rollout.engine import EngineError
from windlass.post.rollout.steps import StepSizes
from windlass.post.rollout.types import Sample, SampleId, SampleRequest, ScoreRequest, TokenSpan
from windlass.train.generation.generate import generate
from windlass.train.model.decoder import Decoder

LENGTHS = (9, 1, 4, 8, 40, 33, 12, 17)
DETERMINISTIC = [name for name in MODELS if name != "experts"]


def learner_logp(model: Decoder, item: SampleRequest, ids: tuple[int, ...], temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the new tokens in a forward of the whole row."""
    tokens_BT = torch.tensor([item.prompt_ids + ids])
    with torch.no_grad():
        logits_TV = model(tokens_BT)[0, :-1] / temperature
    logp_T = logits_TV.log_softmax(dim=-1).gather(1, tokens_BT[0, 1:, None])[:, 0]
    new_N: torch.Tensor = logp_T[len(item.prompt_ids) - 1 :]
    return new_N


def facts_of(sample: Sample) -> tuple[object, ...]:
    """Everything but the attempt and the time."""
    name = (sample.id.group, sample.id.member)
    return name, sample.ids, sample.logp, sample.raw_logp, sample.spans, sample.finish


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_generate(name: str) -> None:
    model = tiny.decoder(**MODELS[name])
    works = [work(g, length=length, temperature=0.0, max_new_tokens=20) for g, length in enumerate(LENGTHS)]
    samples = finish(embedded(model), works)
    wanted = generate(model, [item.prompt_ids for item in works], max_new_tokens=20)
    assert [list(samples[item.id].ids) for item in works] == wanted


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_the_learner(name: str, temperature: float) -> None:
    model, engine = tiny.decoder(**MODELS[name]), embedded(tiny.decoder(**MODELS[name]))
    works = [item for g, n in enumerate(LENGTHS) for item in group(g, 2, length=n, temperature=temperature)]
    samples = finish(engine, works)
    requests = [ScoreRequest(ids=w.prompt_ids + samples[w.id].ids, start=len(w.prompt_ids)) for w in works]
    for item, scored in zip(works, engine.score(requests), strict=True):
        sample = samples[item.id]
        raw, cooled = (learner_logp(model, item, sample.ids, value) for value in (1.0, temperature))
        assert sample.raw_logp is not None
        for made, wanted in ((sample.logp, cooled), (sample.raw_logp, raw), (scored, raw)):
            torch.testing.assert_close(torch.tensor(made), wanted, rtol=0, atol=1e-5)


def test_samples_of_a_group_differ_and_follow_the_seed() -> None:
    engine = embedded()
    first = finish(engine, group(0, 6, max_new_tokens=12))
    assert len({sample.ids for sample in first.values()}) == 6
    assert [facts_of(s) for s in finish(engine, group(0, 6, max_new_tokens=12)).values()] == [
        facts_of(s) for s in first.values()
    ]
    other = finish(engine, group(0, 6, max_new_tokens=12, seed=6))
    assert {sample.ids for sample in other.values()}.isdisjoint({sample.ids for sample in first.values()})


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_company_and_order_change_no_bit(name: str) -> None:
    """Whole load; shuffled; each member alone; a few slots of other engines; members of a group far apart."""
    model, rng = tiny.decoder(**MODELS[name]), random.Random(1)
    works = [
        item
        for g, length in enumerate(LENGTHS)
        for item in group(g, 3, length=length, max_new_tokens=3 + 5 * (g % 4), temperature=(1.0, 0.7)[g % 2])
    ]
    wanted = {item: facts_of(sample) for item, sample in finish(embedded(model), works).items()}
    for _ in range(3):
        rng.shuffle(works)
        assert {item: facts_of(sample) for item, sample in finish(embedded(model), works).items()} == wanted
    engine = embedded(model)
    for item in rng.sample(works, 8):
        assert facts_of(finish(engine, [item])[item.id]) == wanted[item.id]


def rows_of_steps(engine: EmbeddedEngine) -> list[int]:
    """Return a list that receives the number of slots of each step; checks of sizes are steps too."""
    rows: list[int] = []

    def note(_: object, args: tuple[torch.Tensor, ...]) -> None:
        if args[0].shape[1] == 1:
            rows.append(args[0].shape[0])

    engine._model.register_forward_pre_hook(note)
    return rows


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_fewer_slots_are_computed_at_the_end_and_no_bit_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 slots of which samples leave one after the other, while others join; and each of some samples alone."""
    model, rng = tiny.decoder(**MODELS[name]), random.Random(2)
    works = [work(g, m, length=6, max_new_tokens=2 + (7 * g + 3 * m) % 23) for g in range(8) for m in range(9)]
    whole = embedded(model, num_slots=48, max_open=96)
    monkeypatch.setattr(whole._sizes, "fit", lambda _: 48)
    wanted = {item: facts_of(sample) for item, sample in finish(whole, works).items()}
    engine = embedded(model, num_slots=48, max_open=96)
    rows, fit = rows_of_steps(engine), StepSizes(model, 48, is_checked=True).fit  # 16 and 32, unless they change bits
    assert {item: facts_of(sample) for item, sample in finish(engine, works).items()} == wanted
    assert rows[-1] == fit(1)
    assert set(rows) == {16, 32, 48}
    for item in rng.sample(works, 4):
        assert facts_of(finish(engine, [item])[item.id]) == wanted[item.id]


def test_sizes_that_change_bits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model, forward = tiny.decoder(), Decoder.forward
    whole = StepSizes(model, 40, is_checked=True).fit(32)  # 32, unless that changes bits on this CPU too

    def uneven(self: Decoder, tokens_BT: torch.Tensor, *args: Any, **options: Any) -> Any:
        out = forward(self, tokens_BT, *args, **options)
        assert isinstance(out, torch.Tensor)
        return out * 1.0000001 if tokens_BT.shape[0] == 16 else out

    monkeypatch.setattr(Decoder, "forward", uneven)
    sizes = StepSizes(model, 40, is_checked=True)
    assert [sizes.fit(count) for count in (1, 16, 17, 32, 33, 40)] == [40, 40, whole, whole, 40, 40]


def test_slots_that_are_warm_change_no_bit() -> None:
    """Settings of others, which change what is computed for all rows, and slots that were used before."""
    wanted = facts_of(finish(embedded(), [work(3, max_new_tokens=20)])[SampleId(group=3, member=0)])
    engine = embedded()
    others = [work(4, top_k=3), work(5, top_p=0.5, length=30), work(6, temperature=0.0, max_new_tokens=15)]
    samples = finish(engine, [*others, work(3, max_new_tokens=20), *group(7, 9, length=20)])
    assert facts_of(samples[SampleId(group=3, member=0)]) == wanted


def test_a_cancelled_sample_starts_again_as_the_same_one() -> None:
    engine, works = embedded(), [item for g in range(3) for item in group(g, 3, max_new_tokens=20)]
    wanted = {item: facts_of(sample) for item, sample in finish(embedded(), works).items()}
    assert engine.submit(works) == 9
    for _ in range(5):
        assert engine.poll(0) == []
    victims = [works[1], works[8]]  # one in a slot, one that waits
    engine.cancel([item.id for item in victims] + [SampleId(group=99, member=0)])
    cancelled = {sample.id: sample for sample in engine.poll(0)}
    assert {item: sample.finish for item, sample in cancelled.items()} == {item.id: "cancelled" for item in victims}
    part = cancelled[works[1].id]
    assert 0 < len(part.ids) < 20
    assert part.ids == wanted[works[1].id][1][: len(part.ids)]  # type: ignore[index]
    assert cancelled[works[8].id].ids == ()
    again = [SampleRequest(id=SampleId(group=item.id.group, member=item.id.member, attempt=1), prompt_ids=item.prompt_ids, sampling=item.sampling) for item in victims]  # fmt: skip
    engine.submit(again)
    samples: dict[tuple[int, int], Sample] = {}
    while len(samples) < 9:
        samples.update({(s.id.group, s.id.member): s for s in engine.poll(60.0)})
    assert {name: facts_of(sample) for name, sample in samples.items()} == {
        (item.group, item.member): fact for item, fact in wanted.items()
    }


def test_a_prompt_is_read_once_for_its_group() -> None:
    engine = embedded(num_slots=4, max_open=32)
    widths: list[tuple[int, int]] = []
    engine._model.register_forward_pre_hook(lambda _, args: widths.append(tuple(args[0].shape)))
    finish(engine, [item for g in range(4) for item in group(g, 8, max_new_tokens=3)])
    assert [shape for shape in widths if shape[1] > 1] == [(4, 8)]
    assert {shape for shape in widths if shape[1] == 1} == {(4, 1)}


def test_a_stop_id_is_the_last_token() -> None:
    free = finish(embedded(), group(0, 4, max_new_tokens=20))
    stop = free[SampleId(group=0, member=0)].ids[4]
    for item, sample in finish(embedded(), group(0, 4, max_new_tokens=20, stop_ids=(stop, 60))).items():
        whole = free[item].ids
        cuts = [index for index, token in enumerate(whole) if token in (stop, 60)]
        assert sample.ids == (whole[: cuts[0] + 1] if cuts else whole)
        assert sample.logp == free[item].logp[: len(sample.ids)]
        assert sample.finish == ("stop" if cuts else "length")


def test_a_stop_text_ends_the_sample_where_it_is_complete() -> None:
    pieces = [chr(ord("a") + token % 26) + chr(ord("a") + token // 26) for token in range(61)]

    def decode(ids: Any) -> str:
        return "".join(pieces[token] for token in ids)

    free = finish(embedded(), group(0, 4, max_new_tokens=20))
    whole = decode(free[SampleId(group=0, member=1)].ids)
    text = whole[7:12]  # begins in the middle of a token, and ends in the middle of another one
    stopped = finish(embedded(decode=decode), group(0, 4, max_new_tokens=20, stop_texts=(text, "zzzzzz")))
    for item, sample in stopped.items():
        others = decode(free[item].ids)
        num_tokens = -(-(others.index(text) + len(text)) // 2) if text in others else 20
        assert sample.ids == free[item].ids[:num_tokens]
        assert sample.finish == ("stop" if text in others else "length")


def test_open_work_is_limited_and_the_rest_can_come_later() -> None:
    engine = embedded(num_slots=2, max_open=5)
    works = group(0, 7)
    assert engine.submit(works) == 5
    assert engine.submit(works[5:]) == 0
    assert len(finish(engine, [])) == 0
    done = list(engine.poll(60.0))
    assert engine.submit(works[5:]) == len(done)


@pytest.mark.parametrize(
    ("works", "message"),
    [
        ([work(0), work(0)], "sample 0.0 is already open"),
        (
            [SampleRequest(id=SampleId(group=1, member=2), prompt_ids=(), sampling=work(0).sampling)],
            "the prompt of sample 1.2 is empty",
        ),
        (
            [SampleRequest(id=SampleId(group=1, member=2), prompt_ids=(3, 61), sampling=work(0).sampling)],
            "has token 61",
        ),
        (
            [SampleRequest(id=SampleId(group=1, member=2), prompt_ids=(3, -1), sampling=work(0).sampling)],
            "has token -1",
        ),
        ([work(0, length=60)], "a prompt of 60 tokens and up to 8 new ones; the engine's maximum is 64"),
        ([work(0, stop_texts=("x",))], "has stop texts, and the engine has no tokenizer"),
    ],
    ids=str,
)
def test_work_that_cannot_be_done_is_refused_as_a_whole(works: list[SampleRequest], message: str) -> None:
    engine = embedded()
    with pytest.raises(UsageError) as caught:
        engine.submit([work(5), *works])
    assert message in caught.value.message
    assert engine.poll(0) == []


def test_a_row_that_cannot_be_scored_is_refused() -> None:
    for request in (ScoreRequest(ids=(1, 2), start=0), ScoreRequest(ids=(1, 2), start=3), ScoreRequest(ids=(1, 61))):
        with pytest.raises(UsageError):
            embedded().score([request])


# -------------------------------------------------------------------------------------------------------- versions


def weights(model: Decoder, factor: float = 1.0) -> dict[str, torch.Tensor]:
    return {name: factor * parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("open_work", ["recompute", "keep"])
def test_a_load_in_flight_shows_in_spans_and_log_probabilities(name: str, open_work: Any) -> None:
    old, new = tiny.decoder(**MODELS[name]), tiny.decoder(**MODELS[name])
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.mul_(1.05)
    engine, item = embedded(old), work(0, max_new_tokens=30)
    engine.submit([item])
    for _ in range(10):
        assert engine.poll(0) == []
    engine.load(weights(new), 2, open_work=open_work)
    assert engine.version() == 2
    (sample,) = engine.poll(60.0)
    cut = sample.spans[0].stop
    assert 10 <= cut <= 11
    assert sample.spans == (
        TokenSpan(start=0, stop=cut, version=1, oldest_read=1),
        TokenSpan(start=cut, stop=30, version=2, oldest_read=1 if open_work == "keep" else 2),
    )
    before, after = learner_logp(old, item, sample.ids)[:cut], learner_logp(new, item, sample.ids)[cut:]
    torch.testing.assert_close(torch.tensor(sample.logp[:cut]), before, rtol=0, atol=1e-5)
    difference = (torch.tensor(sample.logp[cut:]) - after).abs().max()
    # a window of one token reads no old keys or values
    assert difference < 1e-5 if open_work == "recompute" or name == "window-of-one" else difference > 1e-4


def test_samples_that_wait_begin_with_the_loaded_weights() -> None:
    model = tiny.decoder()
    engine = embedded(model, num_slots=2)
    works = group(0, 4, max_new_tokens=6)
    engine.submit(works)
    engine.poll(0)
    engine.load(weights(model, 0.5), 2)
    samples = finish(engine, [])
    while len(samples) < 4:
        samples.update({sample.id: sample for sample in engine.poll(60.0)})
    assert samples[works[3].id].spans == (TokenSpan(start=0, stop=6, version=2, oldest_read=2),)
    alone = embedded(model, num_slots=2)
    alone.load(weights(model, 0.5), 2)
    assert facts_of(finish(alone, works[3:])[works[3].id]) == facts_of(samples[works[3].id])


def test_work_waits_for_the_weights_that_it_needs() -> None:
    model, engine = tiny.decoder(), embedded()
    needs_newer = SampleRequest(
        id=SampleId(group=1, member=0), prompt_ids=prompt(4), sampling=work(0).sampling, oldest_version=2
    )
    assert engine.submit([needs_newer, work(2)]) == 2
    assert [sample.id.group for sample in engine.poll(60.0)] == [2]
    assert engine.poll(60.0) == []
    engine.load(weights(model), 2)
    assert [sample.spans[0].version for sample in engine.poll(60.0)] == [2]


def test_weights_of_another_model_leave_the_engine_as_it_was() -> None:
    model = tiny.decoder()
    engine, item = embedded(model), work(0)
    wanted = facts_of(finish(engine, [item])[item.id])
    half = weights(model, 0.5)
    half.pop("norm.weight")
    for broken, message in (
        (half, "weights have no `norm.weight`; the previous ones stay loaded"),
        ({**weights(model), "extra": torch.zeros(1)}, "weights have `extra`, which the model has not"),
        (
            {**weights(model), "norm.weight": torch.zeros(3)},
            "weight `norm.weight` has shape [3], and the model's is [32]",
        ),
    ):
        with pytest.raises(EngineError) as caught:
            engine.load(broken, 2)
        assert caught.value.message.startswith(message)
    assert engine.version() == 1
    assert facts_of(finish(engine, [item])[item.id]) == wanted


def test_weights_that_are_not_finite_produce_no_sample() -> None:
    model = tiny.decoder()
    engine = embedded(model)
    engine.load(weights(model, float("nan")), 2)
    engine.submit([work(0)])
    with pytest.raises(EngineError, match="weights of version 2 give token"):
        engine.poll(60.0)


def test_an_engine_copies_its_weights() -> None:
    model = tiny.decoder()
    engine, item = embedded(model), work(0)
    wanted = facts_of(finish(engine, [item])[item.id])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert facts_of(finish(engine, [item])[item.id]) == wanted


@pytest.mark.parametrize("settings", [{"num_slots": 1}, {"max_length": 1}, {"max_length": 4096}], ids=str)
def test_an_engine_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        embedded(**settings)
