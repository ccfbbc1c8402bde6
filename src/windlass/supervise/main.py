"""Entry point of the zipapp.

guard JOB_FOLDER RANK          run a replica on this machine
guards JOB_FOLDER              run the replicas whose ranks arrive on standard input
wait                           read the arguments from standard input
link JOB_FOLDER LINK           run this node's replica of a scheduler's job
beaker JOB_FOLDER              run this replica of a Beaker job
build RECIPE FOLDER [--check]  build a site's environment
data-build, contain, ...       prepare data, run a container, serve a client (see the modules)
node-start FOLDER, node-stop   start or end the agent of a cluster's node
node-status FOLDER             print the status of a cluster's nodes, on its head
node-seal, node-unseal FOLDER  end the head's autoscaler for good, or let it make machines again
node-run FOLDER RUN, ...       run, follow or end a command on a cluster's head (see supervise.node.commands)
check FOLDER                   check a node for `windlass site check`
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.errors import PreconditionError
from windlass.core.json_text import decode_json
from windlass.supervise.fencing.guard import CRASHED, guard
from windlass.supervise.gang.incarnation import LOCAL, Incarnation, enter_link
from windlass.supervise.job import JobDocument

if TYPE_CHECKING:
    from windlass.supervise.fencing.agent import FencingConfig
    from windlass.supervise.slurm.step_daemon import StepDaemons

__all__ = ["main"]

_NOT_BEGUN = 1
_NODE_COMMANDS = {
    ("node-start", 1),
    ("node-stop", 1),
    ("node-files", 1),
    ("node-status", 1),
    ("node-seal", 1),
    ("node-unseal", 1),
    ("ray-drain", 3),
    ("node-run", 2),
    ("node-command", 3),
    ("node-follow", 5),
    ("node-log", 4),
    ("node-kill", 2),
}
_GC_THRESHOLD = 10_000
"""A start allocates many objects and frees few; collections every 700 would delay user code by a few ms."""


def main(arguments: list[str]) -> int:
    """Run one of the zipapp's commands in this process; return its exit code, 2 for an unknown command."""
    gc.set_threshold(_GC_THRESHOLD)
    if arguments == ["wait"]:
        arguments = _wait_for_arguments()
        if not arguments:
            return 0
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if (command, len(rest)) in (("guard", 2), ("guards", 1), ("link", 2), ("beaker", 1)):
        return _replica(command, rest)
    if (command, len(rest)) in (("beaker-bundle", 3), ("beaker-show", 2)):
        return _bundle(command, [Path(word) for word in rest])
    if (command, len(rest)) in (("failed", 4), ("check", 1)):
        return _slurm(command, rest)
    if command in ("ray", "ray-start", "mpi", "ranks"):
        return _launcher(command, rest)
    if (command, len(rest)) in _NODE_COMMANDS or (command == "node-shell" and rest):
        return _node(command, rest)
    if command == "data-build":
        from windlass.supervise.builds.data import data_build_main  # lazy: few tasks prepare data

        return data_build_main(rest, dict(os.environ))
    if command == "contain" and len(rest) > 3:
        from windlass.supervise.container.run import contain_main  # lazy: most replicas have no container

        return contain_main(rest, os.environ)
    if command == "build":
        from windlass.supervise.builds.build import build_main  # lazy: no replica needs it

        return build_main(rest)
    if command in ("unpack", "deliver", "sync", "fetch", "clear") and not rest:
        from windlass.supervise.remote.server import serve  # lazy: no job needs it

        os.umask(0o077)
        return serve(command, sys.stdin.buffer, sys.stdout.buffer)
    return 2


def _node(command: str, rest: list[str]) -> int:
    """Run a command of a cluster's node; imported lazily, since no job needs it."""
    os.umask(0o077)
    if command in ("node-start", "node-stop"):
        from windlass.supervise.node.agent import start_node
        from windlass.supervise.node.ending import end_node

        return start_node(Path(rest[0])) if command == "node-start" else end_node(Path(rest[0]))
    if command == "node-files":
        from windlass.supervise.node.files import fetch_files

        os.umask(0o022)  # the user's own files
        return fetch_files(Path(rest[0]))
    if command == "node-status":
        from windlass.supervise.node.node_status import node_status_main

        return node_status_main(Path(rest[0]))
    if command in ("node-seal", "node-unseal"):
        from windlass.supervise.node.seal import seal_main

        return seal_main(command, Path(rest[0]))
    if command == "ray-drain":
        from windlass.supervise.node.ray_drain import drain_main

        return drain_main(rest)
    from windlass.supervise.node.commands import commands_main

    return commands_main(command, rest)


def _replica(command: str, rest: list[str]) -> int:
    """Run one or more replicas."""
    if command == "guard":
        return _guard(Path(rest[0]), int(rest[1]), LOCAL)
    if command == "guards":
        import windlass.supervise.replica.loop  # noqa: F401 - lazy: imported once, here, for all replicas
        from windlass.supervise.gang.starter import serve_starts  # lazy: one process of a gang starts the others

        return serve_starts(Path(rest[0]), lambda rank: _guard(Path(rest[0]), rank, LOCAL))
    return _link(Path(rest[0]), int(rest[1])) if command == "link" else _beaker(Path(rest[0]))


def _slurm(command: str, rest: list[str]) -> int:
    """Say why a scheduler's job never started, or check its node; imported lazily, since it is rarely needed."""
    if command == "failed":
        from windlass.supervise.slurm.setup_failure import end_link

        return end_link(Path(rest[0]), int(rest[1]), rest[2], rest[3], os.environ)
    from windlass.supervise.slurm.node_check import check_node

    return check_node(Path(rest[0]), os.environ)


def _bundle(command: str, rest: list[Path]) -> int:
    """Run a replica whose job is a Beaker dataset; imported lazily, since it is rarely needed."""
    from windlass.supervise.beaker.bundle import bundle_main, show_main

    if command == "beaker-show":
        return show_main(rest[0], rest[1], lambda: _beaker(rest[0]))
    try:
        return bundle_main(rest[0], rest[1], rest[2], os.environ)
    except PreconditionError as error:
        sys.stderr.write(f"windlass: {error.message}\n  hint: {error.hint}\n")
        return _NOT_BEGUN


def _launcher(command: str, rest: list[str]) -> int:
    """Run a launcher around the user's command in a replica; imported lazily, since most tasks have none."""
    environ = dict(os.environ)
    if command == "ray":
        from windlass.supervise.launchers.ray_cluster import ray_main

        return ray_main(rest, environ)
    if command == "ray-start":
        from windlass.supervise.launchers.ray_start import ray_start_main

        return ray_start_main(rest)
    if command == "mpi":
        from windlass.supervise.launchers.host_file import mpi_main

        return mpi_main(rest, environ)
    from windlass.supervise.launchers.ranks import ranks_main

    return ranks_main(rest, environ)


def _guard(folder: Path, rank: int, incarnation: Incarnation, daemons: StepDaemons | None = None) -> int:
    """Run the guard of one replica; blocks until the replica is no longer needed."""

    def supervise(context: object) -> int:
        from windlass.supervise.replica.loop import supervise as run  # lazy: the guard stays small

        return run(folder, rank, context, incarnation, daemons)  # type: ignore[arg-type]

    return guard(incarnation.folder(folder), rank, supervise, _fencing_config(folder, rank, incarnation.name))


def _fencing_config(folder: Path, rank: int, incarnation: str) -> FencingConfig | None:
    """Return the settings of the fencing agent; None without fencing, or if job.json is unreadable."""
    with contextlib.suppress(OSError, PreconditionError):
        job = JobDocument.read(folder / "job.json")
        if job.site.fencing.renew_s:
            from windlass.supervise.fencing.agent import FencingConfig  # lazy: as the guard does

            return FencingConfig(folder, rank, job.token, incarnation, job.site.fencing)
    return None


def _link(folder: Path, link: int) -> int:
    """Run this node's replica of a Slurm job; a duplicate job of the link exits at once."""
    from windlass.supervise.slurm.step_daemon import StepDaemons  # lazy: Slurm's jobs alone

    daemons = StepDaemons(os.environ)
    incarnation = enter_link(folder, link, os.environ)
    if incarnation is None:
        return 0
    if _is_staged(folder):
        from windlass.supervise.builds.staging import stage_for_link  # lazy: few sites need it

        stage_for_link(folder)
    rank = int(os.environ["SLURM_PROCID"])
    code = _guard(folder, rank, incarnation, daemons)
    if code != CRASHED or os.environ.get("SLURM_NTASKS") == "1":  # the leader detects a crash, and ends the job itself
        daemons.end_abandoned_job(folder, rank, incarnation.name)
    return code


def _beaker(folder: Path) -> int:
    """Run this replica of a Beaker job; a replica of an unrelated experiment exits at once."""
    from windlass.supervise.beaker.replica import (
        hand_over_secrets,
        read_start,
        remove_delivery_folder,
        restart_clean,
    )  # lazy: Beaker's jobs alone

    try:
        if hand_over_secrets(folder, os.environ):
            restart_clean(folder, os.environ)
        start = read_start(folder, os.environ)
    except PreconditionError as error:
        sys.stderr.write(f"windlass: {error.message}\n  hint: {error.hint}\n")
        return _NOT_BEGUN
    if start is None:
        return 0
    from windlass.supervise.logs.tee import LogTee, run_watched  # lazy: as above

    rank, incarnation = start.rank, start.incarnation
    try:
        return run_watched(LogTee(start.logs, start.task, rank), lambda: _guard(folder, rank, incarnation))
    finally:
        remove_delivery_folder(folder)


def _is_staged(folder: Path) -> bool:
    with contextlib.suppress(OSError, PreconditionError):
        return bool(JobDocument.read(folder / "job.json").paths.stage)
    return False


def _wait_for_arguments() -> list[str]:
    """Import what a replica needs while the client still plans, then read the arguments; [] if the client exited."""
    import windlass.supervise.replica.loop  # noqa: F401 - lazy: a guard that need not wait stays small

    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            return []
        line += piece
    arguments: list[str] = decode_json(line)
    output = os.open(os.path.join(arguments[1], "guard.out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    os.close(nothing)
    os.close(output)
    return arguments
