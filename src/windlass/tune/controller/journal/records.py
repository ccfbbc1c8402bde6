"""Kinds of records in a sweep's journal, with their fields.

Every record except the first and the derived ones holds an input of the core and the decision on it.
"""

from __future__ import annotations

from windlass.tune.trial import TrialStatus

__all__ = [
    "CAPACITY_CHANGED",
    "CHECKPOINT_DROPPED",
    "CHOICE_DEFERRED",
    "DERIVED",
    "LIMIT_REACHED",
    "SEARCH_ENDED",
    "SLOT_JOINED",
    "SLOT_LOST",
    "SLOT_NOTICED",
    "STATUS_AFTER",
    "SWEEP_CREATED",
    "SWEEP_ENDED",
    "SWEEP_OPENED",
    "SWEEP_REQUESTED",
    "TRIAL_CHOSEN",
    "TRIAL_ENDED",
    "TRIAL_REPORTED",
    "TRIAL_SAVED",
    "TRIAL_STARTED",
    "TRIAL_SUGGESTED",
]

SWEEP_CREATED = "sweep-created"
"""name, objectives, settings, space, scheduler, searcher, stopper, trainable (each `{"type": ..., **settings}`), version"""
SWEEP_OPENED = "sweep-opened"
"""head {host, pid}, number (1 is the first head)"""
SWEEP_REQUESTED = "sweep-requested"
"""what: stop-trial (trial), stop-all, pause (an interrupt), resume (finished, unfinished, errored), extend (settings,
space, stopper); why; acts (if trials changed)"""
SWEEP_ENDED = "sweep-ended"
"""derived. why, counts {TERMINATED, ERROR, ...}"""
TRIAL_SUGGESTED = "trial-suggested"
"""trial, config, assigned, note (if), resources (if not one CPU)"""
SEARCH_ENDED = "search-ended"
"""why"""
TRIAL_CHOSEN = "trial-chosen"
"""trial, attempt, restore {trial, iteration, path} or null, why (if), is_last (if the searcher had no new trial)"""
CHOICE_DEFERRED = "choice-deferred"
"""the scheduler acted when called for a trial, but chose none. acts, is_last (if)"""
TRIAL_STARTED = "trial-started"
"""trial, attempt, slot, host, pid"""
TRIAL_REPORTED = "trial-reported"
"""trial, attempt, metrics, saved (if); decision (if not continue), by (scheduler, stopper, trial), why, acts (if)"""
TRIAL_SAVED = "trial-saved"
"""trial, attempt, iteration, path"""
CHECKPOINT_DROPPED = "checkpoint-dropped"
"""derived. trial, path"""
TRIAL_ENDED = "trial-ended"
"""trial, attempt, how, error and error_kind (if), status (the trial's new status), failures and interruptions so far,
why (if), acts (if)"""
SLOT_JOINED = "slot-joined"
"""slot, host"""
SLOT_LOST = "slot-lost"
"""slot, why"""
SLOT_NOTICED = "slot-noticed"
"""slot, host, gone_at (when its machine goes), why, trial and attempt that it runs (empty and 0 if idle)"""
CAPACITY_CHANGED = "capacity-changed"
"""total: the executor's total resources, by name"""
LIMIT_REACHED = "limit-reached"
"""why, acts"""

DERIVED = frozenset({SWEEP_ENDED, CHECKPOINT_DROPPED})
"""Kinds that are derived from the preceding record."""

STATUS_AFTER = {
    "stop": TrialStatus.TERMINATED,
    "pause": TrialStatus.PAUSED,
    "unpause": TrialStatus.PENDING,
    "exploit": TrialStatus.PAUSED,
    "reshape": TrialStatus.PAUSED,
    "requeue": TrialStatus.PENDING,
    "restart": TrialStatus.PENDING,
}
"""Status of a trial after an act on it; acts not listed here do not change it."""
