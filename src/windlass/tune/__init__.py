"""Coordinated trials: parallel hyperparameter search that survives the loss of any process or node.

    from windlass import tune

    def train(config):
        for step in range(10):
            tune.report({"loss": (config["x"] - 3) ** 2 / (step + 1)})

    results = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 10)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=20),
    ).fit()
    print(results.get_best_result().config)

The names are those of Ray Tune: a script written for it runs after changing the import (docs/tune-for-ray-users.md).
"""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune import callback as callback
    from windlass.tune import experiment as experiment
    from windlass.tune import followers as followers
    from windlass.tune import integration as integration
    from windlass.tune import logger as logger
    from windlass.tune import pictures as pictures
    from windlass.tune import registry as registry
    from windlass.tune import result as result
    from windlass.tune import results as results
    from windlass.tune import schedulers as schedulers
    from windlass.tune import search as search
    from windlass.tune import space as space
    from windlass.tune import stopper as stopper
    from windlass.tune import trainable as trainable
    from windlass.tune import tuner as tuner
    from windlass.tune import views as views
    from windlass.tune.callback import Callback
    from windlass.tune.classic import TuneError, run, run_experiments
    from windlass.tune.experiment import Experiment
    from windlass.tune.registry import register_env, register_trainable
    from windlass.tune.results.analysis import ExperimentAnalysis
    from windlass.tune.results.grid import ResultGrid
    from windlass.tune.results.result import Result
    from windlass.tune.schedulers.fifo import FIFO
    from windlass.tune.schedulers.hyperband import HyperBandScheduler as HyperBand
    from windlass.tune.schedulers.median_stopping_rule import MedianStoppingRule as MedianStopping
    from windlass.tune.schedulers.pb2 import PB2
    from windlass.tune.schedulers.pbt import PopulationBasedTraining as PBT  # noqa: N817 - its short name
    from windlass.tune.schedulers.registry import ASHA, create_scheduler
    from windlass.tune.search import BasicVariantGenerator as Random
    from windlass.tune.search.concurrency_limiter import ConcurrencyLimiter
    from windlass.tune.search.optuna.bohb import BOHB
    from windlass.tune.search.optuna.optuna_search import OptunaSearch
    from windlass.tune.search.optuna.samplers import CMAES, GP, NSGA2, NSGA3, TPE
    from windlass.tune.search.quasi_random import QuasiRandom
    from windlass.tune.search.registry import create_searcher
    from windlass.tune.search.repeater import Repeater
    from windlass.tune.space.primitives import (
        choice,
        grid_search,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        sample_from,
        uniform,
    )
    from windlass.tune.stopper import Stopper
    from windlass.tune.sweep.launching import launch_sweep
    from windlass.tune.trainable.checkpoint import Checkpoint
    from windlass.tune.trainable.class_api import Trainable
    from windlass.tune.trainable.session import TrialContext as TuneContext
    from windlass.tune.trainable.session import get_checkpoint, get_context, report
    from windlass.tune.trainable.wrapping import PlacementGroupFactory, with_parameters, with_resources
    from windlass.tune.tuner import Tuner
    from windlass.tune.tuner.configs import (
        CheckpointConfig,
        FailureConfig,
        ResumeConfig,
        RunConfig,
        SyncConfig,
        TuneConfig,
    )
    from windlass.tune.views.reporters import CLIReporter, JupyterNotebookReporter, ProgressReporter
else:  # what is not asked for is not imported: a worker of a trial loads what it needs
    __getattr__ = lazy_names(
        __name__,
        {
            __name__: (
                "callback",
                "experiment",
                "followers",
                "integration",
                "logger",
                "pictures",
                "registry",
                "result",
                "results",
                "schedulers",
                "search",
                "space",
                "stopper",
                "trainable",
                "tuner",
                "views",
            ),
            "windlass.tune.callback": ("Callback",),
            "windlass.tune.classic": (
                "TuneError",
                "run",
                "run_experiments",
            ),
            "windlass.tune.experiment": ("Experiment",),
            "windlass.tune.registry": (
                "register_env",
                "register_trainable",
            ),
            "windlass.tune.results.analysis": ("ExperimentAnalysis",),
            "windlass.tune.results.result": ("Result",),
            "windlass.tune.results.grid": ("ResultGrid",),
            "windlass.tune.schedulers.fifo": ("FIFO",),
            "windlass.tune.schedulers.hyperband": ("HyperBandScheduler as HyperBand",),
            "windlass.tune.schedulers.median_stopping_rule": ("MedianStoppingRule as MedianStopping",),
            "windlass.tune.schedulers.pb2": ("PB2",),
            "windlass.tune.schedulers.pbt": ("PopulationBasedTraining as PBT",),
            "windlass.tune.schedulers.registry": (
                "ASHA",
                "create_scheduler",
            ),
            "windlass.tune.search.optuna.bohb": ("BOHB",),
            "windlass.tune.search": ("BasicVariantGenerator as Random",),
            "windlass.tune.search.concurrency_limiter": ("ConcurrencyLimiter",),
            "windlass.tune.search.registry": ("create_searcher",),
            "windlass.tune.search.repeater": ("Repeater",),
            "windlass.tune.search.optuna.samplers": (
                "CMAES",
                "GP",
                "NSGA2",
                "NSGA3",
                "TPE",
            ),
            "windlass.tune.search.optuna.optuna_search": ("OptunaSearch",),
            "windlass.tune.search.quasi_random": ("QuasiRandom",),
            "windlass.tune.space.primitives": (
                "choice",
                "grid_search",
                "lograndint",
                "loguniform",
                "qlograndint",
                "qloguniform",
                "qrandint",
                "qrandn",
                "quniform",
                "randint",
                "randn",
                "sample_from",
                "uniform",
            ),
            "windlass.tune.stopper": ("Stopper",),
            "windlass.tune.sweep.launching": ("launch_sweep",),
            "windlass.tune.trainable.checkpoint": ("Checkpoint",),
            "windlass.tune.trainable.class_api": ("Trainable",),
            "windlass.tune.trainable.session": (
                "TrialContext as TuneContext",
                "get_checkpoint",
                "get_context",
                "report",
            ),
            "windlass.tune.trainable.wrapping": (
                "PlacementGroupFactory",
                "with_parameters",
                "with_resources",
            ),
            "windlass.tune.tuner": ("Tuner",),
            "windlass.tune.tuner.configs": (
                "CheckpointConfig",
                "FailureConfig",
                "ResumeConfig",
                "RunConfig",
                "SyncConfig",
                "TuneConfig",
            ),
            "windlass.tune.views.reporters": (
                "CLIReporter",
                "JupyterNotebookReporter",
                "ProgressReporter",
            ),
        },
    )

__all__ = [
    "ASHA",
    "BOHB",
    "CMAES",
    "FIFO",
    "GP",
    "NSGA2",
    "NSGA3",
    "PB2",
    "PBT",
    "TPE",
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "ConcurrencyLimiter",
    "Experiment",
    "ExperimentAnalysis",
    "FailureConfig",
    "HyperBand",
    "JupyterNotebookReporter",
    "MedianStopping",
    "OptunaSearch",
    "PlacementGroupFactory",
    "ProgressReporter",
    "QuasiRandom",
    "Random",
    "Repeater",
    "Result",
    "ResultGrid",
    "ResumeConfig",
    "RunConfig",
    "Stopper",
    "SyncConfig",
    "Trainable",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "choice",
    "create_scheduler",
    "create_searcher",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "launch_sweep",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "register_env",
    "register_trainable",
    "report",
    "run",
    "run_experiments",
    "sample_from",
    "uniform",
    "with_parameters",
    "with_resources",
]


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
