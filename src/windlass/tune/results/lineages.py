"""Lineage of trials in population based training: which trial cloned which, when, and with which values.

The rows of Ray Tune's files `pbt_global.txt` and `pbt_policy_<trial>.txt` are exported from the journal, so a schedule
found here can be replayed there, and vice versa.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.core.files import write_atomic
from windlass.tune.controller.journal.history import DecisionMade, History, TrialHistory
from windlass.tune.results.columns import flatten, tag_of
from windlass.tune.results.rows import exploits_of

__all__ = ["Exploit", "lineage", "policy_rows", "write_policies"]

ResultRow = tuple[str, str, int, int, dict[str, Any], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """Event in which a trial copied the state of another trial.

    Attributes:
        at: wall time in seconds.
        iteration: iteration of the trial when it was paused.
        source: id of the trial that was cloned.
        source_iteration: iteration of the source at that time; its checkpoint may be older.
        checkpoint_iteration: iteration of the checkpoint that the trial continued from.
        changed: flat name to (the source's value, the new value), if they differ.
    """

    at: float
    trial: str
    iteration: int
    source: str
    source_iteration: int
    checkpoint_iteration: int
    old_config: Mapping[str, Any]
    source_config: Mapping[str, Any]
    new_config: Mapping[str, Any]
    changed: Mapping[str, tuple[Any, Any]]
    why: str


def lineage(history: History, trial: str | None = None) -> list[Exploit]:
    """Return all exploits in a sweep, or those of one trial, oldest first."""
    chosen = history.trials.values() if trial is None else [history.trials[trial]]
    found = [_exploit(history, one, made) for one in chosen for made in exploits_of(one)]
    return sorted(found, key=lambda exploit: exploit.at)


def _exploit(history: History, trial: TrialHistory, made: DecisionMade) -> Exploit:
    facts = made.facts
    old, new = flatten(facts["source_config"]), flatten(facts["config"])
    return Exploit(
        at=made.at,
        trial=trial.id,
        iteration=made.iteration,
        source=facts["source"]["trial"],
        source_iteration=facts["source_iteration"],
        checkpoint_iteration=facts["source"]["iteration"],
        old_config=facts["old_config"],
        source_config=facts["source_config"],
        new_config=facts["config"],
        changed={name: (old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)},
        why=made.why,
    )


def policy_rows(history: History, trial: str | None = None) -> list[ResultRow]:
    """Return exploits in Ray Tune's form.

    Each is (target tag, clone tag, target iteration, clone iteration, old config, new config).

    Args:
        trial: only the policy that led to this trial's newest state: the exploits of its sources before each clone,
            then its own. None: every exploit of the sweep.

    Source: Ray Tune's `PopulationBasedTraining`, parameter `log_config`; the tags are those of the first start, and
    the old configuration is that of the cloned trial.
    """
    policies: dict[str, list[ResultRow]] = {}
    everything: list[ResultRow] = []
    for exploit in lineage(history):
        row = _row(history, exploit)
        everything.append(row)
        inherited = policies.get(exploit.source, policies.get(exploit.trial, []))
        policies[exploit.trial] = [*inherited, row]
    return everything if trial is None else policies.get(trial, [])


def _row(history: History, exploit: Exploit) -> ResultRow:
    target, clone = history.trials[exploit.trial], history.trials[exploit.source]
    return (
        _first_tag(target),
        _first_tag(clone),
        exploit.iteration,
        exploit.source_iteration,
        dict(exploit.source_config),
        dict(exploit.new_config),
    )


def _first_tag(trial: TrialHistory) -> str:
    made = exploits_of(trial)
    return tag_of(trial.number, made[0].facts["old_assigned"] if made else trial.assigned)


def write_policies(history: History, folder: str | Path) -> list[Path]:
    """Write `pbt_global.txt`, and a `pbt_policy_<trial>.txt` for each cloned trial; return the files. Idempotent."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    cloned = list(dict.fromkeys(exploit.trial for exploit in lineage(history)))
    files = {target / f"pbt_policy_{trial}.txt": policy_rows(history, trial) for trial in cloned}
    files[target / "pbt_global.txt"] = policy_rows(history)
    for path, rows in files.items():
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows).encode(), is_durable=False)
    return list(files)
