"""What system tests need beyond Python, whether this machine has it, and how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["COMPONENTS", "OLD_RAY", "Component", "is_present", "is_required"]

OLD_RAY = Path(__file__).resolve().parents[2] / ".venv-ray240"
"""Environment of `make setup` that holds the oldest Ray that clusters are tested with, and nothing of windlass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A thing a test may need; `is_present` looks for it, `remedy` says how to get it."""

    is_present: Callable[[], bool]
    remedy: str


def _program(name: str) -> Component:
    return Component(is_present=lambda: shutil.which(name) is not None, remedy="run `make lab` as root")


def _module(name: str) -> Component:
    return Component(
        is_present=lambda: importlib.util.find_spec(name) is not None, remedy="run the tests with `make test`"
    )


def _has_memory_cgroup() -> bool:
    return os.geteuid() == 0 and os.path.exists("/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(tried, capture_output=True).returncode == 0


def _can_freeze() -> bool:
    """Whether a disk of its own can be made from a file, mounted, frozen and thawed here, tried for real."""
    if os.geteuid() != 0 or not _has_programs("unshare", "mkfs.ext4", "fsfreeze"):
        return False
    tried = """
        file=$(mktemp); trap 'rm "$file"' EXIT; truncate -s 8M "$file"; mkfs.ext4 -q -F "$file"
        mount -o loop "$file" /mnt; fsfreeze -f /mnt; fsfreeze -u /mnt"""
    return subprocess.run(["unshare", "--mount", "sh", "-ec", tried], capture_output=True).returncode == 0


@cache
def _can_have_hosts() -> bool:
    """Whether namespaces, a bridge, a copy-on-write folder and a device can be made here, tried for real."""
    if os.geteuid() != 0 or not _has_programs("unshare", "nsenter", "ip", "tini", "sshd", "ssh", "ssh-keygen"):
        return False
    tried = """
        ip link add probe0 type veth peer name probe1; ip link add probe2 type bridge
        mkdir upper work; mount -t overlay none -o lowerdir=/etc,upperdir=upper,workdir=work /mnt
        mknod gpu c 1 3; : >gpu"""
    namespaces = ["--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # where labs live
        done = subprocess.run(["unshare", *namespaces, "sh", "-ec", tried], cwd=folder, capture_output=True)
    return done.returncode == 0


def _has_programs(*names: str) -> bool:
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return all(shutil.which(name, path=path) is not None for name in names)


def _has_slurm() -> bool:
    return _has_programs("slurmctld", "slurmd", "srun", "munged", "munge") and _can_have_hosts()


def _has_slurm_accounting() -> bool:
    return _has_programs("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db") and _has_slurm()


def _has_docker() -> bool:
    """Whether an engine of our own can run here: its programs, mounts of its own, control groups with a memory limit."""
    programs = ("/usr/bin/docker", "dockerd", "containerd", "runc", "docker-registry", "mmdebstrap", "ip", "unshare")
    groups = Path("/sys/fs/cgroup")
    limits = (groups / "memory" / "memory.limit_in_bytes", groups / "cgroup.subtree_control")
    return _can_mount() and _has_programs(*programs) and any(path.exists() for path in limits)


def _has_podman() -> bool:
    return _has_docker() and _has_programs("podman", "conmon")


COMPONENTS: dict[str, Component] = {
    "docker": Component(
        is_present=_has_docker, remedy="run `make lab` and the tests as root, where cgroups are mounted"
    ),
    "freezing": Component(is_present=_can_freeze, remedy="run the tests as root, where loop devices are allowed"),
    "git": _program("git"),
    "memory-cgroup": Component(
        is_present=_has_memory_cgroup, remedy="run the tests as root, with version 1 of the memory cgroup mounted"
    ),
    "podman": Component(is_present=_has_podman, remedy="run `make lab` and the tests as root, as for docker"),
    "ps": _program("ps"),
    "ray": _module("ray"),
    "ray-2.40": Component(
        is_present=(OLD_RAY / ".made").exists,
        remedy=f"run `make {OLD_RAY.name}/.made` with Python 3.11 or 3.12",
    ),
    "s3": _module("moto"),
    "root": Component(is_present=lambda: os.geteuid() == 0, remedy="run the tests as root"),
    "sklearn": _module("sklearn"),
    "slurm": Component(
        is_present=_has_slurm, remedy="run `make lab` and the tests as root, where namespaces are allowed"
    ),
    "slurm-accounting": Component(is_present=_has_slurm_accounting, remedy="run `make lab` and the tests as root"),
    "ssh": Component(
        is_present=_can_have_hosts, remedy="run `make lab` and the tests as root, where namespaces are allowed"
    ),
    "tmpfs": Component(is_present=_can_mount, remedy="run the tests as root, where mounting is allowed"),
    "torch": _module("torch"),
}


@cache
def is_present(name: str) -> bool:
    """Whether this machine has the component; looked up once."""
    return COMPONENTS[name].is_present()


def is_required() -> bool:
    """Whether a missing component fails a test (`WINDLASS_LAB=required`) instead of skipping it."""
    return os.environ.get("WINDLASS_LAB") == "required"
