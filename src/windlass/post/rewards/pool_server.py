"""Server of a reward pool: one small process that forks a worker for each answer and kills it at its deadline.

The verifiers are imported once, here, so a worker costs a fork and starts without what other answers left behind. The
process never has torch loaded, unless a verifier imports it. The pool may be busy for minutes (a training step):
deadlines, retries and the queue are kept here.

A worker is the first process of a pid namespace where the machine allows one, so that the kernel kills all its
descendants with it. Elsewhere this process adopts orphans (PR_SET_CHILD_SUBREAPER) and kills what is not a worker.

Source: pid_namespaces(7), user_namespaces(7), prctl(2).
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import resource
import select
import selectors
import signal
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_object
from windlass.core.process import descendants, send_signal
from windlass.post.channel import FrameStream, read_settings
from windlass.post.rewards.cgroup import ControlGroup
from windlass.post.rewards.protocol import Score, Verifier
from windlass.post.rewards.registry import find_verifier
from windlass.supervise.linux import become_subreaper, die_with_parent

__all__ = ["ForkedWorker", "WorkRequest", "WorkerLimits", "WorkerServer", "begin_worker", "main"]

_REQUEST = struct.Struct("!QI")  # number of the request, number of its verifier; then pickled answer and ground truth
_MAX_REPLY_BYTES = 65536
_MAX_ERROR_LENGTH = 500
_LOOK_S = 1.0
_NUM_PROCESSES = 64
"""Processes of one worker. More would slow down this process, which has to end them."""
_CLONE_NEWPID = 0x20000000
_CLONE_NEWUSER = 0x10000000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Limits of a server's workers, sent by its pool."""

    num_workers: int
    deadline_s: float
    num_retries: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRequest:
    """Work of a worker; `verifier` is the number of what does it."""

    number: int
    verifier: int
    content: bytes
    retries_left: int
    cost: Mapping[str, float] = field(default_factory=dict)  # of earlier attempts


@dataclass(slots=True, kw_only=True)
class ForkedWorker:
    """A worker, and the socket to it."""

    request: WorkRequest
    reply: socket.socket
    started_s: float
    data: bytes = b""
    is_closed: bool = False  # the pipe ended without a reply
    is_over: bool = False  # the process has ended and its number may be another's


class WorkerServer(ABC):
    """Forks a worker for each request, within limits, and kills it at its deadline."""

    def __init__(self, channel: FrameStream, limits: WorkerLimits) -> None:
        self._channel = channel
        self._limits = limits
        self._parent = os.getppid()
        self._waiting: deque[WorkRequest] = deque()
        self._workers: dict[int, ForkedWorker] = {}
        self._ending: set[int] = set()  # killed, and not yet waited for
        self._selector = selectors.DefaultSelector()
        self._wake = _wake_at_child_exit()
        self._alive, self._alive_writer = os.pipe()  # ends with this process
        # Before a user namespace is entered, which has no rights over control groups.
        self._group = ControlGroup(
            num_processes=_NUM_PROCESSES * limits.num_workers, memory_bytes=limits.memory_bytes * limits.num_workers
        )
        self._namespaces = _enter_pid_namespaces()

    @property
    def facts(self) -> dict[str, bool]:
        """Capabilities of this machine."""
        return {
            "pid_namespaces": self._namespaces.are_used,
            "process_limit": "pids" not in self._group.missing,
        }

    def serve(self) -> None:
        """Score requests until the pool closes its socket or its process ends; leaves no worker."""
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        try:
            while not self._channel.is_closed and os.getppid() == self._parent:
                self._step()
        finally:
            for pid in list(self._workers):
                self._kill(pid)
            while self._ending:
                self._ending.discard(os.wait()[0])
            self._kill_strays()
            self._group.close()

    def _step(self) -> None:
        self._selector.modify(
            self._channel, selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.has_unsent else 0)
        )
        for key, _ in self._selector.select(self._wait_s()):
            if key.fileobj is self._wake:
                self._wake.recv(4096)
            elif key.fileobj is self._channel:
                self._channel.flush()
                for frame in self._channel.receive():
                    self._take(frame)
            else:
                self._hear(key.data)
        self._reap()
        now_s = time.monotonic()
        for pid, worker in list(self._workers.items()):
            if now_s - worker.started_s >= self._limits.deadline_s:
                error = f"no {self._what} within {self._limits.deadline_s:g} s"
                self._fail(pid, Score(value=None, error=error, kind="timeout"))
        while self._waiting and len(self._workers) + len(self._ending) < self._limits.num_workers:
            self._start(self._waiting.popleft())

    # ---------------------------------------------------------------------------------------- what subclasses define

    _what = "reply"

    @abstractmethod
    def _take(self, frame: bytes) -> None:
        """Take a message of the client."""

    @abstractmethod
    def _run(self, request: WorkRequest, connection: socket.socket) -> NoReturn:
        """Do the work of a request, in the process of a worker that has just begun, and end it."""

    @abstractmethod
    def _hear(self, pid: int) -> None:
        """Receive what a worker sent."""

    @abstractmethod
    def _answer(self, pid: int, score: Score) -> None:
        """Send a result to the client, and kill the worker."""

    # ----------------------------------------------------------------------------------------------------- processes

    def _wait_s(self) -> float:
        oldest_s = min((worker.started_s for worker in self._workers.values()), default=None)
        if oldest_s is None:
            return _LOOK_S
        return max(0.0, min(_LOOK_S, oldest_s + self._limits.deadline_s - time.monotonic()))

    def _start(self, request: WorkRequest) -> None:
        ours, theirs = socket.socketpair()
        started_s = time.monotonic()
        pid = self._namespaces.fork()
        if pid == 0:
            self._enter_limits()
            self._end_with_server()
            self._run(request, theirs)
        theirs.close()
        ours.setblocking(False)
        self._workers[pid] = ForkedWorker(request=request, reply=ours, started_s=started_s)
        self._selector.register(ours, selectors.EVENT_READ, pid)

    def _enter_limits(self) -> None:
        """Bound this process, a worker that has just begun; it ends if it cannot be bounded."""
        try:
            for entry in self._group.entries:
                with open(entry, "w") as file:
                    file.write("0")
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (self._limits.memory_bytes,) * 2)
        except BaseException:  # noqa: BLE001 - nothing of the server may run in its child
            os._exit(1)

    def _end_with_server(self) -> None:
        """Let this worker die with the server, also if the server has died since the fork."""
        die_with_parent(signal.SIGKILL)
        os.close(self._alive_writer)
        if select.select([self._alive], [], [], 0)[0]:
            os._exit(1)

    def _fail(self, pid: int, score: Score) -> None:
        """End a worker without a score; its request is repeated, or reported."""
        request = self._workers[pid].request
        if request.retries_left:
            self._kill(pid)
            cost = _sum(request.cost, score.cost)
            self._waiting.appendleft(replace(request, retries_left=request.retries_left - 1, cost=cost))
        else:
            self._answer(pid, score)

    def _kill(self, pid: int) -> None:
        worker = self._workers.pop(pid)
        if not worker.is_closed:
            self._selector.unregister(worker.reply)
        worker.reply.close()
        if worker.is_over:
            return
        for each in (pid, *([] if self._namespaces.are_used else descendants(pid))):
            send_signal(each, signal.SIGKILL)
        self._ending.add(pid)

    def _reap(self) -> None:
        """Wait for ended children; a worker that died without closing its pipe (a descendant holds it) is reported."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._ending.discard(pid)
            if pid in self._workers:
                self._workers[pid].is_over = True
                self._read_rest(pid)
            if pid in self._workers:
                code = os.waitstatus_to_exitcode(status)
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                self._fail(pid, Score(value=None, error=f"the worker ended with {how}", kind="died"))
            self._kill_strays()

    def _read_rest(self, pid: int) -> None:
        num_read = -1
        while pid in self._workers and num_read != len(self._workers[pid].data):
            num_read = len(self._workers[pid].data)
            self._hear(pid)

    def _kill_strays(self) -> None:
        """Kill what workers left behind, where there are no pid namespaces; such processes are children of this one."""
        if self._namespaces.are_used:
            return
        while strays := [pid for pid in _children() if pid not in self._workers and pid not in self._ending]:
            for pid in [*strays, *descendants(*strays)]:
                send_signal(pid, signal.SIGKILL)
            for pid in strays:
                os.waitpid(pid, 0)


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


class _VerifierServer(WorkerServer):
    """Scores an answer in each worker."""

    _what = "score"

    def __init__(self, channel: FrameStream, verifiers: Sequence[Verifier], limits: WorkerLimits) -> None:
        super().__init__(channel, limits)
        self._verifiers = verifiers

    def _take(self, frame: bytes) -> None:
        number, verifier = _REQUEST.unpack_from(frame)
        content, retries = frame[_REQUEST.size :], self._limits.num_retries
        self._waiting.append(WorkRequest(number=number, verifier=verifier, content=content, retries_left=retries))

    def _run(self, request: WorkRequest, connection: socket.socket) -> NoReturn:
        _work(self._verifiers[request.verifier], request.content, connection.fileno())

    def _hear(self, pid: int) -> None:
        worker = self._workers.get(pid)
        if worker is None or worker.is_closed:
            return
        try:
            data = worker.reply.recv(_MAX_REPLY_BYTES + 1)
        except BlockingIOError:
            return
        worker.data += data
        if not data:
            self._finish(pid, worker)
        elif len(worker.data) > _MAX_REPLY_BYTES:
            error = f"the worker's reply has more than {_MAX_REPLY_BYTES} bytes"
            self._fail(pid, Score(value=None, error=error, kind="died"))

    def _finish(self, pid: int, worker: ForkedWorker) -> None:
        """Take the reply of a worker that closed its pipe, complete or not."""
        try:
            reply = decode_object(worker.data)
            value = None if reply["value"] is None else float(reply["value"])
            score = Score(value=value, error=str(reply["error"]), kind=str(reply["kind"]), cost=dict(reply["cost"]))
        except (ValueError, TypeError, KeyError):
            self._selector.unregister(worker.reply)
            worker.is_closed = True  # it is ending, and how is known then; or it goes on until its deadline
        else:
            self._fail(pid, score) if score.value is None else self._answer(pid, score)

    def _answer(self, pid: int, score: Score) -> None:
        worker = self._workers[pid]
        self._kill(pid)
        num_repeats = self._limits.num_retries - worker.request.retries_left
        seconds = time.monotonic() - worker.started_s
        cost = _sum(worker.request.cost, score.cost)
        reply = [worker.request.number, score.value, score.error, score.kind, seconds, num_repeats, cost]
        self._channel.send(json.dumps(reply).encode())


class _Namespaces:
    """Forks children into pid namespaces of their own, where the machine allows it."""

    def __init__(self, own: int | None) -> None:
        self._own = own
        self._libc = ctypes.CDLL(None, use_errno=True)

    @property
    def are_used(self) -> bool:
        """Return whether the kernel kills a child's descendants with it."""
        return self._own is not None

    def fork(self) -> int:
        """Fork; a namespace is asked for again each time, as its first process ends it."""
        if self._own is None:
            return os.fork()
        if self._libc.unshare(_CLONE_NEWPID):
            raise OSError(ctypes.get_errno(), "unshare")
        try:
            return os.fork()
        finally:
            self._libc.setns(self._own, _CLONE_NEWPID)  # a child stays where it is: this concerns its own children


def _enter_pid_namespaces() -> _Namespaces:
    """Return the way to fork on this machine, after trying it: as root, or in a user namespace of this user's."""
    become_subreaper()
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if user != 0 and libc.unshare(_CLONE_NEWUSER) == 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    try:
        own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return _Namespaces(None)
    if libc.unshare(_CLONE_NEWPID):
        os.close(own)
        return _Namespaces(None)
    libc.setns(own, _CLONE_NEWPID)
    return _Namespaces(own)


def _wake_at_child_exit() -> socket.socket:
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    return reader


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def _work(verifier: Verifier, content: bytes, writer: int) -> NoReturn:
    """Score one answer in a fresh process, which ends here; output of the verifier is discarded."""
    try:
        begin_worker(writer)
        answer, ground_truth = pickle.loads(content)  # noqa: S301 - from the pool
        try:
            score = verifier.score(answer, ground_truth)
        except BaseException as error:  # noqa: BLE001 - SystemExit of the user's code is an error of it
            score = Score(value=None, error=f"{type(error).__name__}: {error}", kind="exception")
        reply = {
            "value": score.value,
            "error": score.error[:_MAX_ERROR_LENGTH],
            "kind": score.kind,
            "cost": dict(score.cost),
        }
        os.write(writer, json.dumps(reply).encode())
    finally:
        os._exit(0)


def begin_worker(kept: int) -> None:
    """Cut a worker that has just begun off from its server, except for a descriptor; its output is discarded."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    empty = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(empty, number)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def main(descriptor: int) -> int:
    """Serve the pool on a socket until the pool closes it; return the exit code of the process."""
    connection = socket.socket(fileno=descriptor)
    settings = read_settings(connection)
    channel = FrameStream(connection)
    try:
        verifiers = [find_verifier(name, values) for name, values in settings["verifiers"]]
        for verifier in verifiers:
            verifier.load()
    except WindlassError as error:
        channel.send(json.dumps({"error": error.message, "hint": error.hint, "code": error.code}).encode())
        return 1
    server = _VerifierServer(channel, verifiers, WorkerLimits(**settings["limits"]))
    channel.send(json.dumps(server.facts).encode())
    server.serve()
    return 0
