"""Slots: rows of any lengths read as the whole sequence would, and nothing that others hold changes a bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.post.rollout.policies import MODELS
from tests.train.model import tiny
from windlass.post.rollout.slots import TILE, SlotCache
from windlass.post.rollout.steps import StepSizes, have_equal_slots
from windlass.train.model.decoder import Decoder

CPU = torch.device("cpu")


def slots(model: Decoder, num_slots: int, max_length: int = 64) -> SlotCache:
    dtype = next(model.parameters()).dtype
    return SlotCache(model.config, num_slots=num_slots, max_length=max_length, device=CPU, dtype=dtype)


def step(model: Decoder, cache: SlotCache, tokens_BT: torch.Tensor, counts: list[int], **options: Any) -> torch.Tensor:
    cache.begin(counts, tokens_BT.shape[1])
    with torch.inference_mode():
        logits = model(tokens_BT, cache=cache, **options)
    assert isinstance(logits, torch.Tensor)
    return logits


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_any_length_read_as_whole_sequences(name: str) -> None:
    """Chunks of different sizes, then single tokens: logits in float64 are those of one forward of each row."""
    model = tiny.decoder(**MODELS[name]).double()
    rows_BT, lengths = tiny.tokens(3, 30), [9, 1, 14]
    cache = slots(model, 3)
    first_BT = torch.nn.functional.pad(rows_BT[:, :14], (0, 2))
    read_BTV = step(model, cache, first_BT, lengths)
    assert cache.lengths == lengths
    with torch.inference_mode():
        whole_BTV = model(rows_BT)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(read_BTV[row, :length], whole_BTV[row, :length], rtol=1e-9, atol=1e-9)
    for offset in range(12):
        places = [length + offset for length in lengths]
        tokens_B1 = torch.stack([rows_BT[row, place] for row, place in enumerate(places)])[:, None]
        made_BV = step(model, cache, tokens_B1, [1, 1, 1])[:, 0]
        wanted_BV = torch.stack([whole_BTV[row, place] for row, place in enumerate(places)])
        torch.testing.assert_close(made_BV, wanted_BV, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_one_token_of_each_row_is_enough(name: str) -> None:
    model, rows_BT = tiny.decoder(**MODELS[name]), tiny.tokens(3, 16)
    whole = step(model, slots(model, 3), rows_BT, [9, 1, 16])
    last = step(model, slots(model, 3), rows_BT, [9, 1, 16], logits_at_B=torch.tensor([8, 0, 15]))
    assert last.shape == (3, 1, 61)
    torch.testing.assert_close(last[:, 0], whole[[0, 1, 2], [8, 0, 15]])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "experts"])
def test_longer_rows_beside_it_change_no_bit(name: str) -> None:
    model = tiny.decoder(**MODELS[name])
    long_BT, logits = tiny.tokens(6, 60), []
    for length in (1, TILE - 1, TILE, 40, 59):
        cache = slots(model, 6, max_length=1024)
        step(model, cache, torch.cat((tiny.tokens(1, 59, seed=9), long_BT[1:, :59])), [7, *[length] * 5])
        logits.append(step(model, cache, long_BT[:, -1:], [1] * 6)[0])
    assert all(torch.equal(logits[0], other) for other in logits)


def test_forked_rows_continue_as_the_source_would() -> None:
    model = tiny.decoder(**MODELS["windows"])
    source, target = slots(model, 2, max_length=8), slots(model, 8)  # fewer rows leave a rest to scalar instructions
    step(model, source, tiny.tokens(2, 8), [8, 3])
    target.fork(source, [(0, 4), (1, 0), (0, 2)], 8)
    assert target.lengths == [3, 0, 8, 0, 8, 0, 0, 0]
    token = tiny.tokens(1, 1, seed=5).expand(8, 1)
    made = step(model, target, token, [1, 0, 1, 0, 1, 0, 0, 0])
    assert target.lengths == [4, 0, 9, 0, 9, 0, 0, 0]
    assert torch.equal(made[2], made[4])
    with torch.inference_mode():
        whole = model(torch.cat((tiny.tokens(2, 8)[1:, :3], token[:1]), dim=1))
    torch.testing.assert_close(made[0, 0], whole[0, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_slots", [2, 5, 8, 32])
def test_slots_are_equal_or_said_not_to_be(num_slots: int) -> None:
    """Equal rows in every slot: the check of the engine says whether any step can tell one slot from another."""
    model = tiny.decoder(**MODELS["windows"])
    cache, found = slots(model, num_slots), []
    for token in range(8):
        logits = step(model, cache, torch.full((num_slots, 1), token), [1] * num_slots)
        found.append(all(torch.equal(logits[0], other) for other in logits))
    assert have_equal_slots(model, num_slots) == all(found)  # which numbers are equal depends on the CPU


@pytest.mark.parametrize("length", [3, TILE + 4])
def test_rows_that_move_and_fewer_rows_change_no_bit(length: int) -> None:
    """The rows of slots 20 and 31 move to 1 and 2, and a step of 16 slots makes of them what one of all slots makes.

    To the last bit, where the checks of the engine say that this CPU's kernels do not tell slots and sizes apart.
    """
    model, rows_BT = tiny.decoder(**MODELS["windows"]), tiny.tokens(32, length)
    whole, part = slots(model, 32), slots(model, 32)
    for cache in (whole, part):
        step(model, cache, rows_BT, [length] * 32)
    part.reset([1, 2])
    part.move([(20, 1), (31, 2)])
    assert part.lengths == [0 if slot in (20, 31) else length for slot in range(32)]
    tokens_B1 = tiny.tokens(32, 1, seed=5)
    wanted = step(model, whole, tokens_B1, [1] * 32)
    tokens_B1[[1, 2]] = tokens_B1[[20, 31]]
    made = step(model, part, tokens_B1[:16], [1] * 16)
    wanted = wanted[[0, 20, 31, *range(3, 16)]]
    torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-6)
    if have_equal_slots(model, 32) and StepSizes(model, 32, is_checked=True).fit(16) == 16:
        assert torch.equal(made, wanted)


def test_a_slot_is_used_again_as_if_it_were_new() -> None:
    model = tiny.decoder()
    used, fresh = slots(model, 3), slots(model, 3)
    step(model, used, tiny.tokens(3, 20, seed=1), [20, 20, 20])
    used.reset([0, 1, 2])
    made = [step(model, cache, tiny.tokens(3, 7, seed=2), [7, 5, 0]) for cache in (used, fresh)]
    made += [step(model, cache, tiny.tokens(3, 1, seed=3), [1, 1, 1]) for cache in (used, fresh)]
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[2], made[3])


def test_more_tokens_than_a_slot_holds_are_refused() -> None:
    cache = slots(tiny.decoder(), 2, max_length=16)
    cache.lengths = [3, 12]
    with pytest.raises(ValueError, match="17 tokens exceed the slots' length of 16"):
        cache.begin([5, 5], 5)


def test_slots_have_no_documents() -> None:
    model = tiny.decoder()
    cache = slots(model, 2)
    cache.begin([4, 4], 4)
    with pytest.raises(ValueError, match="its own positions and no documents"):
        model(tiny.tokens(2, 4), torch.zeros(2, 4, dtype=torch.int32), cache=cache)
