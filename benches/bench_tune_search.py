"""Quality of search: windlass beside Optuna alone and Ray Tune's OptunaSearch, with the same sampler and budget.

`python benches/bench_tune_search.py [seeds]`. The score is the regret after 25, 50 and 100 trials, as a share of that of
a typical random point, over seeds; with one worker, and with four that finish in random order. Ray's searcher object is
driven without `ray.init`. Then learning curves that cross, under a virtual clock: what early stopping finds in the same
time. Needs Optuna, Ray and scikit-learn: those of this interpreter, or of `.venv-dev` (`make setup`).
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist, mean
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

AT = (25, 50, 100)
NUM_SEEDS = 20
LIMIT = 0.001  # a p-value below this says that we are worse; there are some 50 comparisons

Ask = Callable[[int], dict[str, Any]]
Tell = Callable[[int, float], None]


def main() -> int:
    """Print the tables; 1 when an engine is better than windlass beyond chance."""
    if any(importlib.util.find_spec(name) is None for name in ("optuna", "ray", "sklearn")):
        python = str(ROOT / ".venv-dev" / "bin" / "python")
        return subprocess.run([python, __file__, *sys.argv[1:]], check=False).returncode
    import optuna

    from benches.tune_landscapes import REAL, SYNTHETIC

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    num_seeds = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_SEEDS
    print(f"{num_seeds} seeds, load {os.getloadavg()[0]:.1f}; regret after {AT} trials, 1 = a typical random point")
    verdicts: list[tuple[str, bool]] = []
    for sampler, workers, problems in (
        ("random", 1, SYNTHETIC),
        ("tpe", 1, (*SYNTHETIC, *REAL)),
        ("tpe", 4, SYNTHETIC[:3]),
        ("cmaes", 1, [one for one in SYNTHETIC if one.is_flat]),
    ):
        verdicts.extend(compare(problem, sampler, workers, num_seeds) for problem in problems)
    curves(num_seeds)
    worse = [name for name, is_worse in verdicts if is_worse]
    print(f"worse beyond chance: {', '.join(worse) or 'nowhere'}")
    return int(bool(worse))


def compare(problem: Any, sampler: str, workers: int, num_seeds: int) -> tuple[str, bool]:
    """One problem by all engines; whether one of them is better than ours beyond chance."""
    engines = {"windlass": ours, "optuna": optuna_alone, "ray": rays}
    if sampler == "random" or not problem.is_flat:
        engines.pop("ray")  # OptunaSearch takes no random search of ours, and no conditions
    runs = {name: [trace(problem, make(problem, sampler, seed), workers, seed) for seed in range(num_seeds)]
            for name, make in engines.items()}  # fmt: skip
    least = problem.least
    if least is None:
        least = min(min(run) for of_one in runs.values() for run in of_one)
    scale = problem.typical(200) - least
    print(f"{sampler}, {workers} worker{'s' * (workers > 1)}: {problem.name}")
    is_worse = False
    regrets = {name: [[(run[at - 1] - least) / scale for run in of_one] for at in AT] for name, of_one in runs.items()}
    for name, found in regrets.items():
        line = "".join(f"{mean(each):10.4f} +- {error(each):6.4f}" for each in found)
        chance = (
            []
            if name == "windlass"
            else [p_worse(mine, its) for mine, its in zip(regrets["windlass"], found, strict=True)]
        )
        is_worse |= any(p < LIMIT for p in chance)
        print(
            f"    {name:<10}{line}" + (f"    p(we are worse) {' '.join(f'{p:.2f}' for p in chance)}" if chance else "")
        )
    return f"{sampler}/{workers} {problem.name}", is_worse


def trace(problem: Any, engine: tuple[Ask, Tell], workers: int, seed: int, num_trials: int = AT[-1]) -> list[float]:
    """The best value so far after every trial; without the noise, where the problem has one."""
    ask, tell = engine
    chance = random.Random(seed)
    running: list[tuple[int, dict[str, Any]]] = []
    found: list[float] = []
    best, number = math.inf, 0
    while len(found) < num_trials:
        while len(running) < workers:
            running.append((number, ask(number)))
            number += 1
        done, config = running.pop(chance.randrange(len(running)))
        tell(done, problem.score(config, done + 1000 * seed))
        best = min(best, true_value(problem, config))
        found.append(best)
    return found


def true_value(problem: Any, config: Mapping[str, Any]) -> float:
    """The value of a point without noise."""
    from benches.tune_landscapes import branin

    return branin(config["x"], config["y"]) if "noisy" in problem.name else float(problem.score(config, 0))


def ours(problem: Any, sampler: str, seed: int) -> tuple[Ask, Tell]:
    """Ours, through the protocol of searchers."""
    from windlass.tune.search import Objectives, create_searcher

    searcher = create_searcher(sampler)
    searcher.open(
        space=problem.space(), objectives=Objectives(metrics=("loss",), is_max=(False,)), seed=seed, num_samples=-1
    )

    def ask(number: int) -> dict[str, Any]:
        suggestion: Any = searcher.suggest(number)
        searcher.on_suggested(number, suggestion)
        config: dict[str, Any] = suggestion.config
        return config

    return ask, lambda number, value: searcher.on_complete(number, {"loss": value})


def optuna_alone(problem: Any, sampler: str, seed: int) -> tuple[Ask, Tell]:
    """Optuna's study, with the same sampler and its own defaults."""
    import optuna

    study = optuna.create_study(sampler=sampler_of(sampler, seed))
    trials: dict[int, Any] = {}

    def ask(number: int) -> dict[str, Any]:
        trials[number] = study.ask()
        config: dict[str, Any] = suggested(trials[number], problem.space())
        return config

    return ask, lambda number, value: (study.tell(trials[number], value), None)[1]


def rays(problem: Any, sampler: str, seed: int) -> tuple[Ask, Tell]:
    """Ray Tune's searcher object, without Ray."""
    from ray.tune.search.optuna import OptunaSearch

    space = {name: distribution(domain) for name, domain in problem.space().items()}
    search: Any = OptunaSearch(space, metric="loss", mode="min", sampler=sampler_of(sampler, seed))

    def tell(number: int, value: float) -> None:
        search.on_trial_complete(str(number), {"loss": value})

    return (lambda number: search.suggest(str(number))), tell


def sampler_of(name: str, seed: int) -> Any:
    """Optuna's sampler with its defaults."""
    from optuna import samplers

    made = {"tpe": samplers.TPESampler, "cmaes": samplers.CmaEsSampler, "random": samplers.RandomSampler}[name]
    return made(seed=seed)


def distribution(domain: Any) -> Any:
    """A float of ours in Optuna's words."""
    from optuna.distributions import FloatDistribution

    return FloatDistribution(domain.lower, domain.upper, log=domain.is_log)


def suggested(trial: Any, space: Any, name: str = "") -> Any:
    """A space of ours by a trial's own methods, conditions by an `if`, as Optuna's users write it."""
    from windlass.tune.space import Categorical, Float

    if isinstance(space, Float):
        return trial.suggest_float(name, space.lower, space.upper, log=space.is_log)
    if isinstance(space, Categorical):
        index = trial.suggest_categorical(name, list(range(len(space.categories))))
        return suggested(trial, space.categories[index], f"{name}{index}")
    if isinstance(space, dict):
        return {key: suggested(trial, value, f"{name}/{key}") for key, value in space.items()}
    return space


def error(values: list[float]) -> float:
    """The standard error of a mean."""
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / max(len(values) - 1, 1) / len(values))


def p_worse(mine: list[float], other: list[float]) -> float:
    """How likely ours would look so much worse by chance alone (Mann and Whitney, one-sided, normal approximation)."""
    pairs = [(one > its) + 0.5 * (one == its) for one in mine for its in other]
    spread = math.sqrt(len(pairs) * (len(mine) + len(other) + 1) / 12)
    return 1.0 - NormalDist(len(pairs) / 2, spread).cdf(sum(pairs) - 0.5)


# ------------------------------------------------------------------------------------------------- learning curves


class Crossing:
    """Curves whose early order is not their last: a fast start with a low end, a slow start with a high one."""

    num_steps = 27

    def duration_s(self, config: Mapping[str, Any], iteration: int) -> float:
        del config, iteration
        return 1.0

    def step(self, state: float, config: Mapping[str, Any], iteration: int) -> tuple[float, dict[str, Any]]:
        del state
        height = 1.0 - (math.log10(config["lr"]) + 3) ** 2 / 9 - (config["width"] - 0.7) ** 2
        pace = 2.0 + 14.0 * config["width"]
        score = height * (1.0 - math.exp(-iteration / pace))
        return score, {"score": score, "done": iteration >= self.num_steps}


def curves(num_seeds: int) -> None:
    """What is found in 60, 120 and 240 trials' worth of time on four slots."""
    import windlass.tune.schedulers
    from windlass.tune.search import BasicVariantGenerator
    from windlass.tune.search.optuna.bohb import BOHB
    from windlass.tune.search.optuna.samplers import TPE

    schedulers: Any = windlass.tune.schedulers
    kinds: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "FIFO, random": (schedulers.FIFO, BasicVariantGenerator),
        "FIFO, TPE": (schedulers.FIFO, TPE),
        "median, random": (lambda: schedulers.MedianStoppingRule(time_attr="training_iteration", grace_period=3), BasicVariantGenerator),
        "ASHA, random": (lambda: schedulers.AsyncHyperBandScheduler(max_t=27, reduction_factor=3), BasicVariantGenerator),
        "ASHA, TPE": (lambda: schedulers.AsyncHyperBandScheduler(max_t=27, reduction_factor=3), TPE),
        "ASHA, BOHB": (lambda: schedulers.AsyncHyperBandScheduler(max_t=27, reduction_factor=3), BOHB),
        "HyperBandForBOHB, BOHB": (lambda: schedulers.HyperBandForBOHB(max_t=27), BOHB),
    }  # fmt: skip
    budgets = [27.0 * trials / 4 for trials in (15, 30, 60)]
    print(f"curves that cross, four slots: best final score found after {[f'{budget:.0f} s' for budget in budgets]}")
    for name, (scheduler, searcher) in kinds.items():
        found = [curve_run(scheduler(), searcher(), seed, budgets) for seed in range(num_seeds)]
        print(
            f"    {name:<24}"
            + "".join(f"{mean(each):9.4f} +- {error(list(each)):6.4f}" for each in zip(*found, strict=True))
        )


def curve_run(scheduler: Any, searcher: Any, seed: int, budgets: list[float]) -> list[float]:
    """One sweep under the virtual clock; the score that the best configuration reported by then would reach in the end."""
    from windlass.testing.virtual_trials import VirtualExecutor, VirtualWorld
    from windlass.tune.controller.controller import Controller
    from windlass.tune.controller.settings import SweepSettings
    from windlass.tune.executors.protocol import Work
    from windlass.tune.search import Objectives
    from windlass.tune.space.primitives import loguniform, uniform

    curve = Crossing()
    world = VirtualWorld(curve, [f"node/{slot}" for slot in range(4)])
    begin, told = world.clock.monotonic(), []
    inner = curve.step

    def step(state: float, config: Mapping[str, Any], iteration: int) -> tuple[float, dict[str, Any]]:
        answer = inner(state, config, iteration)
        told.append((world.clock.monotonic() - begin, answer[0], dict(config)))
        return answer

    curve.step = step  # type: ignore[method-assign]

    def drop(path: str) -> None:
        world.checkpoints.pop(path, None)

    with tempfile.TemporaryDirectory() as folder:
        Controller(
            settings=SweepSettings(
                name="curves", objectives=Objectives(metrics=("score",), is_max=(True,)), num_samples=-1, seed=seed,
                time_budget_s=budgets[-1],
            ),
            space={"lr": loguniform(1e-6, 1), "width": uniform(0, 1)},
            searcher=searcher, scheduler=scheduler, executor=VirtualExecutor(world), folder=folder, clock=world.clock,
            work=Work(trainable=Crossing, name="curves", folder=folder, storage=folder),
            drop=drop,
        ).run()  # fmt: skip
    scores = []
    for budget in budgets:
        _, config = max(((score, id(config)), config) for at, score, config in told if at <= budget)
        scores.append(inner(0.0, config, Crossing.num_steps)[0])
    return scores


if __name__ == "__main__":
    sys.exit(main())
