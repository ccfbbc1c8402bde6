"""Random numbers by place, and generators that go on where they stood."""

from __future__ import annotations

import json
import random

import numpy as np
import torch

from windlass.train.parallel.world import World
from windlass.train.randomness import generator_states, restore_generators, seed_for, seed_generators

ALONE = World(device=torch.device("cpu"))


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_seeds_differ_by_place_and_are_positive() -> None:
    seeds = {seed_for(seed, step, row) for seed in range(3) for step in range(20) for row in range(20)}
    assert len(seeds) == 3 * 20 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_for(1, 23) != seed_for(12, 3)
    assert seed_for(0, 1, 2) == 3662037204992188296


def test_seeding_sets_what_torch_draws() -> None:
    seed_generators(5, torch.device("cpu"))
    first = torch.rand(3)
    seed_generators(5, torch.device("cpu"))
    assert torch.equal(torch.rand(3), first)


def test_states_survive_json_and_give_the_same_numbers() -> None:
    draw()
    random.gauss(0, 1)  # leaves half a pair behind
    states = json.loads(json.dumps(generator_states(ALONE)))
    expected = draw()
    draw()
    assert restore_generators(states, ALONE)
    assert draw() == expected


def test_states_of_another_number_of_processes_are_left_alone() -> None:
    states = generator_states(ALONE)
    assert not restore_generators({**states, "world": 2}, ALONE)
    assert not restore_generators(None, ALONE)
