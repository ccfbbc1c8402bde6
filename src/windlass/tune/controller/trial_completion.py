"""Next step of a trial after its attempt has ended (done, failed, retried), and end of the sweep. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from windlass.core.phrases import count
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.executors.protocol import AttemptEnded, AttemptOutcome
from windlass.tune.trial import Trial, TrialStatus

__all__ = ["After", "Then", "after_end", "why_over", "with_a_report"]


class Then(Enum):
    """Next step of a trial."""

    NOTHING = "nothing"  # it is already waiting: paused, or with a new configuration
    DONE = "done"
    GIVEN_UP = "given-up"
    RETRIED = "retried"  # its own error; the scheduler starts it again
    BACK = "back"  # its slot was lost; for the scheduler it still runs


@dataclass(frozen=True, slots=True)
class After:
    """Next step of a trial, with the reason to show to users."""

    then: Then
    why: str = ""


def after_end(
    trial: Trial, event: AttemptEnded, settings: SweepSettings, *, is_old: bool, is_leaving: bool = False
) -> After:
    """Return the next step of an unfinished trial, whose failures and interruptions have already been counted.

    Args:
        is_old: whether the attempt ran an earlier configuration of the trial.
        is_leaving: whether its machine was about to be taken away.
    """
    is_running = trial.status is TrialStatus.RUNNING
    if event.how is AttemptOutcome.FAILED:
        why = _reason(event)
        if _is_spent(trial.num_failures, settings.max_failures):
            return After(Then.GIVEN_UP, why)
        return After(Then.RETRIED, f"will be retried: {why}") if is_running else After(Then.NOTHING)
    if (
        event.how is AttemptOutcome.LOST
        and not is_leaving
        and _is_spent(trial.num_interruptions, settings.max_interruptions)
    ):
        return After(
            Then.GIVEN_UP, f"it lost its worker {count(trial.num_interruptions, 'time')}; the last error: {event.error}"
        )
    if event.how is AttemptOutcome.DONE and not is_old:
        return After(Then.DONE, "it ended by itself")
    if is_running:
        return After(Then.BACK, _why_back(event, is_leaving=is_leaving))
    return After(Then.NOTHING)


def _why_back(event: AttemptEnded, *, is_leaving: bool) -> str:
    if is_leaving:
        return "its machine is taken away"
    return f"its worker was lost: {event.error}" if event.how is AttemptOutcome.LOST else "its head was ended"


def with_a_report(event: AttemptEnded, trial: Trial, settings: SweepSettings, metric: str) -> AttemptEnded:
    """Return the end of an attempt, as a failure if the trial finished without ever reporting its metric.

    Args:
        metric: metric that the scheduler compares; `-` for none.
    """
    named = next(
        (name for name in (*settings.objectives.metrics, settings.half.metric, metric) if name not in ("", "-")), ""
    )
    if event.how is not AttemptOutcome.DONE or trial.last is not None or not named or not settings.is_strict:
        return event
    error = f"it ended and never reported `{named}`; call tune.report({{{named!r}: value}}), or return that dictionary"
    return replace(event, how=AttemptOutcome.FAILED, error=f"NoReport: {error}", kind="NoReport")


def why_over(num_live: int, *, failed: str, limit: str, search_ended: str) -> str:
    """Return why a sweep is over, or an empty string while it runs.

    Args:
        num_live: number of trials that have not ended.
        failed: the trial whose failure ends the sweep.
        limit: reason that ended the sweep before the search did.
        search_ended: reason why there are no more trials.
    """
    if failed:
        return f"trial {failed} failed, and fail_fast is set"
    if num_live:
        return ""
    return limit or (f"all trials have ended ({search_ended})" if search_ended else "")


def _is_spent(num: int, budget: int) -> bool:
    return budget >= 0 and num > budget


def _reason(event: AttemptEnded) -> str:
    """Return the last line of the traceback, which usually names the type of the error."""
    kind, lines = event.kind or "it failed", event.error.strip().splitlines()
    if not lines:
        return kind
    return lines[-1] if lines[-1].startswith(kind) else f"{kind}: {lines[-1]}"
