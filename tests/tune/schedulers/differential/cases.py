"""Which schedulers are compared, with which arguments and habits; each case makes both sides from one seed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from random import Random
from typing import Any
from unittest.mock import patch

from tests.tune.schedulers.differential.our_side import OurSide
from tests.tune.schedulers.differential.streams import Habits
from windlass.tune import schedulers as ours
from windlass.tune.rng import draw
from windlass.tune.space.primitives import uniform

Both = tuple[OurSide, Any, Habits]


def fifo(seed: int) -> Both:
    from ray.tune import schedulers as rays

    return OurSide(ours.FIFO()), _side(rays.FIFOScheduler()), Habits(pauses=0.1, ends=0.1, num_events=40)


def asha(seed: int) -> Both:
    from ray.tune import schedulers as rays

    rng = Random(seed)
    arguments = {
        **_goal(rng),
        "time_attr": rng.choice(["training_iteration", "epoch"]),
        "max_t": rng.choice([9, 16, 27, 50]),
        "grace_period": rng.choice([1, 1, 2, 3]),
        "reduction_factor": rng.choice([2, 3, 4, 1.5]),
        "brackets": rng.choice([1, 1, 2, 3]),
        "stop_last_trials": rng.random() < 0.7,
    }
    side = _side(rays.AsyncHyperBandScheduler(**arguments))
    add = side.add

    def add_with_our_draw(trial_id: str, config: Any, shape: Any) -> str:
        with _choice(lambda weights: _drawn(weights, draw(seed, "bracket", trial_id))):
            return str(add(trial_id, config, shape))

    def fail_with_our_draw(trial_id: str, is_final: bool) -> str:
        with _choice(lambda weights: _drawn(weights, draw(seed, "bracket", trial_id))):
            return str(fail(trial_id, is_final))

    fail, side.add, side.fail = side.fail, add_with_our_draw, fail_with_our_draw
    habits = Habits(
        time_attr=arguments["time_attr"], pauses=0.05, is_whole=rng.random() < 0.7, max_trials=20, num_events=100
    )
    return OurSide(ours.AsyncHyperBandScheduler(**arguments), seed=seed), side, habits


def hyperband(seed: int) -> Both:
    from ray.tune import schedulers as rays

    return _hyperband(seed, rays.HyperBandScheduler, ours.HyperBandScheduler)


def bohb(seed: int) -> Both:
    from ray.tune import schedulers as rays

    both = _hyperband(seed, rays.HyperBandForBOHB, ours.HyperBandForBOHB)
    both[1].scheduler.is_bohb = True
    return both


def hyperband_as_it_is(seed: int) -> Both:
    """Ray's scheduler untouched, in streams where its flag makes no difference: nothing ends but by the scheduler."""
    mine, side, habits = hyperband(seed)
    side.mends = False
    gentle = Habits(time_attr=habits.time_attr, ends=0, lacks=0, skips=0, max_trials=24, num_events=130)
    return mine, side, gentle


def median(seed: int) -> Both:
    from ray.tune import schedulers as rays

    rng = Random(seed)
    arguments = {
        **_goal(rng),
        "time_attr": rng.choice(["training_iteration", "seconds"]),
        "grace_period": rng.choice([0, 1, 3, 4.5]),
        "min_samples_required": rng.choice([1, 2, 3, 4]),
        "min_time_slice": rng.choice([0, 0, 2]),
        "hard_stop": rng.random() < 0.7,
    }
    is_whole = arguments["time_attr"] == "training_iteration" or rng.random() < 0.3
    habits = Habits(
        time_attr=arguments["time_attr"], is_whole=is_whole, pauses=0.03, lacks_at_end=False, num_events=90,
        num_slots=rng.choice([3, 8]),
    )  # fmt: skip
    return OurSide(ours.MedianStoppingRule(**arguments)), _side(rays.MedianStoppingRule(**arguments)), habits


def pbt(seed: int) -> Both:
    from tests.tune.schedulers.differential.ray_side import SHARED, OraclePBT

    rng = Random(seed)
    arguments: dict[str, Any] = {
        **_goal(rng),
        "time_attr": "training_iteration",
        "perturbation_interval": rng.choice([1, 2, 3, 2.5]),
        "burn_in_period": rng.choice([0, 0, 4]),
        "quantile_fraction": rng.choice([0.25, 0.5, 0.1, 0.0]),
        "resample_probability": rng.choice([0.25, 0.0, 1.0]),
        "perturbation_factors": rng.choice([(1.2, 0.8), (2.0, 0.5, 1.0)]),
        "require_attrs": rng.random() < 0.5,
        "synch": rng.random() < 0.4,
        "custom_explore_fn": rng.choice([None, double]),
    }
    domain = uniform(1.0, 2.0)

    def drawn() -> float:
        return Random(SHARED.current.getrandbits(64)).random()

    def at_bits() -> float:
        return domain.at(SHARED.current.getrandbits(64))

    mine = {
        "lr": _random,
        "layers": [1, 2, 4],
        "width": domain,
        "deep": {"a": [1, 2, 3], "b": _random},
        "on": [True, 0],
    }
    theirs = {**mine, "lr": drawn, "width": at_bits, "deep": {"a": [1, 2, 3], "b": drawn}}
    keys = rng.sample(sorted(mine), rng.randint(1, len(mine)))
    side = _side(OraclePBT(seed, hyperparam_mutations={key: theirs[key] for key in keys}, **arguments))
    us = OurSide(
        ours.PopulationBasedTraining(hyperparam_mutations={key: mine[key] for key in keys}, **arguments), seed=seed
    )
    given = {"lr": 0.1, "layers": 3, "width": 7, "deep": {"a": 2, "b": 0.5}, "on": True, "rest": "kept"}
    config = {key: value for key, value in given.items() if key == "rest" or rng.random() < 0.7}
    habits = Habits(config=config, num_slots=rng.choice([2, 4, 8]), max_trials=8, num_events=120, skips=0.05)
    return us, side, habits


def resources(seed: int) -> Both:
    from ray.tune import schedulers as rays
    from ray.tune.schedulers import resource_changing_scheduler as ray_changing

    rng = Random(seed)
    is_added = rng.random() < 0.5
    unit = rng.choice([{"CPU": 1.0}, {"CPU": 1.0, "GPU": 0.5}, {"CPU": 2.0}, {"GPU": 1.0}])
    arguments: dict[str, Any] = {
        "add_bundles": is_added,
        "increase_by": unit if rng.random() < 0.6 else None,
        "increase_by_times": rng.choice([-1, -1, 1, 2, 3]),
        "reserve_resources": rng.choice([None, {"CPU": 1.0}]),
    }
    name = rng.choice(["DistributeResources", "DistributeResourcesToTopJob"])
    bundles = [unit] * (rng.randint(1, 2) if is_added else 1)
    base = rng.choice(["fifo", "asynchyperband", "median_stopping_rule"])
    goal: dict[str, Any] = {**_goal(rng), "time_attr": "training_iteration", "grace_period": 2}
    if base == "fifo" and name == "DistributeResourcesToTopJob":
        arguments.update(_goal(rng))
    cpus, gpus = rng.choice([4.0, 9.0, 16.0]), rng.choice([0.0, 2.0, 8.0])
    mine = ours.ResourceChangingScheduler(ours.create_scheduler(base, **goal), getattr(ours, name)(**arguments))
    theirs = rays.ResourceChangingScheduler(
        rays.create_scheduler(base, **goal), getattr(ray_changing, name)(**arguments)
    )
    habits = Habits(shape=(bundles, "PACK"), lacks=0.0, odd=0.0, num_slots=6, max_trials=8, num_events=50)
    side = _side(theirs, cpus=cpus, gpus=gpus)
    return OurSide(mine, cpus=cpus, gpus=gpus), side, habits


CASES: dict[str, Callable[[int], Both]] = {
    "fifo": fifo,
    "asha": asha,
    "hyperband": hyperband,
    "hyperband_as_it_is": hyperband_as_it_is,
    "bohb": bohb,
    "median": median,
    "pbt": pbt,
    "resources": resources,
}


def double(config: dict[str, Any]) -> dict[str, Any]:
    """A custom explore function."""
    return {**config, "doubled": 2 * config.get("doubled", 1)}


def _random() -> float:
    import random

    return random.random()


def _goal(rng: Random) -> dict[str, Any]:
    return {"metric": "score", "mode": rng.choice(["max", "min"])}


def _side(scheduler: Any, **arguments: Any) -> Any:
    from tests.tune.schedulers.differential.ray_side import RaySide

    return RaySide(scheduler, **arguments)


def _hyperband(seed: int, theirs: Any, mine: Any) -> Both:
    rng = Random(seed)
    arguments = {
        **_goal(rng),
        "time_attr": rng.choice(["training_iteration", "epoch"]),
        "max_t": rng.choice([4, 9, 9, 16, 27]),
        "reduction_factor": rng.choice([2, 3, 3, 4]),
        "stop_last_trials": rng.random() < 0.7,
    }
    habits = Habits(
        time_attr=arguments["time_attr"], ends=0.05, lacks=0.003, skips=rng.choice([0, 0.05]), max_trials=24,
        num_events=130, is_whole=rng.random() < 0.8,
    )  # fmt: skip
    return OurSide(mine(**arguments)), _side(theirs(**arguments)), habits


@contextmanager
def _choice(pick: Callable[[list[float]], int]) -> Iterator[None]:
    """Let numpy's global choice be made by our draw, from the weights that Ray gives it."""
    import numpy as np

    with patch.object(np.random, "choice", lambda num, p: pick(list(p))):
        yield


def _drawn(weights: list[float], rng: Random) -> int:
    sums = list(accumulate(weights))
    return min(bisect_right(sums, rng.random() * sums[-1]), len(sums) - 1)
