"""Numbered orders and messages: lost, doubled and late calls, and a head that hears it all again."""

from __future__ import annotations

import json
import threading
from typing import Any

from windlass.tune.executors.channel import to_message
from windlass.tune.executors.protocol import StartAttempt
from windlass.tune.executors.ray.mailbox import Mailbox
from windlass.tune.executors.ray.slot_actor import MailboxChannel
from windlass.tune.trial import ONE_CPU


def line(value: StartAttempt) -> bytes:
    return json.dumps(to_message(value)).encode()


def start(trial: str = "a") -> bytes:
    return line(StartAttempt(trial=trial, attempt=1, config={}, resources=ONE_CPU))


def test_what_is_said_stays_until_it_was_heard() -> None:
    box = Mailbox()
    box.put(b"1")
    box.put(b"2", is_urgent=True)
    assert box.exchange(0, [], 1.0) == (0, [(1, b"1"), (2, b"2")])
    assert box.exchange(0, [], 1.0) == (0, [(1, b"1"), (2, b"2")])
    assert box.exchange(1, [], 1.0) == (0, [(2, b"2")])
    assert box.exchange(2, [], 0.0) == (0, [])


def test_orders_are_taken_once_and_in_order() -> None:
    box = Mailbox()
    assert box.exchange(0, [(1, b"a"), (2, b"b")], 0.0)[0] == 2
    assert box.exchange(0, [(1, b"a"), (2, b"b"), (3, b"c")], 0.0)[0] == 3
    assert box.exchange(0, [(5, b"e")], 0.0)[0] == 3
    assert [box.next_order(0), box.next_order(0), box.next_order(0), box.next_order(0)] == [b"a", b"b", b"c", None]


def test_a_later_call_sends_the_waiting_one_home() -> None:
    box = Mailbox()
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(box.exchange(0, [], 60.0)))
    first.start()
    while box._caller == 0:
        pass
    assert box.exchange(0, [(1, b"a")], 0.0) == (1, [])
    first.join(120)
    assert answers
    assert answers[0][1] == []


def test_what_was_said_goes_as_soon_as_the_worker_asks() -> None:
    """Not after AGE_S: a worker that waits for an answer is not kept waiting."""
    box = Mailbox()
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(box.exchange(0, [], 60.0)))
    caller.start()
    box.put(b"report")
    worker = threading.Thread(target=lambda: box.next_order(60.0))
    worker.start()
    caller.join(120)
    assert answers[0][1] == [(1, b"report")]
    box.exchange(1, [(1, b"leave")], 0.0)
    worker.join(120)


def test_a_new_head_hears_the_whole_attempt_again_and_nothing_older() -> None:
    box = Mailbox()
    channel = MailboxChannel(box, "slot")
    box.exchange(0, [(1, start("a"))], 0.0)
    channel.receive(0)
    channel.send({"type": "ended", "trial": "a", "attempt": 1})
    box.exchange(2, [(2, start("b"))], 0.0)
    channel.receive(0)
    channel.send({"type": "reported", "n": 1})
    box.exchange(4, [], 0.0)
    channel.send({"type": "reported", "n": 2})
    base = box.begin_again()
    _, messages = box.exchange(base, [], 1.0)
    num_put = [json.loads(text) for _, text in messages]
    assert [(m["type"], m.get("trial") or m.get("n")) for m in num_put] == [
        ("started", "b"),
        ("reported", 1),
        ("reported", 2),
    ]
    assert [number for number, _ in messages] == [base + 1, base + 2, base + 3]


def test_what_an_older_attempt_said_and_nobody_heard_is_kept_beside_the_new_one() -> None:
    box = Mailbox()
    channel = MailboxChannel(box, "slot")
    channel.send({"type": "ended", "trial": "a", "attempt": 1})
    box.exchange(0, [(1, start("b"))], 0.0)
    channel.receive(0)
    _, messages = box.exchange(box.begin_again(), [], 1.0)
    assert [json.loads(text)["type"] for _, text in messages] == ["ended", "started"]


def test_orders_of_a_dead_head_that_were_not_taken_are_dropped() -> None:
    box = Mailbox()
    box.exchange(0, [(1, b"old")], 0.0)
    box.begin_again()
    box.exchange(0, [(1, b"new")], 0.0)
    assert box.next_order(0) == b"new"
    assert box.next_order(0) is None
