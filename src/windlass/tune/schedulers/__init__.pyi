from windlass.tune.schedulers.asha_promotion import PromotionASHA as PromotionASHA
from windlass.tune.schedulers.async_hyperband import AsyncHyperBandScheduler as AsyncHyperBandScheduler
from windlass.tune.schedulers.fifo import FIFO as FIFO
from windlass.tune.schedulers.hb_bohb import HyperBandForBOHB as HyperBandForBOHB
from windlass.tune.schedulers.hyperband import HyperBandScheduler as HyperBandScheduler
from windlass.tune.schedulers.median_stopping_rule import MedianStoppingRule as MedianStoppingRule
from windlass.tune.schedulers.pb2 import PB2 as PB2
from windlass.tune.schedulers.pbt import PopulationBasedTraining as PopulationBasedTraining
from windlass.tune.schedulers.population_based.policy import read_policy as read_policy
from windlass.tune.schedulers.population_based.replay import (
    PopulationBasedTrainingReplay as PopulationBasedTrainingReplay,
)
from windlass.tune.schedulers.protocol import CONTINUE as CONTINUE
from windlass.tune.schedulers.protocol import NOOP as NOOP
from windlass.tune.schedulers.protocol import ScheduledSweep as ScheduledSweep
from windlass.tune.schedulers.protocol import SchedulerDecision as SchedulerDecision
from windlass.tune.schedulers.protocol import SweepScheduler as SweepScheduler
from windlass.tune.schedulers.protocol import Verdict as Verdict
from windlass.tune.schedulers.registry import ASHA as ASHA
from windlass.tune.schedulers.registry import check_pairing as check_pairing
from windlass.tune.schedulers.registry import create_scheduler as create_scheduler
from windlass.tune.schedulers.registry import from_settings as from_settings
from windlass.tune.schedulers.resource_allocation import DistributeResources as DistributeResources
from windlass.tune.schedulers.resource_allocation import DistributeResourcesToTopJob as DistributeResourcesToTopJob
from windlass.tune.schedulers.resource_changing_scheduler import ResourceChangingScheduler as ResourceChangingScheduler

ASHAScheduler = AsyncHyperBandScheduler
FIFOScheduler = FIFO
TrialScheduler = FIFO

__all__ = [
    "ASHA",
    "CONTINUE",
    "FIFO",
    "NOOP",
    "PB2",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "DistributeResources",
    "DistributeResourcesToTopJob",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "PromotionASHA",
    "ResourceChangingScheduler",
    "ScheduledSweep",
    "SchedulerDecision",
    "SweepScheduler",
    "TrialScheduler",
    "Verdict",
    "check_pairing",
    "create_scheduler",
    "from_settings",
    "read_policy",
]
