"""Several ranks in one call: what they return, whose failure is raised, and that none stays behind."""

from __future__ import annotations

import os
import time

import pytest

from windlass.testing import DistributedTestError, run_distributed_test
from windlass.train.parallel.world import World

pytestmark = pytest.mark.system


class Named:
    """A class of this file: pickles must find it from another process."""

    def __init__(self, value: int) -> None:
        self.value = value


def talk(world: World, named: Named) -> tuple[float, str, Named]:
    import torch

    assert torch.get_num_threads() == 1
    assert os.environ["WORLD_SIZE"] == str(world.size)
    assert World.begin("cpu").rank == world.rank
    return world.sum_on_host([world.rank + named.value])[0], str(world.device), Named(world.rank)


def fail_on_one(world: World) -> None:
    if world.rank == 1:
        raise ValueError("wheels came off")
    world.barrier()


def die_on_one(world: World) -> None:
    if world.rank == 1:
        os._exit(9)
    world.barrier()


def hang_on_one(world: World) -> None:
    if world.rank == 1:
        time.sleep(600)


def test_ranks_talk_and_return() -> None:
    results = run_distributed_test(talk, num_processes=3, args=(Named(10),))
    assert [result[:2] for result in results] == [(33.0, "cpu")] * 3
    assert [result[2].value for result in results] == [0, 1, 2]


def test_first_failure_is_raised_and_the_others_end() -> None:
    with pytest.raises(DistributedTestError, match=r"(?s)rank 1 of 2 failed.*wheels came off"):
        run_distributed_test(fail_on_one)


def test_a_death_without_a_word_is_told() -> None:
    with pytest.raises(DistributedTestError, match="rank 1 of 2 failed:\nit ended with code 9"):
        run_distributed_test(die_on_one)


def test_time_is_over_and_stacks_are_shown() -> None:
    with pytest.raises(DistributedTestError, match=r"(?s)did not end within 1 s.*hang_on_one"):
        run_distributed_test(hang_on_one, timeout_s=1.0)


def test_a_function_inside_another_is_refused() -> None:
    def inner(world: World) -> None: ...

    with pytest.raises(TypeError, match="top level of a module"):
        run_distributed_test(inner)
