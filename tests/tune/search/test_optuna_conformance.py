"""Optuna's own conformance suites, run on windlass's searchers: each is made a sampler that replays the study to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import optuna
import pytest
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)
from optuna.trial import FrozenTrial, TrialState

from windlass.core.errors import UsageError
from windlass.tune.search import BasicVariantGenerator, Objectives, Suggestion
from windlass.tune.search.optuna.bohb import BOHB
from windlass.tune.search.optuna.from_optuna import as_space
from windlass.tune.search.optuna.optuna_search import OptunaSearch
from windlass.tune.search.optuna.samplers import CMAES, NSGA2, NSGA3, TPE
from windlass.tune.search.quasi_random import QuasiRandom

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Replaying(BaseSampler):
    """Asks a fresh searcher for every point, after telling it all points of the study."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        found = IntersectionSearchSpace().calculate(study)
        return {name: distribution for name, distribution in found.items() if not distribution.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._ask(study, trial, search_space) if search_space else self._refuse_goals(study)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._ask(study, trial, {param_name: param_distribution})[param_name]

    def _refuse_goals(self, study: Study) -> dict[str, Any]:
        self._open(study, {"x": optuna.distributions.FloatDistribution(0, 1)})
        return {}

    def _open(self, study: Study, space: dict[str, BaseDistribution]) -> Any:
        searcher = self._make()
        objectives = Objectives(
            metrics=tuple(f"m{number}" for number in range(len(study.directions))),
            is_max=tuple(direction == StudyDirection.MAXIMIZE for direction in study.directions),
        )
        try:
            searcher.open(space=as_space(space), objectives=objectives, seed=1, num_samples=-1)
        except UsageError as error:
            raise ValueError(error.message) from error
        return searcher

    def _ask(self, study: Study, trial: FrozenTrial, space: dict[str, BaseDistribution]) -> dict[str, Any]:
        searcher = self._open(study, space)
        for before in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL)):
            config = {name: before.params[name] for name in space if name in before.params}
            if before.number < trial.number and len(config) == len(space) and searcher.space.locate(config) is not None:
                searcher.on_suggested(before.number, Suggestion(config=config))
                values = before.values or []
                result = {f"m{index}": value for index, value in enumerate(values)} or None
                searcher.on_complete(before.number, result)
        suggestion = searcher.suggest(trial.number)
        assert isinstance(suggestion, Suggestion)
        return dict(suggestion.config)


class _Ours:
    make: ClassVar[Callable[[], Any]]

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        make = type(self).make
        return lambda: Replaying(make)

    @pytest.fixture(autouse=True)
    def _quiet(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield


class TestTPE(_Ours, BasicSamplerTestCase, RelativeSamplerTestCase):
    make = staticmethod(lambda: TPE(n_startup_trials=2))


class TestHalton(_Ours, BasicSamplerTestCase):
    make = staticmethod(lambda: QuasiRandom("halton"))


class TestCMAES(_Ours, BasicSamplerTestCase, SingleOnlySamplerTestCase):
    make = staticmethod(lambda: CMAES(n_startup_trials=1))


@pytest.mark.soak
class TestBOHB(_Ours, BasicSamplerTestCase, SingleOnlySamplerTestCase):
    make = staticmethod(BOHB)


@pytest.mark.soak
class TestNSGA2(_Ours, BasicSamplerTestCase):
    make = staticmethod(lambda: NSGA2(population_size=2))


@pytest.mark.soak
class TestMultiObjectiveTPE(_Ours, MultiObjectiveSamplerTestCase):
    make = staticmethod(TPE)


@pytest.mark.soak
class TestRandom(_Ours, BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    make = staticmethod(BasicVariantGenerator)


@pytest.mark.soak
class TestSobol(_Ours, BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    make = staticmethod(QuasiRandom)


@pytest.mark.soak
class TestRelativeHalton(_Ours, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    make = staticmethod(lambda: QuasiRandom("halton"))


@pytest.mark.soak
class TestRelativeCMAES(_Ours, RelativeSamplerTestCase):
    make = staticmethod(lambda: CMAES(n_startup_trials=1))


@pytest.mark.soak
class TestRelativeBOHB(_Ours, RelativeSamplerTestCase):
    make = staticmethod(BOHB)


@pytest.mark.soak
class TestOptunaSearch(_Ours, BasicSamplerTestCase, RelativeSamplerTestCase):
    make = staticmethod(lambda: OptunaSearch(sampler=optuna.samplers.TPESampler(n_startup_trials=1)))


@pytest.mark.soak
class TestMoreNSGA2(_Ours, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    make = staticmethod(lambda: NSGA2(population_size=2))


@pytest.mark.soak
class TestNSGA3(_Ours, BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    make = staticmethod(lambda: NSGA3(population_size=2))
