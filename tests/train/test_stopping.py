"""Who is heard: signals, requests, deadlines."""

from __future__ import annotations

import os
import signal

import pytest

from windlass.train.stopping import MARGIN_S, UNKNOWN_SAVE_S, StopReason, StopRequests, end_of_allocation


def quiet(**settings: object) -> StopRequests:
    settings.setdefault("deadline", lambda: None)
    return StopRequests(asks_report=False, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_is_heard_and_handlers_stand_again_afterwards(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    stopper = quiet()
    with stopper.listening():
        assert stopper.reason() is None
        os.kill(os.getpid(), number)
        assert stopper.reason() is StopReason.SIGNAL
    assert signal.getsignal(number) is before


def test_a_second_interrupt_is_one() -> None:
    stopper = quiet()
    with stopper.listening():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_handler_of_the_user_is_called_too() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        stopper = quiet()
        with stopper.listening():
            os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
        assert stopper.reason() is StopReason.SIGNAL
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_first_reason_stays_until_it_is_forgotten() -> None:
    stopper = quiet()
    stopper.request()
    stopper.request(StopReason.DEADLINE)
    assert stopper.reason() is StopReason.REQUEST
    stopper.forget()
    assert stopper.reason() is None


@pytest.mark.parametrize(
    ("save_s", "step_s", "remaining_s", "is_late"),
    [
        (10.0, 2.0, 2.0 + 15.0 + MARGIN_S + 0.1, False),
        (10.0, 2.0, 2.0 + 15.0 + MARGIN_S - 0.1, True),
        (0.0, 0.0, MARGIN_S + 0.1, False),
        (None, 0.0, UNKNOWN_SAVE_S + MARGIN_S - 0.1, True),
        (None, 0.0, UNKNOWN_SAVE_S + MARGIN_S + 0.1, False),
    ],
)
def test_training_leaves_in_time_for_one_more_step_and_a_save(
    save_s: float | None, step_s: float, remaining_s: float, is_late: bool
) -> None:
    stopper = quiet(save_s=lambda: save_s, now=lambda: 1000.0, deadline=lambda: 1000.0 + remaining_s)
    assert stopper.reason(step_s) is (StopReason.DEADLINE if is_late else None)


def test_slurm_says_when_an_allocation_ends() -> None:
    assert end_of_allocation({"SLURM_JOB_END_TIME": "1700000000"}) == 1700000000.0
    assert end_of_allocation({"SLURM_JOB_END_TIME": ""}) is None
    assert end_of_allocation({}) is None
