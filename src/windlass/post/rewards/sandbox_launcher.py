"""Launcher of a sandboxed program: a script of the standard library alone, run by `sandbox.py` as `python -I -S`.

It reads its settings as JSON from the descriptor of its first argument and runs until the program ends, or until
descriptor 0 reaches its end: then it kills the program with all its descendants. It writes the program's exit code, or
what the machine refused, as JSON to the descriptor of its second argument.

    launcher                     outside; waits
      first process of a pid namespace, new mounts, no network; enters the control group; waits
        the program              another uid, limits, no way to new privileges

Source: pid_namespaces(7), mount_namespaces(7), user_namespaces(7), pivot_root(2), prctl(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
from typing import Any, NoReturn

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PIDS, _NEW_NET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH = 2
_NO_NEW_PRIVILEGES, _DUMPABLE, _DEATH_SIGNAL = 38, 4, 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_TEMPORARY = "/tmp"  # noqa: S108 - in a mount namespace
_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = [text.encode() if text else None for text in (source, target, kind)]
    _call(_LIBC.mount(*texts, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def _bind(source: str, target: str) -> None:
    """Show a file or folder read-only, as it is now below the old root."""
    old = "/old" + source
    if not os.path.exists(old):
        return
    if os.path.isdir(old):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    _mount(old, target, None, _BIND | _RECURSIVE)
    # A user namespace may add flags to a mount and remove none; statvfs names them by the same numbers.
    kept = os.statvfs(target).f_flag & 0x40F
    device = source.startswith("/dev/")
    flags = _REMOUNT | _BIND | _NO_SUID | kept | (0 if device else _READ_ONLY | _NO_DEVICES)
    _mount(None, target, None, flags)


def _new_root(settings: dict[str, Any]) -> None:
    """Replace all files by system folders and the interpreter, read-only, and an empty /tmp in memory."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", _TEMPORARY, "tmpfs", _NO_SUID | _NO_DEVICES, "size=1m,mode=755")
    os.mkdir(_TEMPORARY + "/old")
    os.chdir(_TEMPORARY)
    _call(_LIBC.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"old"), "pivot_root")
    os.chdir("/")
    for path in settings["shown"]:
        if os.path.islink("/old" + path):
            os.symlink(os.readlink("/old" + path), path)
        else:
            _bind(path, path)
    for path in settings["hidden"]:
        if os.path.isdir(path):
            _mount("tmpfs", path, "tmpfs", _NO_SUID | _NO_DEVICES | _READ_ONLY, "size=4k,mode=000")
    os.mkdir(_TEMPORARY)
    _mount(
        "tmpfs", _TEMPORARY, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={settings['disk_bytes']},nr_inodes=4096,mode=1777"
    )
    os.mkdir("/program")
    with open("/program/main.py", "w") as file:
        file.write(settings["program"])
    os.mkdir("/proc")
    # before the old root goes: a user namespace may mount /proc only where another whole one is visible
    _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES)
    _call(_LIBC.umount2(b"/old", _DETACH), "umount")
    os.rmdir("/old")
    _mount(None, "/", None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEVICES)


def _map_user(user: int, group: int) -> None:
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)


def _become(settings: dict[str, Any]) -> None:
    """Give up all rights and the way to new ones."""
    if os.geteuid() == 0 and settings["isolated"]:  # else another uid may not reach the interpreter
        os.setgroups([])
        os.setresgid(settings["group"], settings["group"], settings["group"])
        os.setresuid(settings["user"], settings["user"], settings["user"])
    _call(_LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")
    for name, value in settings["limits"].items():
        number = getattr(resource, name)
        resource.setrlimit(number, (value, value))


def _program(settings: dict[str, Any]) -> NoReturn:
    try:
        _become(settings)
        os.closerange(3, 256)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for number in range(1, signal.NSIG):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        os.chdir(_TEMPORARY)
        file = "/program/main.py" if settings["isolated"] else settings["file"]
        os.execve(settings["python"], [settings["python"], "-I", "-B", file], settings["environment"])
    except BaseException as error:  # noqa: BLE001 - this process ends here
        os.write(2, f"cannot start the program: {error}\n".encode())
    finally:
        os._exit(126)


def _first(settings: dict[str, Any], report: int) -> NoReturn:
    """Prepare the namespaces as their first process, start the program and wait for it."""
    try:
        _LIBC.prctl(_DUMPABLE, 0, 0, 0, 0)
        for entry in settings["entries"]:
            with open(entry, "w") as file:
                file.write("0")
        os.setsid()
        if settings["isolated"]:
            _new_root(settings)
        pid = os.fork()
        if pid == 0:
            _program(settings)
        while True:
            ended, status = os.wait()
            if ended == pid:
                os.write(report, json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())
                break
    except BaseException as error:  # noqa: BLE001 - this process ends here
        os.write(report, json.dumps({"refused": str(error)}).encode())
    finally:
        os._exit(0)


def main() -> None:
    with open(int(sys.argv[1]), "rb") as file:
        settings = json.loads(file.read())  # noqa: TID251 - from sandbox.py, and nothing of windlass is imported
    report = int(sys.argv[2])
    user, group = os.geteuid(), os.getegid()
    try:
        if settings["isolated"]:
            spaces = _NEW_MOUNTS | _NEW_IPC | _NEW_PIDS | _NEW_NET
            _call(_LIBC.unshare(spaces | (0 if user == 0 else _NEW_USER)), "namespaces")
            if user:
                _map_user(user, group)
    except OSError as error:
        os.write(report, json.dumps({"refused": str(error)}).encode())
        return
    alive, alive_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(alive)
        _first(settings, report)
    os.close(alive_writer)
    os.close(report)
    select.select([0, alive], [], [])
    if not settings["isolated"]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)  # the kernel kills the rest of the namespace, and ends the wait when all is gone
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
    sys.exit(0)
