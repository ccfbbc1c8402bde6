"""`Tuner`: a sweep started from Python, using Ray Tune's names."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.tune.errors import BadValueError
from windlass.tune.tuner.configs import ResumeConfig, RunConfig, TuneConfig

if TYPE_CHECKING:
    from windlass.tune.results.grid import ResultGrid

__all__ = ["Tuner"]


class Tuner:
    """Sweep that runs a trainable over a search space.

    The constructor checks all arguments and their combination; nothing starts before `fit`.

    Args:
        trainable: a function of a configuration that calls `tune.report`, a subclass of `tune.Trainable`, or the name
            of a registered one.
        param_space: names to fixed values and to `tune.uniform(...)`, `tune.choice(...)` and the like, nested freely.
        tune_config: settings of the search.
        run_config: settings of storage, stop conditions and output.
    """

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        from windlass.tune.tuner.setup import make_setup  # lazy: importing a class of this module must stay cheap

        if trainable is None:
            hint = "pass a function of the configuration, or a subclass of tune.Trainable"
            raise BadValueError("Tuner() has nothing to tune", hint=hint, code="missing-argument")
        self._run = run_config or RunConfig()
        self._setup = make_setup(trainable, param_space, tune_config or TuneConfig(), self._run)
        self._restoring: dict[str, Any] | None = None
        self._results: ResultGrid | None = None

    @classmethod
    def restore(
        cls,
        path: str | Path,
        trainable: Any,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        *,
        resume_config: ResumeConfig | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> Tuner:
        """Return the sweep in a folder, which `fit` continues exactly where it stopped. Idempotent.

        Schedulers, searchers and all settings come from the journal.

        Args:
            path: the sweep's folder, or the URL with its checkpoints.
            trainable: the same trainable as before, because code is not in the journal.
            resume_unfinished: False treats unfinished trials as ended.
            resume_errored: whether failed trials resume from their newest checkpoint.
            restart_errored: whether failed trials restart from the beginning.
            param_space: the same space as before; needed if it has functions that are not in a module.
            resume_config: all of these options in one object; `finished` trials can resume, too.
            tune_config: its executor, and a scheduler or search algorithm that needs the caller's code.
            run_config: its stop condition if that needs code, its callbacks and its view.

        Raises:
            NotFoundError: the folder holds no sweep (`sweep-not-found`).
            PreconditionError: the trainable differs, or code must be passed again.
        """
        if (resume_errored and restart_errored) or (resume_config is not None and (resume_errored or restart_errored)):
            message = "resume_errored, restart_errored and resume_config are mutually exclusive"
            raise BadValueError(message, hint="give one of them", code="invalid-value")
        errored = "resume" if resume_errored else "restart" if restart_errored else "skip"
        resume = resume_config or ResumeConfig(unfinished="resume" if resume_unfinished else "skip", errored=errored)
        return cls._of_folder(path, trainable, param_space, resume, tune_config, run_config, None)

    @classmethod
    def extend(
        cls,
        path: str | Path,
        trainable: Any,
        *,
        num_samples: int | None = None,
        stop: Any = None,
        param_space: Mapping[str, Any] | None = None,
        time_budget_s: float | None = None,
        max_concurrent_trials: int | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> Tuner:
        """Return the sweep in a folder, finished or not, with an extension that is stored in the journal.

        Args:
            path, trainable, tune_config, run_config: as for `restore`.
            num_samples: new total number of samples; -1 samples without end.
            stop: new stop condition; trials that have already ended stay ended.
            param_space: new space for future trials, with the same names.
            time_budget_s: new total time budget, including the time used; 0 for none.
            max_concurrent_trials: maximum number of running trials; 0 for as many as fit.

        Raises:
            SpaceError: the space has different names (`sweep-differs`).
        """
        TuneConfig(  # raises for invalid values
            num_samples=1 if num_samples is None else num_samples,
            time_budget_s=time_budget_s,
            max_concurrent_trials=max_concurrent_trials,
        )
        given = {"num_samples": num_samples, "time_budget_s": time_budget_s, "max_concurrent": max_concurrent_trials}
        more: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if param_space is not None:
            more["space"] = True
        run = copy.copy(run_config) or RunConfig()
        if stop is not None:
            run.stop, more["stop"] = stop, True
        return cls._of_folder(path, trainable, param_space, ResumeConfig(), tune_config, run, more)

    @classmethod
    def _of_folder(
        cls,
        path: str | Path,
        trainable: Any,
        param_space: Mapping[str, Any] | None,
        resume: ResumeConfig,
        tune_config: TuneConfig | None,
        run_config: RunConfig | None,
        more: Mapping[str, Any] | None,
    ) -> Tuner:
        from windlass.tune.results.grid import ResultGrid  # lazy: see __init__
        from windlass.tune.tuner.restoring import folder_at, make_restored, restoring  # lazy: as above

        made = cls.__new__(cls)
        made._run = run_config or RunConfig()
        folder = folder_at(path)
        made._setup = make_restored(
            folder,
            trainable,
            param_space=param_space,
            tuning=tune_config or TuneConfig(),
            run=made._run,
            is_extended=more is not None,
        )
        made._restoring = restoring(made._setup, resume, more, note=lambda text: sys.stderr.write(f"{text}\n"))
        made._results = ResultGrid(folder.path)
        return made

    @staticmethod
    def can_restore(path: str | Path) -> bool:
        """Return whether a folder contains a sweep."""
        from windlass.tune.tuner.restoring import folder_at  # lazy: see __init__

        journal = folder_at(path).head_journal
        return journal.exists() and journal.stat().st_size > 0

    def fit(self) -> ResultGrid:
        """Run the sweep to its end and return its results. Blocks.

        Failed trials are in the results; they raise an error only with `fail_fast="raise"`. The first Ctrl-C lets trials
        save, ends the sweep, and returns the results so far; `Tuner.restore` continues it. If the folder holds an
        earlier sweep, the new folder gets a number.

        Raises:
            WindlassError: an error that concerns the whole sweep, such as a metric that no trial reports.
        """
        from windlass.tune.tuner.head import run_head  # lazy: see __init__

        self._results = run_head(self._setup, self._run, restoring=self._restoring)
        return self._results

    def get_results(self) -> ResultGrid:
        """Return the results of a sweep that has been run or restored.

        Raises:
            UsageError: it has been neither run nor restored.
        """
        if self._results is None:
            raise BadValueError("the sweep has not run yet", hint="call fit() first", code="invalid-call")
        return self._results
