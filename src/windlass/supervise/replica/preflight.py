"""What a node must show before user code runs on it, where the site's profile asks for that."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.job import JobDocument

__all__ = ["preflight"]

_MIN_FREE_BYTES = 256 << 20
_MAX_CLOCK_S = 60.0
_LISTING_S = 30.0
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def preflight(job: JobDocument, incarnation: Incarnation, address: str, environ: Mapping[str, str] = os.environ) -> str:
    """What is wrong with this node, in words; empty when nothing is. Costs milliseconds, with NVIDIA's GPUs a second or so.

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
    """By what the scheduler says and what NVIDIA's driver lists; where neither says anything there is no verdict."""
    wanted, stated = job.queue.gpus_per_node, environ.get("SLURM_GPUS_ON_NODE", "")
    named = next((environ[name] for name in _DEVICES if environ.get(name)), "")
    if stated.isdecimal() or named:
        there = int(stated) if stated.isdecimal() else len([gpu for gpu in named.split(",") if gpu])
        if there < wanted:
            return f"the node gives {there} GPUs, and {wanted} were asked for"
    return _listed(wanted, environ) if wanted else ""


def _listed(wanted: int, environ: Mapping[str, str]) -> str:
    """A GPU that broke stays in the scheduler's books; the driver does not list it, fails, or hangs."""
    import shutil  # lazy: few sites ask for it
    import subprocess  # lazy: as above

    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return ""
    child = subprocess.Popen(
        [program, "-L"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said = child.communicate(timeout=_LISTING_S)[0].decode(errors="replace").splitlines()
    except subprocess.TimeoutExpired:
        child.kill()  # and no wait: one that hangs in the driver does not go
        return f"nvidia-smi did not list the GPUs within {_LISTING_S:g} s"
    if child.returncode:
        return f"nvidia-smi fails: {said[-1].strip() if said else f'exit code {child.returncode}'}"
    parts = sum(line.lstrip().startswith("MIG ") for line in said)  # of GPUs that are divided
    there = parts or sum(line.startswith("GPU ") for line in said)
    return (
        ""
        if there >= wanted
        else f"the driver lists {there} {'GPU' if there == 1 else 'GPUs'}, and {wanted} were asked for"
    )


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
