"""In-memory Optuna study with ask and tell, imported only when there is something to search.

It does not use Optuna's storage, pruners or `optimize`, because the sweep's journal stores all results. An unused answer
has no effect, and every `ask` uses a new sampler, so that answers depend only on the recorded results.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.trial import Trial, TrialState, create_trial

__all__ = ["Model", "distributions_from_json", "distributions_to_json", "quiet", "reseeded", "suggest"]

Attrs = dict[str, Any]


class Model:
    """Points from which a sampler learns, by index, pending or with values."""

    def __init__(self, directions: Sequence[Literal["minimize", "maximize"]], *, name: str = "windlass") -> None:
        self._storage = _Memory()
        with quiet():
            self._study = optuna.create_study(
                storage=self._storage, study_name=name, directions=list(directions), pruner=optuna.pruners.NopPruner()
            )
        self._id = self._study._study_id

    def __len__(self) -> int:
        return int(self._storage.get_n_trials(self._id))

    def ask(self, sampler: BaseSampler) -> Trial:
        """Add a new pending point.

        Suggest its parameters, then keep it or call `forget_last`.
        """
        self._study.sampler = sampler
        return self._study.ask()

    def forget_last(self, study_attrs: Attrs) -> None:
        """Drop the newest point, and restore the study's attributes as they were before it."""
        self._storage.forget_last(self._id)
        for key in self.study_attrs():
            if key not in study_attrs:
                self._storage.set_study_system_attr(self._id, key, study_attrs.get(key))

    def add(
        self, params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution], attrs: Attrs | None = None
    ) -> int:
        """Add a pending point and return its index."""
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=dict(params),
                distributions={name: distributions[name] for name in params},
                system_attrs=attrs or {},
            )
        )
        return len(self) - 1

    def tell(self, index: int, values: Sequence[float] | None) -> None:
        """Set the values of a point; None or NaN marks the point as failed."""
        is_good = values is not None and not any(map(math.isnan, values))
        self._study.tell(index, values if is_good else None, TrialState.COMPLETE if is_good else TrialState.FAIL)

    def trial_attrs(self, index: int) -> Attrs:
        """Return the attributes that the sampler has set on a point."""
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, index)
        return dict(self._storage.get_trial(trial_id).system_attrs)

    def study_attrs(self) -> Attrs:
        """Return the attributes that the sampler has set on the study."""
        return {
            key: value for key, value in self._storage.get_study_system_attrs(self._id).items() if value is not None
        }

    def set_study_attrs(self, attrs: Attrs) -> None:
        """Set study attributes that a sampler had set before the sweep was restored."""
        for key, value in attrs.items():
            self._storage.set_study_system_attr(self._id, key, value)


class _Memory(InMemoryStorage):
    """Storage that can drop its newest trial, for which Optuna has no public method."""

    def forget_last(self, study_id: int) -> None:
        trial = self._studies[study_id].trials.pop()
        del self._trial_id_to_study_id_and_number[trial._trial_id]
        self._max_trial_id -= 1


def distributions_to_json(distributions: Mapping[str, BaseDistribution]) -> dict[str, str]:
    """Return distributions in Optuna's JSON form, by name."""
    return {name: optuna.distributions.distribution_to_json(found) for name, found in distributions.items()}


def distributions_from_json(data: Mapping[str, str]) -> dict[str, BaseDistribution]:
    """Decode the output of `distributions_to_json`."""
    return {name: optuna.distributions.json_to_distribution(text) for name, text in data.items()}


def suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    """Return the parameter that the sampler has chosen, or chooses now."""
    if isinstance(distribution, FloatDistribution):
        low, high, step = distribution.low, distribution.high, distribution.step
        return trial.suggest_float(name, low, high, step=step, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    assert isinstance(distribution, CategoricalDistribution)
    return trial.suggest_categorical(name, distribution.choices)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's messages about new studies and experimental or deprecated features."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "`(gamma|constraints_func)`", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def reseeded(sampler: BaseSampler, seed: int) -> BaseSampler | None:
    """Return a copy of a sampler with its generators reseeded, or None if it has none."""
    made = copy.deepcopy(sampler)
    states = list(_generators(made, set()))
    for number, state in enumerate(states):
        state.seed((seed + number) % 2**32)
    return made if states else None


def _generators(holder: object, seen: set[int]) -> Iterator[np.random.RandomState]:
    for value in vars(holder).values():
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.random.RandomState):
            yield value
        elif type(value).__name__ == "LazyRandomState":
            yield value.rng
        elif type(value).__module__.startswith("optuna.samplers") and hasattr(value, "__dict__"):
            yield from _generators(value, seen)
