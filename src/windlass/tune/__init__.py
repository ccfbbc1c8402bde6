"""Coordinated trials: parallel hyper-parameter search that survives the loss of anything.

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

# Looked up when first used: `from windlass import tune` loads no library, and a trial's worker loads what it needs.
# One line per name, sorted; its home is a module that does not have the same name, with `:` and its name there if that
# differs.
_HOMES = {
    "ASHA": "windlass.tune.schedulers.registry",
    "BOHB": "windlass.tune.searchers",
    "CLIReporter": "windlass.tune.views.reporters",
    "CMAES": "windlass.tune.searchers",
    "Callback": "windlass.tune.callback",
    "Checkpoint": "windlass.tune.trainable.checkpoint",
    "CheckpointConfig": "windlass.tune.tuner.configs",
    "ConcurrencyLimiter": "windlass.tune.searchers",
    "Experiment": "windlass.tune.experiment",
    "ExperimentAnalysis": "windlass.tune.results",
    "FIFO": "windlass.tune.schedulers.fifo",
    "FailureConfig": "windlass.tune.tuner.configs",
    "GP": "windlass.tune.searchers",
    "HyperBand": "windlass.tune.schedulers.hyperband:HyperBandScheduler",
    "JupyterNotebookReporter": "windlass.tune.views.reporters",
    "MedianStopping": "windlass.tune.schedulers.median_stopping_rule:MedianStoppingRule",
    "NSGA2": "windlass.tune.searchers",
    "NSGA3": "windlass.tune.searchers",
    "OptunaSearch": "windlass.tune.searchers",
    "PB2": "windlass.tune.schedulers.pb2",
    "PBT": "windlass.tune.schedulers.pbt:PopulationBasedTraining",
    "PlacementGroupFactory": "windlass.tune.trainable.wrapping",
    "ProgressReporter": "windlass.tune.views.reporters",
    "QuasiRandom": "windlass.tune.searchers",
    "Random": "windlass.tune.searchers:BasicVariantGenerator",
    "Repeater": "windlass.tune.searchers",
    "Result": "windlass.tune.results",
    "ResultGrid": "windlass.tune.results",
    "ResumeConfig": "windlass.tune.tuner.configs",
    "RunConfig": "windlass.tune.tuner.configs",
    "Stopper": "windlass.tune.stoppers",
    "SyncConfig": "windlass.tune.tuner.configs",
    "TPE": "windlass.tune.searchers",
    "Trainable": "windlass.tune.trainable.class_api",
    "TuneConfig": "windlass.tune.tuner.configs",
    "TuneContext": "windlass.tune.trainable.session:TrialContext",
    "TuneError": "windlass.tune.classic",
    "Tuner": "windlass.tune.tuner",
    "choice": "windlass.tune.space",
    "create_scheduler": "windlass.tune.schedulers.registry",
    "create_searcher": "windlass.tune.searchers",
    "get_checkpoint": "windlass.tune.trainable.session",
    "get_context": "windlass.tune.trainable.session",
    "grid_search": "windlass.tune.space",
    "launch_sweep": "windlass.tune.sweep.launching",
    "lograndint": "windlass.tune.space",
    "loguniform": "windlass.tune.space",
    "qlograndint": "windlass.tune.space",
    "qloguniform": "windlass.tune.space",
    "qrandint": "windlass.tune.space",
    "qrandn": "windlass.tune.space",
    "quniform": "windlass.tune.space",
    "randint": "windlass.tune.space",
    "randn": "windlass.tune.space",
    "register_env": "windlass.tune.registry",
    "register_trainable": "windlass.tune.registry",
    "report": "windlass.tune.trainable.session",
    "run": "windlass.tune.classic",
    "run_experiments": "windlass.tune.classic",
    "sample_from": "windlass.tune.space",
    "uniform": "windlass.tune.space",
    "with_parameters": "windlass.tune.trainable.wrapping",
    "with_resources": "windlass.tune.trainable.wrapping",
}
_PACKAGES = frozenset(
    {
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
        "searchers",
        "space",
        "stopper",
        "stoppers",
        "trainable",
        "tuner",
        "views",
    }
)


def __getattr__(name: str) -> object:
    import importlib  # lazy: every worker imports this package

    if name in _PACKAGES:
        return importlib.import_module(f"windlass.tune.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'windlass.tune' has no attribute {name!r}")
    module, _, there = _HOMES[name].partition(":")
    value = getattr(importlib.import_module(module), there or name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted({*globals(), *_HOMES, *_PACKAGES})
