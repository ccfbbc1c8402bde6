"""Virtual hosts on this machine, as root and without a container engine.

A host is a network, UTS, IPC, PID and mount namespace held by tini as its process 1. It has its own address on a
bridge, host name, process numbers and /dev/shm, a copy-on-write home folder and an sshd. All else of the file system
is shared by all hosts and this machine, as a cluster's nodes share theirs. Killing process 1 is a power cut.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.lab.slots import MARK, Slot
from windlass.core import process

__all__ = ["Hosts", "clean_environment", "wait_until"]

REPO = Path(__file__).resolve().parents[2]
HOME = Path(pwd.getpwuid(os.geteuid()).pw_dir)
# Shared by all hosts even below a folder that each host has for itself: its home, and those in `own`.
SHARED = (REPO, Path(sys.prefix))

START_UP = (
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".profile",
    ".zshenv",
    ".zprofile",
    ".zshrc",
    ".cshrc",
    ".ssh/rc",
)
"""Hosts have none of these of this machine's user: what one waits for (a lock, say) would hold up every ssh session."""

BOOT = """
set -e
hostname "$NAME"
keep() { i=0; for path in $KEPT; do i=$((i + 1)); mkdir -p "$DISK/kept/$i" "$path"; $1; done; }
aside() { mount --bind "$path" "$DISK/kept/$i"; }
back() { mount --bind "$DISK/kept/$i" "$path"; }
keep aside
mount -t overlay home -o "lowerdir=$HOME,upperdir=$DISK/upper,workdir=$DISK/work" "$HOME"
for path in $OWN; do mount -t tmpfs -o mode=1777 own "$path"; done
keep back
for name in $START_UP; do rm -f "$HOME/$name"; done
mount --bind "$ETC/hosts" /etc/hosts
mount --bind "$ETC/nsswitch.conf" /etc/nsswitch.conf
unset KEPT OWN START_UP DISK ETC
cd /
exec tini -s -- sleep infinity
"""


class Hosts:
    """Hosts of one lab; `names` in the order of their addresses, which they keep over a power cut.

    `own` are folders that each host has for itself, empty at boot. `exported` are variables of ssh sessions.
    """

    def __init__(
        self,
        slot: Slot,
        names: Sequence[str],
        *,
        own: Sequence[str] = ("/dev/shm",),
        exported: Mapping[str, str] | None = None,
    ) -> None:
        self.slot = slot
        self.names = tuple(names)
        self.own = tuple(own)
        self.exported = dict(exported or {})

    # ------------------------------------------------------------------------------------------------- all of them

    def up(self) -> None:
        """Start all hosts that are not up; returns when each is on the network and takes ssh connections."""
        if not self._bridge_path.exists():
            self._make_bridge()
            self._write_names_and_keys()
        started = {name: self._start(name) for name in self.names if not self.is_up(name)}
        for name, outer in started.items():
            self._connect(name, outer)

    # ----------------------------------------------------------------------------------------------------- one host

    def start(self, name: str) -> None:
        """Boot one host; its disk, name and address are as before."""
        if not self.is_up(name):
            self._connect(name, self._start(name))

    def kill(self, name: str) -> None:
        """Cut the power: every process of the host is gone when this returns; idempotent."""
        init = self._init(name)
        if init is None:
            return
        process.send_signal(init.pid, signal.SIGKILL)
        wait_until(lambda: not process.is_alive(init), f"{name} to die")
        (self.disk(name) / "init").unlink(missing_ok=True)  # two may cut at once

    def cut(self, name: str) -> None:
        """Unplug the network cable; processes go on."""
        _ip(f"link set {self._cable(name)} down")

    def join(self, name: str) -> None:
        """Plug the network cable in again; idempotent."""
        _ip(f"link set {self._cable(name)} up")

    def is_up(self, name: str) -> bool:
        return self._init(name) is not None

    def is_cut(self, name: str) -> bool:
        flags = Path(f"/sys/class/net/{self._cable(name)}/flags")
        return flags.exists() and not int(flags.read_text(), 16) & 1  # IFF_UP, netdevice(7)

    def ip(self, name: str) -> str:
        return f"{self.slot.network}.{11 + self.names.index(name)}"

    def disk(self, name: str) -> Path:
        """What outlives a power cut: the home folder's changes (`upper`), sshd's log."""
        return self.slot.folder / "hosts" / name

    def run(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 300,
        check: bool = True,
    ) -> process.Completed:
        """Run a command inside a host, as root in its root folder, and capture what it prints.

        Raises:
            AssertionError: it ended with another code than 0 and `check` is set.
        """
        done = process.run(self.inside(name, argv), env={**os.environ, **(env or {})}, timeout_s=timeout_s)
        assert done.code == 0 or not check, f"{name}: {' '.join(argv)}: {done.code}\n{done.stdout}{done.stderr}"
        return done

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command line, for this machine, that runs a command line inside a host."""
        init = self._init(name)
        assert init is not None, f"host {name} is down"
        return ["nsenter", "-t", str(init.pid), "-a", "env", f"HOSTNAME={name}", *argv]

    def processes(self, name: str) -> list[int]:
        """The host's living processes, by this machine's numbers."""
        init = self._init(name)
        if init is None:
            return []
        world = _namespace(init.pid)
        return [pid for pid in process.descendants(1) if _namespace(pid) == world]

    # ----------------------------------------------------------------------------------------------------------- ssh

    @property
    def identity(self) -> Path:
        """The private key that every host lets in as root."""
        return self.slot.folder / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.slot.folder / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`: hosts by name and by address, with the key and the host keys, everything else refused."""
        return self.slot.folder / "ssh_config"

    # ------------------------------------------------------------------------------------------------------- private

    @property
    def _bridge_path(self) -> Path:
        return Path("/sys/class/net") / self.slot.bridge

    def _cable(self, name: str) -> str:
        return f"{self.slot.bridge}-{1 + self.names.index(name)}"

    def _init(self, name: str) -> process.ProcessId | None:
        try:
            init = process.ProcessId.parse((self.disk(name) / "init").read_text())
        except FileNotFoundError:
            return None
        return init if process.is_alive(init) else None

    def _make_bridge(self) -> None:
        bridge = self.slot.bridge
        _ip(
            f"link add {bridge} type bridge", f"addr add {self.slot.network}.1/24 dev {bridge}", f"link set {bridge} up"
        )

    def _write_names_and_keys(self) -> None:
        folder = self.slot.folder
        here = socket.gethostname().partition(".")[0]
        lines = ["127.0.0.1 localhost", f"{self.slot.network}.1 {here}"]
        lines += [f"{self.ip(name)} {name}" for name in self.names]
        (folder / "etc").mkdir()
        (folder / "etc" / "hosts").write_text("\n".join(lines) + "\n")
        # No host reaches a name server: a name that stands in no file is unknown at once, not after ten seconds.
        (folder / "etc" / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
        for key in (self.identity, folder / "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        public = (folder / "host_key.pub").read_text()
        self.known_hosts.write_text("".join(f"{name},{self.ip(name)} {public}" for name in self.names))
        self.ssh_config.write_text(
            "".join(f"Host {name}\n  HostName {self.ip(name)}\n  HostKeyAlias {name}\n" for name in self.names)
            + f"Host *\n  User root\n  IdentityFile {self.identity}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 10\n"
        )

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        disk = self.disk(name)
        for part in ("upper", "work"):
            (disk / part).mkdir(parents=True, exist_ok=True)
        kept = [str(path) for path in SHARED if any(path.is_relative_to(own) for own in (str(HOME), *self.own))]
        settings = {
            "NAME": name,
            "DISK": str(disk),
            "KEPT": " ".join(kept),
            "OWN": " ".join(self.own),
            "START_UP": " ".join(START_UP),
            "ETC": str(self.slot.folder / "etc"),
        }
        namespaces = ["--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--propagation", "slave"]
        with (disk / "boot.log").open("wb") as log:
            return subprocess.Popen(
                ["unshare", *namespaces, "bash", "-c", BOOT],
                env={**clean_environment(self.slot), **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _connect(self, name: str, outer: subprocess.Popen[bytes]) -> None:
        log = self.disk(name) / "boot.log"
        wait_until(lambda: outer.poll() is not None or _tini_below(outer.pid), f"{name} to boot")
        init = _tini_below(outer.pid)
        assert init is not None, f"{name} does not boot: {log.read_text()}"
        (self.disk(name) / "init").write_text(str(init))
        cable, bridge = self._cable(name), self.slot.bridge
        wait_until(lambda: not Path(f"/sys/class/net/{cable}").exists(), f"the old cable of {name} to go")
        _ip(
            f"link add {cable} type veth peer name eth0 address {self._mac(name)} netns {init.pid}",
            f"link set {cable} master {bridge}",
            f"link set {cable} up",
        )
        _ip(
            "link set lo up",
            f"addr add {self.ip(name)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {self.slot.network}.1",
            inside=init.pid,
        )
        self._start_sshd(name)

    def _mac(self, name: str) -> str:
        """The host's hardware address, the same after each boot: others would send to an old one for up to 45 s."""
        return "02:57:" + ":".join(f"{int(part):02x}" for part in self.ip(name).split("."))

    def _start_sshd(self, name: str) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        disk, folder = self.disk(name), self.slot.folder
        exported = {"PATH": os.environ["PATH"], **self.exported}
        options = {
            "PidFile": str(disk / "sshd.pid"),
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "ClientAliveInterval": "2",  # a client without a cable is soon forgotten
            "ClientAliveCountMax": "2",
            "AuthorizedKeysFile": f"{folder}/id_ed25519.pub {folder}/authorized_keys",
            "SetEnv": " ".join(f"{key}={value}" for key, value in exported.items()),
            "Subsystem": "sftp internal-sftp",
            "MaxStartups": "100",
        }
        argv = [
            shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ["PATH"]) or "sshd",
            "-f",
            "/dev/null",
        ]
        argv += ["-E", str(disk / "sshd.log"), "-h", str(folder / "host_key")]
        argv += [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        (disk / "sshd.pid").unlink(missing_ok=True)
        subprocess.run(self.inside(name, argv), env=clean_environment(self.slot), check=True)
        wait_until((disk / "sshd.pid").exists, f"sshd of {name}")


def clean_environment(slot: Slot) -> dict[str, str]:
    """The environment of a lab's own processes: nothing of the test that happens to start them, and the mark."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return {"PATH": path, "HOME": str(HOME), "LANG": "C.UTF-8", MARK: str(slot.folder)}


def wait_until(condition: Callable[[], object], what: str, *, timeout_s: float = 120, poll_s: float = 0.01) -> None:
    """Wait for a condition; raises TimeoutError with `what` in it."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(poll_s)


def _ip(*lines: str, inside: int | None = None) -> None:
    door = [] if inside is None else ["nsenter", "-t", str(inside), "-n"]
    done = subprocess.run([*door, "ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True)
    assert done.returncode == 0, f"ip: {lines}: {done.stderr}"


def _tini_below(outer: int) -> process.ProcessId | None:
    """Process 1 of a host once it is tini, which is when all its mounts are made."""
    try:
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text() == "tini\n":
            return process.identify(int(children[0]))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
