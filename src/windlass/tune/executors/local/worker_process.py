"""What a forked worker does: make itself a process of its own, then serve trials."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import socket
import sys
from typing import Any

from windlass.core.process import identify
from windlass.supervise.linux import create_memory_file, die_with_parent, set_process_name
from windlass.tune.executors.channel import SocketChannel
from windlass.tune.executors.local.detached import DetachedChannel
from windlass.tune.executors.local.stacks import STACK_SIGNAL
from windlass.tune.executors.output import Output, log_names
from windlass.tune.executors.protocol import Work
from windlass.tune.executors.work_data import rebuild_work
from windlass.tune.executors.worker import Worker

__all__ = ["serve"]


def serve(descriptor: int, work: Work | dict[str, Any], order: dict[str, Any], facts: dict[str, Any]) -> None:
    """Serve trials until the head says so or is gone.

    Args:
        descriptor: of the socket to the head.
        work: of the sweep; as JSON where this process imports the trainable itself.
        order: what the head said of this worker: slot, environment, whether it serves one trial only.
        facts: what the head said of all workers.
    """
    os.setsid()
    if not facts["is_detached"]:
        parent = os.getppid()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            return
    set_process_name(f"trials-{order['slot']}"[:15])
    os.environ.update(order["env"])
    stacks = create_memory_file("stacks")
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
    _seed()
    _limit_threads(order["env"])
    folder = work.folder if isinstance(work, Work) else work["folder"]
    options = work.options if isinstance(work, Work) else work["options"]
    output = Output(folder, order["slot"], log_names(options.get("log_to_file")))
    channel = _channel(socket.socket(fileno=descriptor), folder, order, facts, stacks)
    channel.send({"type": "hello", "pid": os.getpid(), "stacks": stacks})
    worker = Worker(channel, work if isinstance(work, Work) else rebuild_work(work), observer=output)
    try:
        worker.run(serves_one=order["serves_one"])
    finally:
        output.close()
        if isinstance(channel, DetachedChannel):
            channel.close()


def _channel(
    connection: socket.socket, folder: str, order: dict[str, Any], facts: dict[str, Any], stacks: int
) -> SocketChannel | DetachedChannel:
    if not facts["is_detached"]:
        return SocketChannel(connection)
    known = {"template": str(identify(os.getppid())), "stacks": stacks, "variables": order["env"]}
    known["is_single"] = order["serves_one"]
    return DetachedChannel(
        connection, folder, order["slot"], known, sockets=facts["sockets"], linger_s=facts["linger_s"]
    )


def _seed() -> None:
    """A forked process has its parent's random numbers; `random` seeds itself, numpy does not."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))


def _limit_threads(variables: dict[str, str]) -> None:
    """Libraries that the template has loaded read no variable any more: tell them how many threads they may have."""
    number = variables.get("OMP_NUM_THREADS")
    torch, pools = sys.modules.get("torch"), sys.modules.get("threadpoolctl")
    if number is not None and torch is not None:
        torch.set_num_threads(int(number))
    if number is not None and pools is not None:
        pools.threadpool_limits(int(number))
