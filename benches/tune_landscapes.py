"""Problems for searchers: synthetic functions with known optima, and models on scikit-learn's bundled tables.

A problem is minimised. `space()` is in windlass's words; `score(config, number)` may use the number of the trial for its
noise, so that every engine meets the same problem.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from windlass.tune.space.primitives import choice, loguniform, uniform

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """Something to minimise.

    Attributes:
        least: the least value there is; for real problems the best that was ever seen (`None`: take it from the runs).
        typical: what a random configuration has, to scale regrets.
        is_flat: whether every parameter is always there (what samplers without conditions can search).
    """

    name: str
    space: Callable[[], dict[str, Any]]
    score: Callable[[Config, int], float]
    least: float | None = None
    is_flat: bool = True

    def typical(self, number: int = 1000) -> float:
        """The median score of random configurations."""
        from windlass.tune.space import Space

        space = Space(self.space())
        found = sorted(self.score(space.draw(0, "typical", index)[0], index) for index in range(number))
        return found[len(found) // 2]


def branin(x: float, y: float) -> float:
    """Three equal minima of 0.397887."""
    b, c, t = 5.1 / (4 * math.pi**2), 5 / math.pi, 1 / (8 * math.pi)
    return (y - b * x * x + c * x - 6) ** 2 + 10 * (1 - t) * math.cos(x) + 10


_ALPHA = (1.0, 1.2, 3.0, 3.2)
_A = (
    (10, 3, 17, 3.5, 1.7, 8),
    (0.05, 10, 17, 0.1, 8, 14),
    (3, 3.5, 1.7, 10, 17, 8),
    (17, 8, 0.05, 10, 0.1, 14),
)
_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)


def hartmann6(config: Config) -> float:
    """Six dimensions, least -3.32237."""
    x = vector(config, 6)
    inner = (sum(a * (v - p) ** 2 for a, v, p in zip(row, x, at, strict=True)) for row, at in zip(_A, _P, strict=True))
    return -sum(alpha * math.exp(-value) for alpha, value in zip(_ALPHA, inner, strict=True))


def ackley(x: list[float]) -> float:
    """Many shallow minima, least 0 at the origin."""
    square, wave = sum(v * v for v in x) / len(x), sum(math.cos(2 * math.pi * v) for v in x) / len(x)
    return -20 * math.exp(-0.2 * math.sqrt(square)) - math.exp(wave) + 20 + math.e


def rosenbrock(x: list[float]) -> float:
    """A bent valley, least 0 at all ones."""
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in pairwise(x))


def vector(config: Config, size: int) -> list[float]:
    """x0, x1, ... as a list."""
    return [config[f"x{index}"] for index in range(size)]


def box(size: int, low: float, high: float) -> Callable[[], dict[str, Any]]:
    """A space of so many floats."""
    return lambda: {f"x{index}": uniform(low, high) for index in range(size)}


def shifted_ackley(config: Config, number: int) -> float:
    """Ackley with its optimum off the centre, where searchers that begin in the middle would find it."""
    del number
    return ackley([value - 3.7 - 0.9 * index for index, value in enumerate(vector(config, 10))])


def noisy_branin(config: Config, number: int) -> float:
    """Branin with a noise of 5 on each value."""
    return branin(config["x"], config["y"]) + random.Random(number).gauss(0, 5)


def conditional(config: Config, number: int) -> float:
    """Two methods with parameters of their own; the worse one looks better at first sight. Least 0."""
    del number
    method = config["method"]
    if method["name"] == "plain":
        return 1.0 + abs(math.log10(method["lr"]) + 2)
    wide = (math.log10(method["step"]) + 3.5) ** 2 + 4 * (method["momentum"] - 0.85) ** 2
    return float(wide + 0.5 * abs(config["decay"] - 0.3))


def conditional_space() -> dict[str, Any]:
    """The space of `conditional`."""
    return {
        "method": choice(
            [
                {"name": "plain", "lr": loguniform(1e-5, 1)},
                {"name": "momentum", "step": loguniform(1e-6, 1), "momentum": uniform(0, 1)},
            ]
        ),
        "decay": uniform(0, 1),
    }


SYNTHETIC = (
    Problem(
        "branin", lambda: {"x": uniform(-5, 10), "y": uniform(0, 15)}, lambda c, _: branin(c["x"], c["y"]), 0.397887
    ),
    Problem("hartmann-6", box(6, 0, 1), lambda c, _: hartmann6(c), -3.32237),
    Problem("ackley-10", box(10, -32.768, 32.768), shifted_ackley, 0.0),
    Problem("rosenbrock-10", box(10, -5, 10), lambda c, _: rosenbrock(vector(c, 10)), 0.0),
    Problem("branin, noisy", lambda: {"x": uniform(-5, 10), "y": uniform(0, 15)}, noisy_branin, 0.397887),
    Problem("conditional", conditional_space, conditional, 0.0, is_flat=False),
)


# ---------------------------------------------------------------------------------------------------- real problems


@cache
def _table(name: str) -> Any:
    from sklearn import datasets
    from sklearn.preprocessing import StandardScaler

    data, target = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = random.Random(1).sample(range(len(data)), min(len(data), 400))
    return StandardScaler().fit_transform(data[order]), target[order]


@cache
def _support_vectors(name: str, log_c: float, log_gamma: float) -> float:
    """Error of a support vector machine in three folds, 1 - R2 for the numeric target; 5 to 60 ms."""
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC, SVR

    data, target = _table(name)
    model = (SVR if name == "diabetes" else SVC)(C=10**log_c, gamma=10**log_gamma)
    return 1.0 - float(cross_val_score(model, data, target, cv=3).mean())


def _real(name: str) -> Problem:
    def score(config: Config, number: int) -> float:
        del number
        log_c, log_gamma = (round(math.log10(config[key]), 1) for key in ("C", "gamma"))
        return _support_vectors(name, log_c, log_gamma)

    return Problem(name, lambda: {"C": loguniform(1e-3, 1e4), "gamma": loguniform(1e-6, 10)}, score)


REAL = (_real("digits"), _real("breast_cancer"), _real("diabetes"))
