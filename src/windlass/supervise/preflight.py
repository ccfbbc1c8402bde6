"""What a node must show before user code runs on it, where the site's profile asks for that."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from windlass.supervise.incarnation import Incarnation
from windlass.supervise.job import JobDocument

__all__ = ["preflight"]

_MIN_FREE_BYTES = 256 << 20
_MAX_CLOCK_S = 60.0
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def preflight(job: JobDocument, incarnation: Incarnation, address: str, environ: Mapping[str, str] = os.environ) -> str:
    """What is wrong with this node, in words; empty when nothing is. Costs milliseconds.

    Args:
        address: where this replica is to be reached.
    """
    checks = {
        "gpu-count": lambda: _gpus(job, environ),
        "disk": lambda: _disk(environ),
        "port": lambda: _port(address),
        "clock": lambda: _clock(incarnation),
    }
    found = (checks[name]() for name in job.preflight)
    return next((problem for problem in found if problem), "")


def _gpus(job: JobDocument, environ: Mapping[str, str]) -> str:
    """By what the scheduler says; where it says nothing there is no verdict."""
    wanted, stated = job.queue.gpus_per_node, environ.get("SLURM_GPUS_ON_NODE", "")
    named = next((environ[name] for name in _DEVICES if environ.get(name)), "")
    if not stated.isdecimal() and not named:
        return ""
    there = int(stated) if stated.isdecimal() else len([gpu for gpu in named.split(",") if gpu])
    return "" if there >= wanted else f"the node gives {there} GPUs, and {wanted} were asked for"


def _disk(environ: Mapping[str, str]) -> str:
    folder = environ.get("TMPDIR", "/tmp")  # noqa: S108 - only looked at
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return f"the node's own folder {folder} cannot be used: {error.strerror}"
    free = found.f_bavail * found.f_frsize
    is_fit = free >= _MIN_FREE_BYTES and os.access(folder, os.W_OK)
    return "" if is_fit else f"the node's own folder {folder} has {free >> 20} MiB left, or may not be written"


def _port(address: str) -> str:
    try:
        with socket.create_server((address, 0)):
            return ""
    except OSError as error:
        return f"no port can be opened on {address}: {error.strerror}"


def _clock(incarnation: Incarnation) -> str:
    """All replicas of a start begin within moments, and the first has written its time down."""
    skew_s = abs(incarnation.skew_s)
    return "" if skew_s < _MAX_CLOCK_S else f"the node's clock is {skew_s:.0f} s away from that of the first node"
