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
from windlass.tune import searchers as searchers
from windlass.tune import space as space
from windlass.tune import stopper as stopper
from windlass.tune import stoppers as stoppers
from windlass.tune import trainable as trainable
from windlass.tune import tuner as tuner
from windlass.tune import views as views
from windlass.tune.callback import Callback as Callback
from windlass.tune.classic import TuneError as TuneError
from windlass.tune.classic import run as run
from windlass.tune.classic import run_experiments as run_experiments
from windlass.tune.experiment import Experiment as Experiment
from windlass.tune.registry import register_env as register_env
from windlass.tune.registry import register_trainable as register_trainable
from windlass.tune.results import ExperimentAnalysis as ExperimentAnalysis
from windlass.tune.results import Result as Result
from windlass.tune.results import ResultGrid as ResultGrid
from windlass.tune.schedulers.fifo import FIFO as FIFO
from windlass.tune.schedulers.hyperband import HyperBandScheduler as HyperBand
from windlass.tune.schedulers.median_stopping_rule import MedianStoppingRule as MedianStopping
from windlass.tune.schedulers.pb2 import PB2 as PB2
from windlass.tune.schedulers.pbt import PopulationBasedTraining as PBT  # noqa: N817 - its short name
from windlass.tune.schedulers.registry import ASHA as ASHA
from windlass.tune.schedulers.registry import create_scheduler as create_scheduler
from windlass.tune.searchers import BOHB as BOHB
from windlass.tune.searchers import CMAES as CMAES
from windlass.tune.searchers import GP as GP
from windlass.tune.searchers import NSGA2 as NSGA2
from windlass.tune.searchers import NSGA3 as NSGA3
from windlass.tune.searchers import TPE as TPE
from windlass.tune.searchers import BasicVariantGenerator as Random
from windlass.tune.searchers import ConcurrencyLimiter as ConcurrencyLimiter
from windlass.tune.searchers import OptunaSearch as OptunaSearch
from windlass.tune.searchers import QuasiRandom as QuasiRandom
from windlass.tune.searchers import Repeater as Repeater
from windlass.tune.searchers import create_searcher as create_searcher
from windlass.tune.space import choice as choice
from windlass.tune.space import grid_search as grid_search
from windlass.tune.space import lograndint as lograndint
from windlass.tune.space import loguniform as loguniform
from windlass.tune.space import qlograndint as qlograndint
from windlass.tune.space import qloguniform as qloguniform
from windlass.tune.space import qrandint as qrandint
from windlass.tune.space import qrandn as qrandn
from windlass.tune.space import quniform as quniform
from windlass.tune.space import randint as randint
from windlass.tune.space import randn as randn
from windlass.tune.space import sample_from as sample_from
from windlass.tune.space import uniform as uniform
from windlass.tune.stoppers import Stopper as Stopper
from windlass.tune.sweep.launching import launch_sweep as launch_sweep
from windlass.tune.trainable.checkpoint import Checkpoint as Checkpoint
from windlass.tune.trainable.class_api import Trainable as Trainable
from windlass.tune.trainable.session import TrialContext as TuneContext
from windlass.tune.trainable.session import get_checkpoint as get_checkpoint
from windlass.tune.trainable.session import get_context as get_context
from windlass.tune.trainable.session import report as report
from windlass.tune.trainable.wrapping import PlacementGroupFactory as PlacementGroupFactory
from windlass.tune.trainable.wrapping import with_parameters as with_parameters
from windlass.tune.trainable.wrapping import with_resources as with_resources
from windlass.tune.tuner import Tuner as Tuner
from windlass.tune.tuner.configs import CheckpointConfig as CheckpointConfig
from windlass.tune.tuner.configs import FailureConfig as FailureConfig
from windlass.tune.tuner.configs import ResumeConfig as ResumeConfig
from windlass.tune.tuner.configs import RunConfig as RunConfig
from windlass.tune.tuner.configs import SyncConfig as SyncConfig
from windlass.tune.tuner.configs import TuneConfig as TuneConfig
from windlass.tune.views.reporters import CLIReporter as CLIReporter
from windlass.tune.views.reporters import JupyterNotebookReporter as JupyterNotebookReporter
from windlass.tune.views.reporters import ProgressReporter as ProgressReporter

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
