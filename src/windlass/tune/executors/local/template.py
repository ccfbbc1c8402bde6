"""Template process, which imports everything once, and from which workers are forked.

    python -m windlass.tune.executors.local.template FD

It communicates with the head over the socket FD. It reaps workers and kills the processes that they leave behind. It
ends with the head, together with all its workers, unless the sweep is detached.
"""

from __future__ import annotations

import array
import faulthandler
import gc
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from windlass.core.json_text import decode_json
from windlass.core.process import identify
from windlass.supervise.linux import become_subreaper, create_memory_file, die_with_parent, set_process_name
from windlass.supervise.replica.memory import count_oom_kills
from windlass.tune.executors.channel import SocketChannel, encode_line, rebuild_work
from windlass.tune.executors.local.detached import DetachedChannel
from windlass.tune.executors.local.stacks import STACK_SIGNAL
from windlass.tune.executors.output import Output, log_names
from windlass.tune.executors.protocol import Work
from windlass.tune.executors.worker import Worker

__all__ = ["Template", "main", "serve"]


class Template:
    """Main loop of the template process.

    Args:
        connection: blocking socket to the head.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pid, self._head = os.getpid(), os.getppid()
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._workers: dict[int, str] = {}
        self._work: Work | None = None
        self._data: dict[str, Any] = {}
        self._facts: dict[str, Any] = {}
        self._is_head_gone = False
        self._num_oom_kills = count_oom_kills()

    def run(self) -> None:
        """Serve the head until it sends `leave` or its connection is closed."""
        wakeup, waker = socket.socketpair()
        for end in (wakeup, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGUSR1, self._on_parent_gone)
        self._own = (wakeup, waker)
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        poller.register(wakeup, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if wakeup.fileno() in ready:
                wakeup.recv(4096)
                self._reap()
            if self._connection.fileno() in ready and not self._receive():
                self._on_head_gone()
                poller.unregister(self._connection)
            if self._is_head_gone and not self._workers:
                return

    def _on_parent_gone(self, number: int, frame: object) -> None:
        """Handle the signal that the head's process has ended, or the thread that started this one."""
        if os.getpid() == self._pid and os.getppid() != self._head:
            self._on_head_gone()

    def _on_term(self, number: int, frame: object) -> None:
        if os.getpid() == self._pid:
            self._end(0.0, set(self._workers))

    # ------------------------------------------------------------------------------------------- messages of the head

    def _receive(self) -> bool:
        """Read the head's messages and carry them out; return False once the head is gone."""
        try:
            piece, rights, _, _ = self._connection.recvmsg(1 << 16, socket.CMSG_LEN(64 * array.array("i").itemsize))
        except ConnectionError:
            return False
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
                self._descriptors += found
        self._received += piece
        if b"\n" in piece:  # search only the new piece: a trainable of megabytes arrives in many pieces
            *lines, rest = self._received.split(b"\n")
            self._received = rest
            for line in lines:
                self._obey(decode_json(line))
        return bool(piece)

    def _obey(self, message: dict[str, Any]) -> None:
        if message["type"] == "prepare":
            self._prepare(message)
        elif message["type"] == "fork":
            self._fork(message)
        elif message["type"] == "kill":
            if message["pid"] in self._workers:  # otherwise it was reaped, and the id may belong to another process
                _kill_group(message["pid"])
        elif message["type"] == "leave":
            self._end(message["grace_s"], set(message["kill"]))

    def _prepare(self, message: dict[str, Any]) -> None:
        """Import the modules that trials need, unless workers do it themselves."""
        sys.path[:] = message["sys_path"]
        self._data, self._facts = message["work"], message["facts"]
        answer: dict[str, Any] = {"type": "ready", "pid": os.getpid(), "unsafe": ""}
        if message["imports_here"]:
            try:
                for name in self._data["preload"]:
                    __import__(name)
                self._work = rebuild_work(self._data)
            except BaseException as error:  # noqa: BLE001 - any exception of the user's module is reported
                answer = {"type": "broken", "kind": type(error).__name__, "error": traceback.format_exc()}
            else:
                answer["unsafe"] = _unsafe_to_fork()
        gc.collect()
        gc.freeze()
        self._tell(answer)

    def _fork(self, message: dict[str, Any]) -> None:
        descriptor = self._descriptors.pop(0)
        pid = os.fork()
        if pid == 0:
            self._become_worker(descriptor, message)
        os.close(descriptor)
        self._workers[pid] = message["slot"]
        self._tell({"type": "forked", "slot": message["slot"], "pid": pid})

    def _become_worker(self, descriptor: int, message: dict[str, Any]) -> NoReturn:
        """Turn the forked child into a worker by closing everything that belongs to the template."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            for end in (self._connection, *self._own):
                end.close()
            for other in self._descriptors:
                os.close(other)
            serve(descriptor, self._work or self._data, message, self._facts)
            code = 0
        except BaseException:  # noqa: BLE001 - a child must never continue as a template
            traceback.print_exc()
        finally:
            _leave(code)

    def _tell(self, message: dict[str, Any]) -> None:
        if self._is_head_gone:
            return
        try:
            self._connection.sendall(encode_line(message))
        except OSError:
            self._is_head_gone = True

    # ------------------------------------------------------------------------------------------------- ends

    def _reap(self) -> None:
        """Reap dead children; the children of a worker end with it."""
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            pid = dead.si_pid
            if pid in self._workers:
                _kill_group(pid)  # before it is reaped: until then no other process can have its id
            _, status = os.waitpid(pid, 0)
            slot = self._workers.pop(pid, None)
            if slot is not None:
                self._kill_orphans()
                kills, self._num_oom_kills = self._num_oom_kills, count_oom_kills()
                is_oom = self._num_oom_kills > kills
                self._tell({"type": "exited", "slot": slot, "pid": pid, "status": status, "is_oom": is_oom})

    def _kill_orphans(self) -> None:
        """Kill adopted children, which are processes that a worker left behind."""
        for pid in _children():
            if pid not in self._workers:
                _kill(pid)

    def _on_head_gone(self) -> None:
        self._is_head_gone = True
        if not self._facts.get("is_detached"):
            self._end(0.0, set(self._workers))
        nowhere = os.open(os.devnull, os.O_RDWR)  # readers of the head's output no longer wait
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)

    def _end(self, grace_s: float, kill: set[int]) -> NoReturn:
        """Kill these workers at once and the others after `grace_s`, and exit."""
        for pid in kill:
            _kill_group(pid)
        deadline = time.monotonic() + grace_s
        while set(self._workers) - kill and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.002)
        while True:
            for pid in self._workers:
                _kill_group(pid)
            self._kill_orphans()
            self._reap()
            if not self._workers and not _children():
                _leave(0)
            time.sleep(0.002)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def _kill_group(pid: int) -> None:
    """Kill a worker and its process group."""
    _kill(pid)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _children() -> list[int]:
    """Return the children of this process. Source: proc(5), /proc/pid/task/tid/children."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _unsafe_to_fork() -> str:
    """Return why this process is not safe to fork, or an empty string if it is."""
    if threading.active_count() > 1:
        return "its modules have started threads: " + ", ".join(thread.name for thread in threading.enumerate()[1:])
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "its modules use CUDA when they are imported"
    return ""


def serve(descriptor: int, work: Work | dict[str, Any], order: dict[str, Any], facts: dict[str, Any]) -> None:
    """Serve trials until the head sends `leave` or its connection is closed.

    Args:
        descriptor: descriptor of the socket to the head.
        work: the sweep's work; JSON if this process imports the trainable itself.
        order: the head's order for this worker: slot, environment, and whether it serves only one trial.
        facts: the head's facts for all workers.
    """
    os.setsid()
    if not facts["is_detached"]:
        parent = os.getppid()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            return
    set_process_name(f"trials-{order['slot']}"[:15])
    os.environ.update(order["env"])
    stacks = create_memory_file("stacks")
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
    _seed()
    _limit_threads(order["env"])
    folder = work.folder if isinstance(work, Work) else work["folder"]
    options = work.options if isinstance(work, Work) else work["options"]
    output = Output(folder, order["slot"], log_names(options.get("log_to_file")))
    channel = _channel(socket.socket(fileno=descriptor), folder, order, facts, stacks)
    channel.send({"type": "hello", "pid": os.getpid(), "stacks": stacks})
    worker = Worker(channel, work if isinstance(work, Work) else rebuild_work(work), observer=output)
    try:
        worker.run(serves_one=order["serves_one"])
    finally:
        output.close()
        if isinstance(channel, DetachedChannel):
            channel.close()


def _channel(
    connection: socket.socket, folder: str, order: dict[str, Any], facts: dict[str, Any], stacks: int
) -> SocketChannel | DetachedChannel:
    if not facts["is_detached"]:
        return SocketChannel(connection)
    known = {"template": str(identify(os.getppid())), "stacks": stacks, "variables": order["env"]}
    known["is_single"] = order["serves_one"]
    return DetachedChannel(
        connection, folder, order["slot"], known, sockets=facts["sockets"], linger_s=facts["linger_s"]
    )


def _seed() -> None:
    """Reseed numpy, because a forked process inherits its random state (`random` reseeds itself)."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))


def _limit_threads(variables: dict[str, str]) -> None:
    """Limit the threads of libraries that were loaded before the variables were set."""
    number = variables.get("OMP_NUM_THREADS")
    torch, pools = sys.modules.get("torch"), sys.modules.get("threadpoolctl")
    if number is not None and torch is not None:
        torch.set_num_threads(int(number))
    if number is not None and pools is not None:
        pools.threadpool_limits(int(number))


def main() -> None:
    """Run the template process."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    die_with_parent(signal.SIGUSR1)
    become_subreaper()
    set_process_name("windlass-trials")
    Template(connection).run()


if __name__ == "__main__":
    main()
