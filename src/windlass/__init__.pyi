from windlass import config as config
from windlass import plan as plan
from windlass import report as report
from windlass import runs as runs
from windlass import spec as spec
from windlass.launcher import Experiment as Experiment
from windlass.launcher import Options as Options
from windlass.launcher import Run as Run
from windlass.launcher import launch as launch
from windlass.launcher import load as load
from windlass.launcher.data import Data as Data
from windlass.plan import Plan as Plan
from windlass.spec import Env as Env
from windlass.spec import Task as Task

__version__: str

__all__ = ["Data", "Env", "Experiment", "Options", "Plan", "Run", "Task", "launch", "load"]
