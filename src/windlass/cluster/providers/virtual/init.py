"""Process 1 of a virtual machine: mounts, host name, user data, deadline, and the end of orphans.

Run by path inside fresh namespaces, with its settings as JSON in its only argument, so it imports nothing of windlass.
Standard library only. `kill -TERM 1` ends the machine, and so does its deadline, whatever else is alive.
Source: pid_namespaces(7), mount_namespaces(7).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

MS_BIND = 4096
POLL_S = 0.02

_SHUTDOWN = ("shutdown", "poweroff", "halt", "reboot", "systemctl")

_libc = ctypes.CDLL(None, use_errno=True)
_HOSTS = "127.0.0.1 localhost\n{gateway} gateway\n{address} {name}\n"
# No name server is reachable: a name that is in no file is unknown at once.
_NAME_SERVICES = "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"


def main(settings: dict[str, Any]) -> NoReturn:
    """Prepare the machine, wait until it is on the network, run its user data, and reap."""
    folder: int = settings["folder"]
    signals = {signal.SIGCHLD, signal.SIGTERM}
    signal.signal(signal.SIGTERM, lambda *_: None)  # process 1 has no default action
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    socket.sethostname(settings["id"])
    with open("user-data", "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=folder)) as file:
        script = file.read()
    _mount_all(settings)
    os.chdir("/")
    _write(folder, "ready", b"")
    deadline_at = settings["deadline_at"]
    is_started = False
    while True:
        if not is_started and _exists(folder, "go"):
            is_started = True
            _start(script, settings["environment"], signals)
        found = signal.sigtimedwait(signals, 0.5 if is_started else POLL_S)
        _reap()
        if found is not None and found.si_signo == signal.SIGTERM:
            _end(folder, "it ended itself")
        if deadline_at is not None and time.time() >= deadline_at:
            _end(folder, "its deadline has passed")


def _mount_all(settings: dict[str, Any]) -> None:
    """Give the machine its own home, on top of this machine's, and its own empty folders."""
    disk, home = Path(settings["disk"]), settings["home"]
    _mount("windlass", str(disk), "tmpfs", "mode=0755")
    for name in ("upper", "work", "kept"):
        (disk / name).mkdir()
    (disk / "hosts").write_text(
        _HOSTS.format(gateway=settings["gateway"], address=settings["address"], name=settings["id"])
    )
    (disk / "nsswitch.conf").write_text(_NAME_SERVICES)
    _bind(disk / "hosts", "/etc/hosts")
    _bind(disk / "nsswitch.conf", "/etc/nsswitch.conf")
    _replace_shutdown(disk)
    for number, path in enumerate(settings["kept"]):
        (disk / "kept" / str(number)).mkdir()
        _bind(path, disk / "kept" / str(number))
    kept = [os.open(disk / "kept" / str(number), os.O_PATH) for number in range(len(settings["kept"]))]
    _mount("home", home, "overlay", f"lowerdir={home},upperdir={disk}/upper,workdir={disk}/work")
    for path in settings["own"]:
        _mount("windlass", path, "tmpfs", "mode=1777")
    for descriptor, path in zip(kept, settings["kept"], strict=True):
        os.makedirs(path, exist_ok=True)
        _bind(f"/proc/self/fd/{descriptor}", path)
        os.close(descriptor)


def _replace_shutdown(disk: Path) -> None:
    """Make the programs that would end this machine's host end the virtual machine, which is what is meant."""
    script = disk / "shutdown"
    script.write_text("#!/bin/sh\nkill -TERM 1\n")
    script.chmod(0o755)
    for folder in ("/sbin", "/usr/sbin", "/usr/bin"):
        for name in _SHUTDOWN:
            path = os.path.realpath(f"{folder}/{name}")  # often a link to systemctl; never replace a busybox
            if os.path.exists(path) and os.path.basename(path) in _SHUTDOWN:
                _bind(script, path)


def _bind(source: str | Path, target: str | Path) -> None:
    _mount(str(source), str(target), "", "", MS_BIND)


def _mount(source: str, target: str, kind: str, options: str, flags: int = 0) -> None:
    words = (source.encode(), target.encode(), kind.encode(), flags, options.encode())
    if _libc.mount(*words[:3], ctypes.c_ulong(words[3]), words[4]) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {kind or source}: {os.strerror(ctypes.get_errno())}", target)


def _start(script: bytes, environment: dict[str, str], signals: set[signal.Signals]) -> None:
    """Start the user data; what it prints goes to the machine's boot log."""
    if not script:
        return
    path = Path("/tmp/user-data")  # noqa: S108 - the machine's own folder
    path.write_bytes(script)
    path.chmod(0o700)
    argv = [str(path)] if script.startswith(b"#!") else ["/bin/sh", str(path)]
    try:
        subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, signals),  # noqa: PLW1509 - no threads here
        )
    except OSError as error:
        sys.stderr.write(f"user data: {error}\n")


def _reap() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _end(folder: int, why: str) -> NoReturn:
    _write(folder, "end", json.dumps({"why": why, "at": time.time()}).encode())
    os._exit(0)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _write(folder: int, name: str, content: bytes) -> None:
    descriptor = os.open(f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
    os.write(descriptor, content)
    os.close(descriptor)
    os.rename(f".{name}", name, src_dir_fd=folder, dst_dir_fd=folder)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))  # noqa: TID251 - from the server; windlass is not imported here
