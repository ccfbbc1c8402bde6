"""A slot on Ray: an actor that runs the worker loop in a thread, many trials one after another, for one head at a time.

The actor is detached: it outlives its head, goes on and keeps what it has to say. It obeys the newest head only, and
ends itself when no head has called for the linger time, so that nothing is left for ever.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.core.json_text import decode_json
from windlass.tune.executors.channel import Message
from windlass.tune.executors.output import Output, log_names
from windlass.tune.executors.ray.mailbox import Mailbox, Numbered
from windlass.tune.executors.ray.slot_disk import SlotDisk
from windlass.tune.trial import Resources

__all__ = ["MailboxChannel", "SlotActor", "SlotFacts", "SlotOrder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOrder:
    """What an actor is made with, besides the sweep's work.

    Attributes:
        number: of the head that makes it.
        linger_s: how long it stays without a head.
        marker: a file in the sweep's storage; where it is not seen, checkpoints go by way of the head.
    """

    slot: str
    resources: Resources
    number: int
    linger_s: float
    marker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """What an actor tells a head that attaches.

    Attributes:
        node: Ray's id of its node.
        disk: the slot's own folder, where it does not see the sweep's storage; empty where it does.
        trial: the trial it runs, or ran last; empty before the first.
        is_over: whether that attempt has ended.
        heard: what the head's first exchange gives as heard, to hear the attempt from its begin.
        said: the same, to hear nothing of it.
        group: the placement group it lies in, if any.
    """

    slot: str
    resources: Resources
    host: str
    pid: int
    node: str
    disk: str
    number: int
    trial: str = ""
    attempt: int = 0
    is_over: bool = True
    heard: int = 0
    said: int = 0
    group: Any = None


class MailboxChannel:
    """The worker's way to its head: a `WorkerChannel` over a mailbox."""

    def __init__(self, mailbox: Mailbox, slot: str) -> None:
        self._mailbox = mailbox
        self._place = {"slot": slot, "host": socket.gethostname(), "pid": os.getpid()}
        self.trial, self.attempt, self.is_over = "", 0, True

    def send(self, message: Message) -> None:
        """Say one message; never blocks. The end of an attempt goes at once, all else with what is asked next."""
        is_end = message["type"] == "ended"
        self._mailbox.say(json.dumps(message, separators=(",", ":")).encode("ascii"), is_urgent=is_end)
        self.is_over = self.is_over or is_end

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next order; blocks up to `timeout_s` (None: for ever)."""
        order = self._mailbox.next_order(timeout_s)
        if order is None:
            return None
        message: Message = decode_json(order)
        if message["type"] == "start":
            self._mailbox.forget()
            self.trial, self.attempt, self.is_over = message["trial"], message["attempt"], False
            self.send({"type": "started", "trial": self.trial, "attempt": self.attempt, **self._place})
        return message


class SlotActor:
    """One slot. Every method may be called while others run; the trial runs in a thread of its own."""

    def __init__(self, order: SlotOrder, work: bytes) -> None:
        self._order = order
        self._number = order.number
        self._mailbox = Mailbox()
        self._channel = MailboxChannel(self._mailbox, order.slot)
        shares = not order.marker or Path(order.marker).exists()
        self._disk = None if shares else SlotDisk(order.slot)
        threading.Thread(target=self._serve, args=(work,), name="windlass-trials", daemon=True).start()
        threading.Thread(target=self._linger, name="windlass-linger", daemon=True).start()

    # ------------------------------------------------------------------------------------------- what a head calls

    def facts(self, heard: int = 0) -> SlotFacts:
        """Who it is; changes nothing."""
        import ray  # lazy: only where Ray runs this
        from ray.util.placement_group import get_current_placement_group

        return SlotFacts(
            slot=self._order.slot,
            resources=self._order.resources,
            host=socket.gethostname(),
            pid=os.getpid(),
            node=str(ray.get_runtime_context().get_node_id()),
            disk="" if self._disk is None else str(self._disk.path),
            number=self._number,
            trial=self._channel.trial,
            attempt=self._channel.attempt,
            is_over=self._channel.is_over,
            heard=heard,
            said=self._mailbox.num_said,
            group=get_current_placement_group(),
        )

    def attach(self, number: int) -> SlotFacts | None:
        """Obey a new head from now on: it hears the current attempt from its begin. None where it is not the newest."""
        if number <= self._number:
            return None
        self._number = number
        return self.facts(self._mailbox.begin_again())

    def exchange(
        self, number: int, heard: int, orders: Sequence[Numbered], wait_s: float
    ) -> tuple[int, list[Numbered]] | None:
        """Bring orders and fetch messages, as `Mailbox.exchange`; None for a head that is not the newest."""
        if number != self._number:
            return None
        return self._mailbox.exchange(heard, orders, wait_s)

    def disk(self, method: str, *arguments: Any) -> Any:
        """Call a method of this slot's own disk, where the sweep's storage is not seen."""
        assert self._disk is not None
        return getattr(self._disk, method)(*arguments)

    # ----------------------------------------------------------------------------------------------------- threads

    def _serve(self, work: bytes) -> None:
        try:
            from windlass.tune.executors.work_data import rebuild_work  # lazy: so that errors are told to trials
            from windlass.tune.executors.worker import Worker

            data = decode_json(work)
            if self._disk is not None:
                data |= self._disk.places()
            for module in data["preload"]:
                importlib.import_module(module)
            output = self._output(data["folder"], data["options"])
            Worker(self._channel, rebuild_work(data), observer=output).run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, trials must hear of it
            _refuse_all(self._channel, error)

    def _output(self, folder: str, options: dict[str, Any]) -> Output | None:
        """Where trials print, if the sweep's folder is seen here; else it is among Ray's logs of the node."""
        if self._disk is not None or not Path(folder).is_dir():
            return None
        return Output(folder, self._order.slot, log_names(options.get("log_to_file")))

    def _linger(self) -> None:
        while True:
            time.sleep(min(1.0, self._order.linger_s / 4))
            if time.monotonic() - self._mailbox.heard_at > self._order.linger_s:
                _end_this_actor(self._disk)


def _refuse_all(channel: MailboxChannel, error: BaseException) -> None:
    """Fail every attempt with what keeps the worker from working, such as a trainable that cannot be imported."""
    text, kind = "".join(traceback.format_exception(error)), type(error).__name__
    while True:
        if not channel.is_over:
            ended = {"type": "ended", "trial": channel.trial, "attempt": channel.attempt}
            channel.send({**ended, "how": "failed", "error": text, "kind": kind})
        channel.receive()


def _end_this_actor(disk: SlotDisk | None) -> None:
    """Give everything back: the placement group too, which outlives its head as the actor does."""
    import ray  # lazy: only where Ray runs this
    from ray.util.placement_group import get_current_placement_group, remove_placement_group

    try:
        if disk is not None:
            disk.remove()
        group: Any = get_current_placement_group()
        if group is not None:
            remove_placement_group(group)
        ray.kill(ray.get_runtime_context().current_actor)
    finally:
        time.sleep(1.0)
        os._exit(0)
