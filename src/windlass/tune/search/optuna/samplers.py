"""Searchers under their usual names: TPE, Gaussian process, CMA-ES, NSGA-II and NSGA-III."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from windlass.tune.errors import BadValueError
from windlass.tune.search.defaults import library
from windlass.tune.search.optuna.searcher import OptunaSearcher
from windlass.tune.space.tree import Pick

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

__all__ = ["CMAES", "GP", "NSGA2", "NSGA3", "TPE"]


class _Named(OptunaSearcher):
    sampler_class: ClassVar[str]
    defaults: ClassVar[dict[str, Any]] = {}

    def make_sampler(self, seed: int) -> BaseSampler:
        """Create the sampler with the user's options, and windlass's defaults for the others."""
        self.check_options()
        made: BaseSampler = self._kind()(seed=seed, **{**self.defaults, **self.more(), **self.options})
        return made

    def _kind(self) -> Any:
        return getattr(library("optuna", self.name).samplers, self.sampler_class)

    def check_options(self) -> None:
        """Check that the sampler has all given options.

        Loads Optuna if there are any.

        Raises:
            UsageError: an option is unknown (`searcher-option`).
        """
        if not self.options:
            return
        known = [name for name in inspect.signature(self._kind()).parameters if name != "seed"]
        for option in self.options:
            if option not in known:
                near = difflib.get_close_matches(option, known, 1)
                raise BadValueError(
                    f"{self.name} has no option `{option}`",
                    hint=f"did you mean `{near[0]}`?" if near else f"it has {', '.join(known)}",
                    code="searcher-option",
                )

    def more(self) -> dict[str, Any]:
        """Return more options, which follow from the space."""
        return {}


class TPE(_Named):
    """Search with a tree-structured Parzen estimator.

    A good default for up to a few hundred trials, with any space and one or several metrics.

    Options are those of Optuna's TPESampler. It is multivariate for one metric, groups parameters that occur together
    if the space has conditional ones, and takes running trials into account (`constant_liar`).

    Source: Bergstra et al. 2011; Watanabe 2023, arXiv 2304.11127.
    """

    name = "TPE"
    sampler_class = "TPESampler"

    def more(self) -> dict[str, Any]:
        """Return `group` if any parameters are conditional."""
        has_conditions = any(isinstance(node, Pick) for node in self.space.parameters)
        may_group = has_conditions and len(self.objectives.metrics) == 1 and self.options.get("multivariate", True)
        return {"constant_liar": True, **({"group": True, "multivariate": True} if may_group else {})}


class GP(_Named):
    """Search with a Gaussian process and expected improvement. Needs torch.

    For few and costly trials with up to about twenty parameters.

    Options are those of Optuna's GPSampler.
    """

    name = "GP"
    sampler_class = "GPSampler"
    defaults: ClassVar[dict[str, Any]] = {"warn_independent_sampling": False}

    def make_sampler(self, seed: int) -> BaseSampler:
        """Create the sampler; raise if scipy or torch is missing."""
        library("scipy", self.name)
        library("torch", self.name, hint="pip install 'windlass[train]'")
        return super().make_sampler(seed)


class CMAES(_Named):
    """Search with covariance matrix adaptation.

    For many trials, numeric parameters (choices are random) and one metric.

    Options are those of Optuna's CmaEsSampler. Source: Hansen 2016, arXiv 1604.00772.
    """

    name = "CMAES"
    sampler_class = "CmaEsSampler"
    defaults: ClassVar[dict[str, Any]] = {"warn_independent_sampling": False}
    is_recalled = True

    def make_sampler(self, seed: int) -> BaseSampler:
        """Create the sampler; raise if cmaes is missing or there are several metrics."""
        library("cmaes", self.name)
        if len(self.objectives.metrics) > 1:
            raise BadValueError(
                f"CMAES optimizes one metric, not {len(self.objectives.metrics)}: {', '.join(self.objectives.metrics)}",
                hint="use NSGA2 or TPE for several",
                code="searcher-option",
            )
        return super().make_sampler(seed)


class NSGA2(_Named):
    """Genetic search for many trials with one or several metrics.

    Options are those of Optuna's NSGAIISampler. Source: Deb et al. 2002.
    """

    name = "NSGA2"
    sampler_class = "NSGAIISampler"


class NSGA3(_Named):
    """Genetic search for four or more metrics, spread over reference points.

    Options are those of Optuna's NSGAIIISampler. Source: Deb and Jain 2014.
    """

    name = "NSGA3"
    sampler_class = "NSGAIIISampler"
