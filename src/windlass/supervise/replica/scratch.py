"""Scratch folder: a short, private path on a replica's own disk for one attempt, and the tokens that name it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from windlass.core.tree import remove_tree
from windlass.record.redact import Redactor
from windlass.supervise.gang.address import own_host
from windlass.supervise.gang.messages import Order

__all__ = ["attempt_tokens", "clear_scratch", "host_addresses", "scratch_folder"]

_MAX_ROOT_BYTES = 24
"""Limit for socket paths: at most 107 bytes (unix(7)), of which Ray uses up to 66 below its folder."""


def scratch_folder(token: str, rank: int, attempt: int, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for an attempt's sockets and temporary logs, whose name cannot be guessed; not created here.

    It is below TMPDIR if that path is short enough for the sockets in it.
    """
    import hashlib  # lazy: OpenSSL takes 4 ms, and most attempts need no such folder

    named = environ.get("TMPDIR", "").rstrip("/")
    is_fit = named.startswith("/") and len(os.fsencode(named)) <= _MAX_ROOT_BYTES and os.access(named, os.W_OK)
    digest = hashlib.sha256(f"windlass scratch {token}.{rank}.{attempt}".encode()).hexdigest()
    return Path(named if is_fit else "/tmp", f"wl-{digest[:10]}")  # noqa: S108 - see above


def attempt_tokens(token: str, rank: int, attempt: int, order: Order, words: Iterable[str]) -> dict[str, str]:
    """Return the values of `${leader.address}` and the other tokens for one replica's command and variables.

    Args:
        words: the command and the values; tokens for the folder are omitted if none of them uses it.
    """
    names = [name for name, _ in host_addresses(order.hosts)]
    tokens = {
        "supervisor.host": names[rank] if rank < len(names) else own_host(),
        "supervisor.leader_host": names[0] if names else order.address,
        "leader.address": order.address,
        "leader.port": str(order.port),
        "rank": str(rank),
        "attempt": str(attempt),
        "supervisor.python": sys.executable,
        "supervisor.archive": os.path.abspath(sys.argv[0]),
    }
    if any("${hostfile}" in word or "${supervisor.scratch}" in word for word in words):
        folder = scratch_folder(token, rank, attempt)
        tokens |= {"hostfile": str(folder / "hosts"), "supervisor.scratch": str(folder)}
    return tokens


def host_addresses(hosts: str) -> list[tuple[str, str]]:
    """Return a (name, address) pair for each replica, in order of rank, from an order's `hosts`; empty if unknown."""
    pairs = [item.partition("=") for item in hosts.split(",") if item]
    return [(name, address) for name, _, address in pairs]


def clear_scratch(token: str, rank: int, attempt: int, logs: Path, redactor: Redactor) -> str:
    """Save an attempt's Ray logs in `<logs>/ray-<rank>` and remove its folder; return why that failed, or "".

    Idempotent, and cheap if there is no folder. The attempt's processes must be gone.
    """
    folder = scratch_folder(token, rank, attempt)
    if not folder.is_dir():
        return ""

    from windlass.supervise.logs.ray_logs import collect_ray_logs  # lazy: as above

    problem = ""
    try:
        collect_ray_logs(folder, logs / f"ray-{rank}", redactor)
    except OSError as error:
        problem = f"cannot copy all of Ray's logs of replica {rank}: {error}"
    remove_tree(str(folder))
    return problem
