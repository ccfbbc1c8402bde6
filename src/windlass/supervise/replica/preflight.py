"""Checks of a node before user code runs on it, as requested by the site profile."""

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
    """Check this node and return a problem, or "". Takes milliseconds; with NVIDIA GPUs, about a second.

    Args:
        address: address at which other replicas reach this one.
    """
    checks = {
        "gpu-count": lambda: _gpus(job, environ),
        "disk": lambda: _disk(environ),
        "port": lambda: _port(address),
        "clock": lambda: _clock(incarnation),
    }
    found = (checks[name]() for name in job.site.preflight)
    return next((problem for problem in found if problem), "")


def _gpus(job: JobDocument, environ: Mapping[str, str]) -> str:
    """Compare the GPU count with the scheduler's and the NVIDIA driver's; without either, check nothing."""
    wanted, stated = job.queue.gpus_per_node, environ.get("SLURM_GPUS_ON_NODE", "")
    named = next((environ[name] for name in _DEVICES if environ.get(name)), "")
    if stated.isdecimal() or named:
        there = int(stated) if stated.isdecimal() else len([gpu for gpu in named.split(",") if gpu])
        if there < wanted:
            return f"the node has {there} GPUs, the job requested {wanted}"
    return _listed(wanted, environ) if wanted else ""


def _listed(wanted: int, environ: Mapping[str, str]) -> str:
    """Check the driver's list of GPUs: the scheduler still counts a broken GPU, but the driver fails or hangs."""
    import shutil  # lazy: few sites request it
    import subprocess  # lazy: as above

    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return ""
    child = subprocess.Popen(
        [program, "-L"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        printed = child.communicate(timeout=_LISTING_S)[0].decode(errors="replace").splitlines()
    except subprocess.TimeoutExpired:
        child.kill()  # without waiting: a process that hangs in the driver does not end
        return f"nvidia-smi did not list the GPUs within {_LISTING_S:g} s"
    if child.returncode:
        return f"nvidia-smi failed: {printed[-1].strip() if printed else f'exit code {child.returncode}'}"
    parts = sum(line.lstrip().startswith("MIG ") for line in printed)  # lines of partitioned (MIG) GPUs
    there = parts or sum(line.startswith("GPU ") for line in printed)
    return (
        ""
        if there >= wanted
        else f"the driver lists {there} {'GPU' if there == 1 else 'GPUs'}, the job requested {wanted}"
    )


def _disk(environ: Mapping[str, str]) -> str:
    folder = environ.get("TMPDIR", "/tmp")  # noqa: S108 - only looked at
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return f"the node's own folder {folder} cannot be used: {error.strerror}"
    free = found.f_bavail * found.f_frsize
    is_fit = free >= _MIN_FREE_BYTES and os.access(folder, os.W_OK)
    return "" if is_fit else f"the node's own folder {folder} has only {free >> 20} MiB free, or is not writable"


def _port(address: str) -> str:
    try:
        with socket.create_server((address, 0)):
            return ""
    except OSError as error:
        return f"cannot open a port on {address}: {error.strerror}"


def _clock(incarnation: Incarnation) -> str:
    """Compare this node's clock with the first replica's: all replicas of a start begin at about the same time."""
    skew_s = abs(incarnation.skew_s)
    return "" if skew_s < _MAX_CLOCK_S else f"the node's clock differs from the first node's by {skew_s:.0f} s"
