"""`Tuner`: a sweep from Python, with the names of Ray Tune."""

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
    """A sweep: a trainable, the space of its configurations, and how the space is searched.

    Everything that is wrong with the arguments, or with their combination, is refused here; nothing starts before
    `fit`.

    Args:
        trainable: a function of a configuration that calls `tune.report`, a subclass of `tune.Trainable`, or the name
            of a registered one.
        param_space: names to fixed values and to `tune.uniform(...)`, `tune.choice(...)` and the like, nested freely.
        tune_config: how the space is searched.
        run_config: where the state goes, when trials end, what is shown.
    """

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        from windlass.tune.tuner.setup import make_setup  # lazy: reading a class of this module must stay cheap

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
        """The sweep in a folder, which `fit` continues exactly where it is; idempotent.

        Schedulers, searchers and all settings come from the journal.

        Args:
            path: the sweep's folder, or the URL that its checkpoints are below.
            trainable: the one that it ran; code is not in the journal.
            resume_unfinished: False: trials that did not end count as ended.
            resume_errored: failed trials resume from their newest checkpoint.
            restart_errored: failed trials restart from the beginning.
            param_space: the same as before, for a space with functions that are not in a module.
            resume_config: all of these in one; `finished` trials can resume too.
            tune_config: its executor, and a scheduler or search algorithm that needs code of the caller.
            run_config: its stop condition if that needs code, callbacks and view.

        Raises:
            NotFoundError: there is no sweep (`no-such-sweep`).
            PreconditionError: it ran another trainable, or it needs code that must be given again.
        """
        if (resume_errored and restart_errored) or (resume_config is not None and (resume_errored or restart_errored)):
            message = "resume_errored, restart_errored and resume_config exclude each other"
            raise BadValueError(message, hint="give one of them", code="bad-value")
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
        """The sweep in a folder, finished or not, which is to become larger; the journal records how.

        Args:
            path, trainable, tune_config, run_config: as for `restore`.
            num_samples: in all, with those that there are; -1: no end.
            stop: another stop condition; trials that it would have let run on stay ended.
            param_space: another space for the trials to come, with the same names.
            time_budget_s: in all, with the time that was used; 0: none.
            max_concurrent_trials: 0: as many as there is room for.

        Raises:
            SpaceError: the space has other names (`space-names`).
        """
        TuneConfig(  # refuses what makes no sense
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
        """Return whether a folder holds a sweep."""
        from windlass.tune.tuner.restoring import folder_at  # lazy: see __init__

        journal = folder_at(path).head_journal
        return journal.exists() and journal.stat().st_size > 0

    def fit(self) -> ResultGrid:
        """Run the sweep to its end; blocks.

        Failed trials are in the results, they raise nothing unless `fail_fast="raise"`. The first Ctrl-C lets trials
        save, ends the sweep and returns what there is; `Tuner.restore` goes on. Where the folder holds an earlier
        sweep, that one stays and this one's folder gets a number.

        Raises:
            WindlassError: something is wrong for the whole sweep, such as a metric that no trial reports.
        """
        from windlass.tune.tuner.head import run_head  # lazy: see __init__

        self._results = run_head(self._setup, self._run, restoring=self._restoring)
        return self._results

    def get_results(self) -> ResultGrid:
        """The results of a sweep that was run, or restored.

        Raises:
            UsageError: it was neither.
        """
        if self._results is None:
            raise BadValueError("the sweep has not run yet", hint="call fit() first", code="not-run-yet")
        return self._results
