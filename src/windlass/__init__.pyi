from windlass import cluster as cluster
from windlass import report as report
from windlass import spec as spec
from windlass import train as train
from windlass import tune as tune
from windlass.launcher.api import Experiment as Experiment
from windlass.launcher.api import launch as launch
from windlass.launcher.api import load as load
from windlass.launcher.data import Data as Data
from windlass.launcher.prepare import Options as Options
from windlass.launcher.prepare import Prepared as Prepared
from windlass.launcher.run import Run as Run
from windlass.plan.plan import Plan as Plan
from windlass.spec import Env as Env
from windlass.spec import Task as Task

__version__: str

__all__ = ["Data", "Env", "Experiment", "Options", "Plan", "Prepared", "Run", "Task", "launch", "load"]
