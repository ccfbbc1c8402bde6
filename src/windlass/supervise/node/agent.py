"""Agent of a node: `windlass.pyz node-start FOLDER` starts it, detached; it runs until the node ends.

    set-up commands -> Ray -> watch: request to stop, time to live, silence of the head, Ray's end -> end of all processes

The agent itself runs on the machine, also where a container has what it starts (`container`).

All processes of the node are below the agent, which adopts orphans, and carry the node's token, by which `node-stop` and the
next agent find what a killed agent left behind. A rented machine ends with its node; one whose Ray or set-up failed stays
for its logs for 15 minutes (`KEEP_FAILED_S`).
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.core.files import take_lock, write_atomic
from windlass.core.json_text import decode_json
from windlass.core.process import boot_id, identify
from windlass.supervise.container.node_container import open_container, python_inside, run_step
from windlass.supervise.launchers.ray_start import NODE_NAME, StartSpec
from windlass.supervise.launchers.ray_versions import ray_warning
from windlass.supervise.linux import become_subreaper, set_process_name
from windlass.supervise.node.agent_log import write_log
from windlass.supervise.node.container import (
    PIPE,
    NodeContainer,
    end_container,
    enter,
    inside_environment,
    write_container,
)
from windlass.supervise.node.ending import await_machine_end, ends_because
from windlass.supervise.node.head_link import HeadLink, NoticeWatch
from windlass.supervise.node.processes import boot_clock, end_leftovers, end_processes, last_lines, reap
from windlass.supervise.node.ray_drain import drain_command
from windlass.supervise.node.ray_monitor import RayMonitor, check_scaling_python
from windlass.supervise.node.ray_node import (
    find_python,
    free_port,
    make_private,
    own_address,
    ray_environment,
    ray_options,
    scratch_of,
)
from windlass.supervise.node.spec import NODE_FOLDER_VARIABLE, NODE_VARIABLE, NodeFolder, NodeStatus
from windlass.supervise.node.store import NodeStore

__all__ = ["ray_options", "start_node"]

_LOOK_S = 0.25
_START_S = 600.0
_END_S = 60.0
_SHUTDOWN_AGAIN_S = 5.0


class _NodeEnded(Exception):
    """The node ends, with this reason."""


def start_node(path: Path) -> int:
    """Start the agent of a folder unless it runs; return when it holds the folder's lock."""
    path = path.absolute()
    folder = NodeFolder(path)
    folder.read_spec()
    (path / "logs").mkdir(exist_ok=True)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.setsid()
            if os.fork() == 0:
                _become_agent(folder, writing)
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    said = os.read(reading, 1)
    os.close(reading)
    return 0 if said else 1


def _become_agent(folder: NodeFolder, ready: int) -> None:
    lock = os.open(str(folder.path / "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        take_lock(lock, folder.path / "lock")
    except BlockingIOError:
        os.write(ready, b"r")  # an agent runs already
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(str(folder.log("agent")), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    code = 1
    try:
        code = _Agent(folder, lock).run(ready)
    except Exception:  # noqa: BLE001 - the process ends below, which would hide it
        write_log(traceback.format_exc())
    finally:
        os._exit(code)


class _Agent:
    def __init__(self, folder: NodeFolder, lock: int) -> None:
        self._folder, self._lock, self._spec = folder, lock, folder.read_spec()
        self._own = {
            **self._spec.environment,
            NODE_VARIABLE: self._spec.token,
            NODE_FOLDER_VARIABLE: str(folder.path),
        }
        self._environ = {**os.environ, **self._own}
        self._container: NodeContainer | None = None
        before = folder.read_status()
        self._address = self._spec.address or own_address()
        known = before.head if before is not None and before.token == self._spec.token else ""
        port = self._spec.ray_port or (0 if known else free_port(self._address))
        self._head = self._spec.head or (f"{self._address}:{port}" if port else known)
        is_same_boot = before is not None and before.token == self._spec.token and before.boot == boot_id()
        self._status = NodeStatus(
            token=self._spec.token,
            state="setup",
            head=self._head,
            process=str(identify(os.getpid())),
            boot=boot_id(),
            began_s=before.began_s if before is not None and is_same_boot else boot_clock(),
            began_at=before.began_at if before is not None and is_same_boot else time.time(),
            instance=self._spec.instance,
            group=self._spec.group,
            address=self._address,
        )
        self._python = self._version = self._warning = ""
        self._store: NodeStore | None = None
        self._link: HeadLink | None = None
        self._monitor: RayMonitor | None = None
        self._notices = NoticeWatch(self._spec.metadata)
        self._is_drained = True

    def run(self, ready: int) -> int:
        """Run the node until it ends; return the agent's exit code."""
        become_subreaper()
        set_process_name("windlass-node")
        signal.signal(signal.SIGTERM, lambda *_: self._folder.request_stop())
        end_leftovers(self._spec.token)
        left = end_container(self._folder.path)
        self._say("setup")
        os.write(ready, b"r")
        os.close(ready)
        try:
            if left:
                raise PreconditionError(left, code="engine-failed")
            self._open()
            self._set_up(self._spec.host_setup)
            self._enter_container()
            self._set_up(self._spec.setup)
            self._find_python()
            self._say("starting", "Ray")
            started = self._start_ray()
            self._start_monitor()
            self._say("ready", self._warning, ready_at=time.time())
            self._watch(started)
        except _NodeEnded as reason:
            self._end_anyway("ended", str(reason))
            self._end_machine()
            return 0
        except PreconditionError as error:
            untested = ray_warning(self._version) if self._version and error.code == "ray-failed" else ""
            self._end_anyway("failed", "; ".join(filter(None, (error.message, untested))), error.code)
        except Exception as error:  # noqa: BLE001 - whatever it is, a rented machine must still end
            write_log(traceback.format_exc())
            self._end_anyway("failed", f"{type(error).__name__}: {error}", "node-failed")
        if self._spec.shutdown:
            self._linger()
        return 1

    def _open(self) -> None:
        """Start what runs beside the node: the store of a head, the link of a worker, the watch for notices."""
        if self._spec.is_head and self._spec.store_port:
            archive = Path(os.path.abspath(sys.argv[0]))
            store = NodeStore(self._folder, self._spec, address=self._address, head=self._head, archive=archive)
            store.start()
            self._store = store  # one that was not started cannot be closed
        if self._spec.store:
            self._link = HeadLink(self._spec, lambda: self._status)
            self._link.start()
        self._notices.start()

    def _say(self, state: str, message: str = "", **facts: Any) -> None:
        self._status = replace(self._status, state=state, message=message, **facts)
        self._folder.write_status(self._status)

    def _end(self, state: str, message: str, code: str = "") -> None:
        limit_s = _END_S if self._spec.shutdown else math.inf  # a process that cannot be killed ends with its machine
        left = end_container(self._folder.path)
        if left and not self._spec.shutdown:  # the machine stays, and the container with it: the node has not ended
            state, code = "failed", code or "engine-failed"
        end_processes(os.getpid(), limit_s=limit_s)
        end_leftovers(self._spec.token, limit_s=limit_s)
        shutil.rmtree(str(scratch_of(self._spec.token)), ignore_errors=True)
        try:
            self._say(state, "; ".join(filter(None, (message, left))), code=code, ended_at=time.time())
        except OSError as error:  # such as a full disk; the head hears the status, and the machine ends
            write_log(f"the status was not written: {error}")
        if self._link is not None:
            self._link.post()
        if self._store is not None and state == "ended":
            self._store.await_told()

    def _end_anyway(self, state: str, message: str, code: str = "") -> None:
        try:
            self._end(state, message, code)
        except Exception:  # noqa: BLE001 - a rented machine must still end
            write_log(traceback.format_exc())

    def _linger(self) -> None:
        """Keep the machine of a node that failed for its logs; returns only if another agent takes the node over."""
        if self._store is not None:
            self._store.close()  # the workers' Ray is lost with the head's: they end themselves soon
        os.close(self._lock)
        reason = await_machine_end(self._folder, self._status.process, self._reason)
        if reason:
            write_log(f"the machine ends: {reason}")
            self._end_machine()

    def _end_machine(self) -> None:
        """End this machine, if it is rented; returns only if it is not."""
        while self._spec.shutdown:
            try:
                done = subprocess.run(
                    ["sh", "-c", self._spec.shutdown], stdin=subprocess.DEVNULL, env=dict(os.environ), check=False
                )
                write_log(f"`{self._spec.shutdown}` exited with {done.returncode}")
            except Exception as error:  # noqa: BLE001 - such as no more processes or files: tried again
                write_log(f"`{self._spec.shutdown}` was not run: {error}")
            time.sleep(_SHUTDOWN_AGAIN_S)

    def _look(self) -> None:
        """Raise _NodeEnded if the node must end now; pass a notice on once."""
        reason = self._reason()
        if reason:
            raise _NodeEnded(reason)
        at = self._notices.at
        if at is not None and at != self._status.notice_at:
            write_atomic(self._folder.path / "notice.json", json.dumps({"at": at}).encode())
            self._say(self._status.state, self._status.message, notice_at=at)
            self._is_drained = False
        if not self._is_drained and self._status.state == "ready":
            self._is_drained = True
            self._drain(float(self._status.notice_at or 0.0))

    def _reason(self) -> str:
        """Return why the node must end now; empty if it goes on."""
        link = self._link
        return ends_because(
            self._spec,
            age_s=boot_clock() - self._status.began_s,
            is_stop_requested=self._folder.is_stop_requested or (link is not None and link.is_stop_requested),
            silent_s=0.0 if link is None else link.silent_s,
            problem="" if link is None else link.problem,
        )

    def _drain(self, at: float) -> None:
        """Tell Ray that the node goes; the process that does it is collected with others."""
        command = drain_command(self._python, self._head, f"{NODE_NAME}{self._spec.number}", at)
        argv, environ = enter(self._container, command, ray_environment(self._environ, self._spec))
        with open(str(self._folder.log("drain")), "ab") as log:
            subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _set_up(self, commands: Sequence[str]) -> None:
        log = self._folder.log("setup")
        for command in commands:
            self._say("setup", command)
            argv, environ = enter(self._container, ["bash", "-c", command], self._environ)
            code = run_step(command, argv, environ, log, self._look)
            if code:
                message = f"set-up: `{command}` exited with {code}: {last_lines(log)}"
                raise PreconditionError(message, hint="correct `setup` in the cluster's file", code="setup-failed")

    def _enter_container(self) -> None:
        """Make the node's container, if its spec names an image; what follows runs in it."""
        self._container = open_container(
            self._folder, self._spec, self._look, lambda message: self._say("setup", message)
        )
        if self._container is not None:
            self._environ = {**inside_environment(os.environ), **self._own}

    def _find_python(self) -> None:
        if self._container is None:
            self._python = find_python(self._spec, self._environ)
        else:
            self._python = python_inside(self._container, self._spec, self._environ)
            write_container(self._folder.path, replace(self._container, python=self._python))
        if self._spec.is_scaled:
            check_scaling_python(self._python, self._environ, self._container)

    def _start_ray(self) -> list[int]:
        """Start Ray; return the numbers of its raylets."""
        reading, writing = os.pipe()
        os.set_inheritable(writing, True)
        is_inside = self._container is not None
        start = StartSpec(self._spec.number, self._head, self._options(), 0, PIPE if is_inside else writing)
        command = [self._python, os.path.abspath(sys.argv[0]), "ray-start", start.to_text()]
        environ = ray_environment(self._environ, self._spec)
        argv, environ = enter(self._container, command, environ, has_pipe=True)
        with open(str(self._folder.log("ray")), "ab") as log:
            subprocess.Popen(
                argv,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=writing if is_inside else log,
                stderr=log,
                pass_fds=() if is_inside else (writing,),
            )
        os.close(writing)
        return self._await_ray(reading)

    def _options(self) -> tuple[str, ...]:
        scratch = scratch_of(self._spec.token)
        make_private(scratch)
        return ray_options(self._spec, scratch, address=self._address, head=self._head)

    def _await_ray(self, reading: int) -> list[int]:
        received, end_s = b"", time.monotonic() + _START_S
        while time.monotonic() < end_s:
            self._look()
            if not select.select([reading], [], [], _LOOK_S)[0]:
                continue
            piece = os.read(reading, 1 << 16)
            *lines, received = (received + piece).split(b"\n")
            for event in (decode_json(line) for line in lines):
                if "error" in event:
                    raise PreconditionError(
                        f"{event['error']}: {last_lines(self._folder.log('ray'))}", code="ray-failed"
                    )
                self._version = event.get("version", self._version)
                if "started" in event:
                    os.close(reading)
                    self._warning = ray_warning(self._version, authenticates=event.get("authenticates", True))
                    return [int(each) for each in event["started"]]
            if not piece:
                raise PreconditionError(f"Ray did not start: {last_lines(self._folder.log('ray'))}", code="ray-failed")
        message = f"Ray did not start within {_START_S:g} s"
        raise PreconditionError(message, hint="is the head's port reachable from here?", code="ray-failed")

    def _start_monitor(self) -> None:
        """Start Ray's autoscaler on the head of rented machines; returns when it has listed them."""
        if not self._spec.is_scaled:
            return
        environ = ray_environment(self._environ, self._spec)
        self._monitor = RayMonitor(self._folder, self._python, environ, self._head, self._container)
        self._say("starting", "Ray's autoscaler")
        self._monitor.prepare()
        self._monitor.start()
        while not self._monitor.is_ready():
            self._look()
            reap()
            time.sleep(_LOOK_S)

    def _watch(self, raylets: Sequence[int]) -> None:
        processes = [identify(pid) for pid in raylets]
        while True:
            self._look()
            reap()
            if self._monitor is not None:
                self._monitor.look()
            for process in processes:
                if process is None or identify(process.pid) != process:
                    raise PreconditionError(f"Ray ended: {last_lines(self._folder.log('ray'))}", code="ray-failed")
            time.sleep(_LOOK_S)
