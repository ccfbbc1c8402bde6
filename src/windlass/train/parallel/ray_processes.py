"""Processes of a training job on the nodes of a Ray cluster: the caller is the first, and Ray starts the others.

    this process     rank 0, on its own node | its place is reserved by an actor, as Ray shares out CPUs and GPUs
    other nodes      an actor starts `windlass train` with the same words and its rank, and waits for its end

Ray places and starts processes, and that is all: they meet through torch's process group as those of torchrun do. If one
dies, the others lose their connection to it and end; a process that dies before that ends the job by `_watch`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.errors import PreconditionError, UnreachableError
from windlass.core.extras import require

__all__ = ["RayProcesses", "connect_to_ray"]

_START_S = 300.0
"""Longest wait for Ray to start an actor on each node."""
_END_S = 30.0
"""Time that processes have to end after another one has failed, or after the first has finished."""


def connect_to_ray(purpose: str, hint: str) -> Any:
    """Return the module of Ray, connected to the cluster of RAY_ADDRESS. Blocks for seconds.

    Args:
        purpose: setting that needs Ray, for messages.
        hint: what to do instead.

    Raises:
        PreconditionError: Ray is not installed (`extra-missing`), or RAY_ADDRESS is not set (`ray-unreachable`).
        UnreachableError: cannot connect to Ray (`ray-unreachable`).
    """
    ray = require("ray", f"{purpose} needs Ray", hint='pip install "windlass[ray]"')
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "")
    hint = f"run the task with `cluster: ray`, which sets RAY_ADDRESS, or {hint}"
    if not address:
        raise PreconditionError(f"{purpose} needs Ray, but RAY_ADDRESS is not set", hint=hint, code="ray-unreachable")
    failed: list[BaseException] = []

    def connect() -> None:
        try:
            ray.init(address=address, log_to_driver=True, logging_level="ERROR")
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=connect, name="ray-connect")
    thread.start()  # Ray would take SIGTERM from the trainer in the main thread
    thread.join()
    for error in failed:
        if not isinstance(error, (ConnectionError, RuntimeError, ray.exceptions.RayError)):
            raise error
        message = f"cannot connect to Ray at `{address}`: {str(error).strip().splitlines()[0]}"
        raise UnreachableError(message, hint=hint, code="ray-unreachable") from error
    return ray


class RayProcesses:
    """The other processes of a training job, of which this one is the first. Starting blocks until Ray has placed them.

    Sets torchrun's variables in this process's environment. Processes go round the living nodes, beginning with this
    process's, so that each node gets one before any gets two; each reserves one CPU, and one GPU if the cluster has some.

    Args:
        count: processes of the job, this one included.
        words: what follows `python -m windlass` in each of the others.

    Raises:
        PreconditionError: as `connect_to_ray`, or the cluster has no room for the processes (`ray-no-room`).
        UnreachableError: as `connect_to_ray`.
    """

    def __init__(self, count: int, words: Sequence[str]) -> None:
        self._ray = ray = connect_to_ray("--ray-learners", "start it with torchrun")
        self._is_over = False
        self._actors = self._placed(count)
        port = _free_port()
        place = {
            "MASTER_ADDR": ray.util.get_node_ip_address(),
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": "0",  # of the GPUs that Ray lets a process see, its own is the first
        }
        command = [sys.executable, "-m", "windlass", *words]
        os.environ.update(place, RANK="0", **ray.get(self._actors[0].devices.remote()))
        self._ends = {
            actor.run.remote(command, os.getcwd(), {**place, "RANK": str(rank)}): rank
            for rank, actor in enumerate(self._actors)
            if rank
        }
        threading.Thread(target=self._watch, name="ray-learners", daemon=True).start()

    def close(self) -> None:
        """Wait for the ends of the other processes, and end those that are late. Idempotent."""
        self._is_over = True
        self._ray.wait(list(self._ends), num_returns=max(1, len(self._ends)), timeout=_END_S if self._ends else 0)
        for actor in self._actors:
            self._ray.kill(actor, no_restart=True)

    def _placed(self, count: int) -> list[Any]:
        """Return an actor for each process, once all are there."""
        ray = self._ray
        own = ray.get_runtime_context().get_node_id()
        nodes = sorted(
            (node for node in ray.nodes() if node["Alive"]), key=lambda node: (node["NodeID"] != own, node["NodeName"])
        )
        places = [nodes[rank % len(nodes)] for rank in range(count)]
        needs = {"CPU": 1, "GPU": 1 if any(node["Resources"].get("GPU", 0) for node in nodes) else 0}
        hint = f"each needs 1 CPU and {needs['GPU']} GPUs: give the task more nodes, or lower --ray-learners"
        for node in nodes:
            num_here = places.count(node)
            for kind, need in needs.items():
                has = node["Resources"].get(kind, 0)
                if has < need * num_here:
                    message = f"Ray's node {node['NodeName']} has {has:g} {kind}s; {num_here} learners need as many"
                    raise PreconditionError(message, hint=hint, code="ray-no-room")
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        host = ray.remote(num_cpus=1, num_gpus=needs["GPU"], max_restarts=0)(_ProcessHost)
        actors = [host.options(scheduling_strategy=strategy(node["NodeID"], soft=False)).remote() for node in places]
        try:
            ray.get([actor.devices.remote() for actor in actors], timeout=_START_S)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
            message = f"Ray did not start {count} learners on {len(nodes)} nodes within {_START_S:g} s"
            raise PreconditionError(message, hint=hint, code="ray-no-room") from error
        return actors

    def _watch(self) -> None:
        """End this process if another one has failed and this one does not notice it by itself."""
        left = list(self._ends)
        while left and not self._is_over:
            done, left = self._ray.wait(left, num_returns=1, timeout=1.0)
            for end in done:
                how = self._how(end)
                if how and not self._is_over:
                    sys.stderr.write(f"process {self._ends[end]} of {1 + len(self._ends)} ended: {how}\n")
                    time.sleep(_END_S)  # a lost connection, and the error that follows, tell more
                    if not self._is_over:
                        os._exit(1)

    def _how(self, end: Any) -> str:
        """Return how a process failed; nothing if it did not."""
        try:
            code = self._ray.get(end)
        except self._ray.exceptions.RayError as error:
            return (str(error).strip().splitlines() or [type(error).__name__])[-1]
        return "" if code in (0, 75) else f"exit code {code}"


class _ProcessHost:
    """Actor that reserves the place of a process, and runs it unless it is the first."""

    def devices(self) -> dict[str, str]:
        """Return the variables that name the devices of this place."""
        return {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}

    def run(self, command: Sequence[str], folder: str, variables: Mapping[str, str]) -> int:
        """Run a process until its end; it is killed with this actor."""
        environ = {**os.environ, **variables}
        process = subprocess.Popen(command, cwd=folder, env=environ, preexec_fn=_die_with_parent)  # noqa: PLW1509
        return process.wait()


def _die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends. Source: prctl(2), PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def _free_port() -> int:
    """Return a port of this machine that was free a moment ago."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
