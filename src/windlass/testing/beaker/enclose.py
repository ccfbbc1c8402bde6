"""Program that runs a command as a container would: with its own mounts, host name and process ids.

It is executed, never imported.

    python -I -S enclose.py PLAN.json

The plan is written by `container.py`. Nothing outlives the command: the mounts are private to this process, and the
command's processes end with it. Linux only; standard library only.

Source: mount_namespaces(7), pid_namespaces(7), user_namespaces(7), mount(2).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

__all__ = ["FAILED_CODE", "main"]

FAILED_CODE = 121  # the container could not be made; `failure` of the plan has the reason

_NEWNS, _NEWUTS, _NEWUSER, _NEWPID = 0x00020000, 0x04000000, 0x10000000, 0x20000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_libc = ctypes.CDLL(None, use_errno=True)


def main(plan_path: str) -> int:
    """Make the container, run the command in it, and return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # none may arrive before it can be forwarded
    # The parent wrote it; and this program cannot import windlass.
    plan: dict[str, Any] = json.loads(Path(plan_path).read_text())  # noqa: TID251
    os.unlink(plan_path)  # it contained the job's secrets
    try:
        _die_with_parent()
        _unshare(is_root=bool(plan["is_root"]))
        inner = os.fork()
        if inner == 0:
            os._exit(_inside(plan))
    except OSError as error:
        return _failed(plan, error)
    _forward_to(inner)
    return _wait(inner)


def _unshare(*, is_root: bool) -> None:
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.unshare(_NEWNS | _NEWUTS | _NEWPID | (0 if is_root else _NEWUSER)), "unshare")
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def _inside(plan: dict[str, Any]) -> int:
    """Run the container's first process, which forwards signals, reaps children, and exits with the command."""
    try:
        _die_with_parent()
        socket.sethostname(plan["hostname"])
        _enter(plan)
        command = os.fork()
    except OSError as error:
        return _failed(plan, error)
    if command == 0:
        _execute(plan)
    _forward_to(command)
    while True:
        ended, status = os.wait()
        if ended == command:
            return _code(status)


def _execute(plan: dict[str, Any]) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    try:
        os.chdir(plan["box"] + "/work")
        os.execvpe(plan["argv"][0], plan["argv"], plan["environ"])
    except OSError as error:
        os._exit(_failed(plan, error, code=127))


def _enter(plan: dict[str, Any]) -> None:
    """Change to a private root that contains the machine's folders and the job's mounts."""
    root = plan["root"]
    tree = _Tree(root)
    for target in plan["hidden"]:
        tree.hide(target)
    if plan["hidden"]:
        tree.place(plan["box"], plan["box"], is_readonly=False)
    for source, target, is_readonly in plan["mounts"]:
        tree.place(source, target, is_readonly=is_readonly)
    tree.place(plan["hosts_file"], "/etc/hosts", is_readonly=False)
    os.chroot(root)
    os.chdir("/")
    _mount("proc", "/proc", "proc", 0)


class _Tree:
    """Root folder under construction; missing mount points are created without changing the machine's folders."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._ours: set[str] = set()
        self._shadow("/")
        self._shadow("/tmp")  # noqa: S108 - what a job makes there is its own
        self.hide("/dev/shm")  # noqa: S108

    def place(self, source: str, target: str, *, is_readonly: bool) -> None:
        self._ensure(target, is_folder=os.path.isdir(source))
        _bind(source, self._root + target)
        if is_readonly:
            _mount("none", self._root + target, "", _MS_BIND | _MS_REMOUNT | _MS_RDONLY)

    def hide(self, target: str) -> None:
        """Mount an empty folder over one of the machine's folders."""
        self._ensure(target, is_folder=True)
        _mount("tmpfs", self._root + target, "tmpfs", 0)
        self._ours.add(target)

    def _ensure(self, target: str, *, is_folder: bool) -> None:
        """Create a mount point.

        A folder of the machine that lacks it is replaced by bind mounts of its contents.
        """
        path = "/"
        parts = [part for part in target.split("/") if part]
        for index, part in enumerate(parts):
            child = os.path.join(path, part)
            here = self._root + child
            if not os.path.lexists(here):
                if path not in self._ours:
                    self._shadow(path)
                if index < len(parts) - 1 or is_folder:
                    os.mkdir(here)
                else:
                    os.close(os.open(here, os.O_CREAT, 0o644))
                self._ours.add(child)
            path = child

    def _shadow(self, path: str) -> None:
        inside = self._root + path if path != "/" else self._root
        _mount("tmpfs", inside, "tmpfs", 0)
        self._ours.add(path)
        os.chmod(inside, os.stat(path).st_mode & 0o7777)
        for name in os.listdir(path):
            try:
                _copy(os.path.join(path, name), os.path.join(inside, name))
            except FileNotFoundError:
                continue  # another process has just removed it


def _copy(source: str, copy: str) -> None:
    if os.path.islink(source):
        os.symlink(os.readlink(source), copy)
        return
    if os.path.isdir(source):
        os.mkdir(copy)
    else:
        os.close(os.open(copy, os.O_CREAT, 0o644))
    _bind(source, copy)


def _bind(source: str, target: str) -> None:
    _mount(source, target, "", _MS_BIND | _MS_REC)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None)
    _check(done, f"mount {source} on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _die_with_parent() -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _forward_to(pid: int) -> None:
    for number in _FORWARDED:
        signal.signal(number, lambda received, _frame: _tell(pid, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)


def _tell(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has just ended


def _wait(pid: int) -> int:
    return _code(os.waitpid(pid, 0)[1])


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _failed(plan: dict[str, Any], error: OSError, *, code: int = FAILED_CODE) -> int:
    said = str(plan["argv"][0]) if code == 127 else "cannot make the container"
    Path(plan["failure"]).write_text(f"{said}: {error.strerror or error}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
