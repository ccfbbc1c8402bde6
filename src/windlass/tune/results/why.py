"""Explanation of a trial: every decision about it, with the reason, from the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.core.phrases import count, duration
from windlass.tune.controller.journal.history import AttemptHistory, DecisionMade, History, TrialHistory
from windlass.tune.results.columns import flatten
from windlass.tune.results.errors import TrialMissingError
from windlass.tune.results.lineages import lineage
from windlass.tune.trial import TrialStatus

__all__ = ["explain", "explain_wait", "find_trial", "format_value"]

_WORDS = {
    "stop": "stopped",
    "pause": "paused",
    "unpause": "may continue",
    "save": "checkpoint requested",
    "reshape": "got other resources",
    "move": "told to save and move",
    "retry": "queued again",
    "requeue": "queued again",
    "restart": "restarted",
    "end": "ended",
}
_NO_REASON = "no reason was recorded"


def find_trial(history: History, trial: str) -> TrialHistory:
    """Return a trial, given its id or its number.

    Raises:
        TrialMissingError: it does not exist (`sweep-not-found`).
    """
    found = history.trials.get(trial) or history.trials.get(f"{trial:0>5}")
    if found is None:
        raise TrialMissingError(
            f"sweep {history.name} has no trial {trial!r}",
            hint=f"its {len(history.trials)} trials start at 00000" if history.trials else "it has no trials yet",
        )
    return found


def explain(history: History, trial: str) -> list[str]:
    """Return all decisions about a trial as lines of text, oldest first.

    Times are relative to the start of the sweep. The first line has the trial's status, and the last line the reason why
    it waits, if it does.

    Raises:
        TrialMissingError: the trial does not exist (`sweep-not-found`).
    """
    found = find_trial(history, trial)
    entries = sorted(_entries(history, found), key=lambda entry: entry[0])
    width = max((len(duration(at - history.created_at)) for at, _ in entries), default=0)
    lines = [_headline(history, found), *_values(found)]
    for at, text in entries:
        first, *more = text.split("\n")
        lines.append(f"  {duration(at - history.created_at):>{width}}  {first}")
        lines.extend(f"  {'':>{width}}  {line}" for line in more)
    if not found.status.is_over and found.status is not TrialStatus.RUNNING:
        lines.append(f"  waits: {_wait_of(history, found)}")
    return lines


def _headline(history: History, trial: TrialHistory) -> str:
    reports = count(len(trial.reports), "report")
    objective = history.objectives.metrics[0] if history.objectives.metrics else ""
    value = (trial.last or {}).get(objective)
    newest = f", {objective} {format_value(value)}" if value is not None else ""
    kind = f" ({trial.kind})" if trial.status is TrialStatus.ERROR and trial.kind else ""
    return f"trial {trial.id}: {trial.status}{kind}, {reports}, iteration {trial.iteration}{newest}"


def _values(trial: TrialHistory) -> Iterator[str]:
    values = trial.assigned or flatten(trial.config)
    if values:
        yield "  " + "  ".join(f"{name}={format_value(value)}" for name, value in values.items())


def _entries(history: History, trial: TrialHistory) -> Iterator[tuple[float, str]]:
    by = history.searcher.get("type") or "the searcher"
    yield trial.suggested_at, f"suggested by {by}"
    ends = {attempt.ended_at: attempt for attempt in trial.attempts}
    for attempt in trial.attempts:
        yield from _attempt_entries(trial, attempt)
    for made in trial.decisions:
        if made.decision in ("start", "noop"):  # shown by its attempt, and by the scheduler's other actions
            continue
        if made.decision == "exploit":
            yield made.at, _exploit_text(history, trial, made)
        else:
            yield made.at, _decision_text(made, trial, ends.get(made.at))
    for other in lineage(history):
        if other.source == trial.id:
            yield other.at, f"iteration {other.source_iteration}: cloned by trial {other.trial}"


def _attempt_entries(trial: TrialHistory, attempt: AttemptHistory) -> Iterator[tuple[float, str]]:
    restore = attempt.restore
    source = "from the beginning"
    if restore is not None:
        whose = "its checkpoint" if restore.trial == trial.id else f"the checkpoint of trial {restore.trial}"
        source = f"from {whose} of iteration {restore.iteration}"
    start = next((made for made in trial.decisions if made.facts.get("attempt") == attempt.number), None)
    shown = {made.why for made in trial.decisions if made is not start}
    why = f": {start.why}" if start and start.why and start.why not in shown else ""
    yield attempt.chosen_at, f"attempt {attempt.number} chosen to run {source}{why}"
    if attempt.started_at is not None:
        waited = duration(attempt.started_at - attempt.chosen_at)
        place = " ".join(filter(None, (attempt.slot, attempt.host and f"on {attempt.host}")))
        yield attempt.started_at, f"attempt {attempt.number} runs in {place}, process {attempt.pid}, after {waited}"
    if attempt.ended_at is not None and attempt.how == "halted":
        yield attempt.ended_at, f"attempt {attempt.number} gave its slot back"


def _exploit_text(history: History, trial: TrialHistory, made: DecisionMade) -> str:
    exploit = next(one for one in lineage(history, trial.id) if one.at == made.at)
    changes = ", ".join(f"{name} {format_value(a)} -> {format_value(b)}" for name, (a, b) in exploit.changed.items())
    return (
        f"iteration {made.iteration}: takes over trial {exploit.source} as of iteration {exploit.checkpoint_iteration}"
        f": {made.why or _NO_REASON}\nwith {changes or 'the same values'}"
    )


def _decision_text(made: DecisionMade, trial: TrialHistory, attempt: AttemptHistory | None) -> str:
    word = _WORDS.get(made.decision, made.decision)
    by = f" by {_who(made, trial)}" if made.decision not in ("end", "retry", "requeue") else ""
    how = made.facts.get("how", "")
    if how == "lost":
        by = ", its worker or node was lost"
    elif how == "failed":
        by = f", it failed with {attempt.kind or 'an error'}" if attempt else ", it failed"
    shape = _shape(made.facts.get("resources"))
    silent = "" if made.decision == "save" else _NO_REASON
    reason = made.why or {"done": "it was done", "failed": "", "lost": ""}.get(how, silent)
    line = f"iteration {made.iteration}: {word}{by}{shape}" + (f": {reason}" if reason else "")
    if attempt and attempt.error and how in ("failed", "lost"):
        line += f"\n{attempt.error.strip().splitlines()[-1]}"
    return line


def _who(made: DecisionMade, trial: TrialHistory) -> str:
    who = {"scheduler": "the scheduler", "stopper": "a stopper", "trial": "itself", "limit": "a limit"}
    found = {**who, "user": "the user", "head": "the controller"}.get(made.by, made.by)
    return f"{found}, after a report of trial {made.cause}" if made.cause not in ("", trial.id) else found


def _shape(resources: Mapping[str, Any] | None) -> str:
    if not resources:
        return ""
    bundles = (" ".join(f"{name} {amount:g}" for name, amount in bundle.items()) for bundle in resources["bundles"])
    return f" ({' + '.join(bundles)})"


def _wait_of(history: History, trial: TrialHistory) -> str:
    if trial.why:
        return trial.why
    if history.ended_why:
        return f"the sweep has ended: {history.ended_why}"
    if trial.status is TrialStatus.PAUSED:
        return "for its scheduler to resume it"
    running = history.counts[TrialStatus.RUNNING]
    return f"for a slot; {count(running, 'trial')} running" if running else "for a slot; none is connected"


def explain_wait(history: History) -> list[str]:
    """Return why trials are waiting, most frequent reason first. Takes constant time per trial."""
    reasons: Counter[tuple[TrialStatus, str]] = Counter()
    for trial in history.trials.values():
        if trial.status in (TrialStatus.PENDING, TrialStatus.PAUSED):
            reasons[trial.status, _wait_of(history, trial)] += 1
    return [f"{count} {status}: {reason}" for (status, reason), count in reasons.most_common()]


def format_value(value: object) -> str:
    """Format a value for display with five significant digits; long text is shortened in the middle."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return f"{value:.5g}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:18]}...{text[-19:]}"
