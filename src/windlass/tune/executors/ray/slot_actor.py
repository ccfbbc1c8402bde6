"""Actor for a slot on Ray, which runs the worker loop in a thread, one trial after another, for one head.

The actor is detached: it outlives its head, continues, and keeps its messages. It obeys only the newest head, and
exits when no head has called for the linger time, so that no actor remains forever.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import socket
import stat
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.core.json_text import decode_json
from windlass.core.process import ProcessId, identify, is_alive
from windlass.supervise.node.spec import NODE_FOLDER_VARIABLE
from windlass.tune.executors.channel import Message, encode_message
from windlass.tune.executors.output import Output, log_names
from windlass.tune.executors.ray.mailbox import Mailbox, Numbered
from windlass.tune.trial import Resources

__all__ = ["MailboxChannel", "SlotActor", "SlotDisk", "SlotFacts", "SlotNotice", "SlotOrder", "read_notice"]

NOTICE_FILE = "notice.json"
"""File in the folder of a node's agent; it appears when the machine is about to be taken away."""

_NOTICE_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNotice:
    """Notice that a machine is about to be taken away.

    Attributes:
        gone_at: when, in seconds since the epoch; 0 if unknown.
        why: reason in one sentence.
    """

    gone_at: float = 0.0
    why: str = "its machine is taken away"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOrder:
    """Arguments of an actor other than the sweep's work.

    Attributes:
        number: number of the head that creates it.
        linger_s: seconds until it exits without a head.
        marker: a file in the sweep's storage; if it is not visible, checkpoints are transferred through the head.
    """

    slot: str
    resources: Resources
    number: int
    linger_s: float
    marker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """Facts that an actor returns to a head that attaches to it.

    Attributes:
        node: Ray's id of its node.
        disk: the slot's folder if it cannot access the sweep's storage; else empty.
        trial: the trial that it runs, or ran last; empty before the first.
        is_over: whether that attempt has ended.
        received: value for `received` in the head's first exchange, to get the attempt from its start.
        num_put: value for `received` in that exchange, to get none of the attempt.
        group: its placement group, if any.
        notice: notice of its node, if there is one.
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
    received: int = 0
    num_put: int = 0
    group: Any = None
    notice: SlotNotice | None = None


class MailboxChannel:
    """Connection from a worker to its head: a `WorkerChannel` over a mailbox."""

    def __init__(self, mailbox: Mailbox, slot: str) -> None:
        self._mailbox = mailbox
        self._place = {"slot": slot, "host": socket.gethostname(), "pid": os.getpid()}
        self.trial, self.attempt, self.is_over = "", 0, True

    def send(self, message: Message) -> None:
        """Send one message. Never blocks.

        The end of an attempt is urgent; other messages are not.
        """
        is_end = message["type"] == "ended"
        self._mailbox.put(encode_message(message), is_urgent=is_end)
        self.is_over = self.is_over or is_end

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next order. Blocks up to `timeout_s` (None: forever)."""
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
    """Slot on Ray.

    Methods may be called concurrently; the trial runs in a separate thread.
    """

    def __init__(self, order: SlotOrder, work: bytes) -> None:
        self._order = order
        self._number = order.number
        self._mailbox = Mailbox()
        self._notice: SlotNotice | None = None
        self._channel = MailboxChannel(self._mailbox, order.slot)
        shares = not order.marker or Path(order.marker).exists()
        self._disk = None if shares else SlotDisk(order.slot)
        threading.Thread(target=self._serve, args=(work,), name="windlass-trials", daemon=True).start()
        threading.Thread(target=self._linger, name="windlass-linger", daemon=True).start()
        folder = os.environ.get(NODE_FOLDER_VARIABLE, "")
        if folder:
            watched = (Path(folder, NOTICE_FILE),)
            threading.Thread(target=self._watch, args=watched, name="windlass-notice", daemon=True).start()

    # ------------------------------------------------------------------------------------------- calls of a head

    def facts(self, received: int = 0) -> SlotFacts:
        """Return facts about the actor. Read-only."""
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
            received=received,
            num_put=self._mailbox.num_put,
            group=get_current_placement_group(),
            notice=self._notice,
        )

    def attach(self, number: int) -> SlotFacts | None:
        """Switch to a new head, which gets the messages of the current attempt from its start.

        Returns None for an outdated head.
        """
        if number <= self._number:
            return None
        self._number = number
        return self.facts(self._mailbox.begin_again())

    def exchange(
        self, number: int, received: int, orders: Sequence[Numbered], wait_s: float
    ) -> tuple[int, list[Numbered]] | None:
        """Exchange orders and messages; see `Mailbox.exchange`.

        Returns None for an outdated head.
        """
        if number != self._number:
            return None
        return self._mailbox.exchange(received, orders, wait_s)

    def disk(self, method: str, *arguments: Any) -> Any:
        """Call a method of this slot's disk, for slots that cannot access the sweep's storage."""
        assert self._disk is not None
        return getattr(self._disk, method)(*arguments)

    # ----------------------------------------------------------------------------------------------------- threads

    def _serve(self, work: bytes) -> None:
        try:
            from windlass.tune.executors.channel import rebuild_work  # lazy: errors are reported to trials
            from windlass.tune.executors.worker import Worker

            data = decode_json(work)
            if self._disk is not None:
                data |= self._disk.places()
            for module in data["preload"]:
                importlib.import_module(module)
            output = self._output(data["folder"], data["options"])
            Worker(self._channel, rebuild_work(data), observer=output).run()
        except BaseException as error:  # noqa: BLE001 - any error must be reported to trials
            _refuse_all(self._channel, error)

    def _output(self, folder: str, options: dict[str, Any]) -> Output | None:
        """Return the trials' output if the sweep's folder is accessible; otherwise it goes to the node's Ray logs."""
        if self._disk is not None or not Path(folder).is_dir():
            return None
        return Output(folder, self._order.slot, log_names(options.get("log_to_file")))

    def _watch(self, path: Path) -> None:
        """Wait for the notice of this node, and report it to the head at once."""
        while self._notice is None:
            time.sleep(_NOTICE_EVERY_S)
            self._notice = read_notice(path)
        message = {"slot": self._order.slot, "gone_at": self._notice.gone_at, "why": self._notice.why}
        self._mailbox.put(encode_message({"type": "noticed", **message}), is_urgent=True)

    def _linger(self) -> None:
        while True:
            time.sleep(min(1.0, self._order.linger_s / 4))
            if time.monotonic() - self._mailbox.last_call_at > self._order.linger_s:
                _end_this_actor(self._disk)


def read_notice(path: Path) -> SlotNotice | None:
    """Read the notice that a node's agent has written; None without one. A damaged one has no time.

    A `rebalance` only states that the end has become likely, which is no reason to move.
    """
    try:
        data = decode_json(path.read_bytes())
        kind = data.get("kind", "")
        if kind == "rebalance":
            return None
        return SlotNotice(gone_at=float(data["at"]), why="its machine is taken away" + (f" ({kind})" if kind else ""))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return SlotNotice()


def _refuse_all(channel: MailboxChannel, error: BaseException) -> None:
    """Fail every attempt with the error that keeps the worker from starting."""
    text, kind = "".join(traceback.format_exception(error)), type(error).__name__
    while True:
        if not channel.is_over:
            ended = {"type": "ended", "trial": channel.trial, "attempt": channel.attempt}
            channel.send({**ended, "how": "failed", "error": text, "kind": kind})
        channel.receive()


def _end_this_actor(disk: SlotDisk | None) -> None:
    """Release everything, including the placement group, which outlives the head just like the actor."""
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


_OWNER = ".owner"


class SlotDisk:
    """Folder `<tmp>/windlass-slots-<uid>/<slot>`, which is removed with the slot, or by the node's next slot."""

    def __init__(self, slot: str, root: Path | None = None) -> None:
        root = _private(root or Path(tempfile.gettempdir(), f"windlass-slots-{os.getuid()}"))
        _sweep(root)
        self.path = root / slot
        self.path.mkdir(parents=True, mode=0o700)
        (self.path / _OWNER).write_text(str(identify(os.getpid())))

    def places(self) -> dict[str, str]:
        """Return the paths that a worker on this node uses as the sweep's folder and storage."""
        return {"folder": str(self.path), "storage": str(self.path / "checkpoints")}

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        """Return the files in a checkpoint made here, with their sizes."""
        root = self._within(folder)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return [(str(path.relative_to(root)), path.stat().st_size) for path in files]

    def read(self, folder: str, name: str, offset: int, num_bytes: int) -> bytes:
        """Read a piece of a file."""
        with self._within(folder, name).open("rb") as file:
            file.seek(offset)
            return file.read(num_bytes)

    def write(self, folder: str, name: str, offset: int, piece: bytes) -> None:
        """Write a piece of a file, which the first piece creates."""
        path = self._within(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb" if offset == 0 else "r+b") as file:
            file.seek(offset)
            file.write(piece)

    def keep_only(self, folder: str) -> None:
        """Delete the older checkpoints beside this one, which the head has already."""
        kept = self._within(folder)
        for other in kept.parent.glob("[0-9]*"):
            if _order(other) < _order(kept):
                shutil.rmtree(other, ignore_errors=True)

    def clear(self, *kept: str) -> None:
        """Delete the files of earlier attempts."""
        for folder in ("checkpoints", "restored"):
            for child in (self.path / folder).glob("*"):
                if str(child) not in kept:
                    shutil.rmtree(child, ignore_errors=True)

    def remove(self) -> None:
        """Delete the folder. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _within(self, folder: str, name: str = "") -> Path:
        path = Path(os.path.normpath(self.path / folder / name))
        if not path.is_relative_to(self.path):
            raise ValueError(f"{path} is not in {self.path}")
        return path


def _order(checkpoint: Path) -> tuple[int, ...]:
    """Return the iteration and the attempt in a checkpoint's name; see `folder.checkpoint_name`."""
    return tuple(int(part) for part in checkpoint.name.split("-"))


def _private(root: Path) -> Path:
    """Return the folder for this user's slots, or a new one if another user owns it (it could contain code)."""
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700, parents=True)
    found = root.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return root if is_ours else Path(tempfile.mkdtemp(prefix=f"{root.name}-", dir=root.parent))


def _sweep(root: Path) -> None:
    """Delete the folders of slots that were killed."""
    for owner in root.glob(f"*/{_OWNER}"):
        with contextlib.suppress(OSError, ValueError):
            if not is_alive(ProcessId.parse(owner.read_text())):
                shutil.rmtree(owner.parent, ignore_errors=True)
