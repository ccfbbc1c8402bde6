"""What system tests need beyond Python, whether this machine has it, and how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

__all__ = ["COMPONENTS", "Component", "is_present", "is_required"]


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


COMPONENTS: dict[str, Component] = {
    "git": _program("git"),
    "memory-cgroup": Component(
        is_present=_has_memory_cgroup, remedy="run the tests as root, with version 1 of the memory cgroup mounted"
    ),
    "ps": _program("ps"),
    "root": Component(is_present=lambda: os.geteuid() == 0, remedy="run the tests as root"),
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
