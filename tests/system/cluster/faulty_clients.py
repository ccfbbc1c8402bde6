"""Clients of a cluster that are processes of their own, to be killed anywhere.

Each is a fork of a process that has imported all, since importing takes longer than what a client does here:

    python -m tests.system.cluster.faulty_clients       reads a job as a line of JSON; writes `PID`, later `PID CODE`
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from windlass.cluster.config import HEAD, ClusterConfig
from windlass.cluster.controller import ClusterController
from windlass.cluster.decide import TargetGroup
from windlass.cluster.providers.aws.provider import AwsProvider
from windlass.cluster.state import fold
from windlass.config.loading import load_config
from windlass.core import process
from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError
from windlass.record.journal import JournalWriter, read_journal

__all__ = ["Clients", "groups_of"]

_LIMIT_S = 300.0
_FAILED = 4


class Clients:
    """Starts clients, one at a time, and kills them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        argv = [sys.executable, "-m", "tests.system.cluster.faulty_clients"]
        self._parent = subprocess.Popen(
            argv, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = threading.Lock()
        self._pid = 0

    def run(self, job: Mapping[str, object]) -> int:
        """Run a client to its end; return its exit code, -9 if it was killed."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        with self._lock:  # whoever kills it waits until its number is known
            self._parent.stdin.write(json.dumps(job) + "\n")
            self._parent.stdin.flush()
            self._pid = int(self._parent.stdout.readline())
        pid, code = self._parent.stdout.readline().split()
        with self._lock:
            assert int(pid) == self._pid
            self._pid = 0
        return int(code)

    def kill(self) -> None:
        """Kill the client that runs; it is dead when this returns."""
        with self._lock:
            if not self._pid:
                return
            found = process.identify(self._pid)
            if found is None:
                return  # it ended at this moment
            process.send_signal(self._pid, signal.SIGKILL)
        end_s = time.monotonic() + _LIMIT_S
        while process.is_alive(found):
            assert time.monotonic() < end_s, "the client does not die"
            time.sleep(0.001)

    def close(self) -> None:
        """End the parent of all clients."""
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(timeout=_LIMIT_S)
        assert self._parent.stdout is not None
        self._parent.stdout.close()


def groups_of(config: ClusterConfig, provider: AwsProvider) -> dict[str, TargetGroup]:
    """Return all groups; a client of `windlass cluster` has only the head's, and Ray the others'."""
    found = {HEAD: TargetGroup(least=1, most=1, choices=tuple(provider.choices(config, HEAD)))}
    for name, group in config.groups.items():
        choices = tuple(provider.choices(config, name))
        found[name] = TargetGroup(least=group.least, most=group.most, choices=choices)
    return found


def _act(file: str, folder: Path, cluster: str, wish: str, window_s: float) -> None:
    """Bring a cluster up or down, as often as kinds of machines are used up."""
    config = load_config(ClusterConfig, file, source="cluster.yaml").value
    provider = AwsProvider(config, cluster=cluster, folder=folder, window_s=window_s)
    clock = SystemClock()
    with closing(JournalWriter(folder / "journal", "client", clock)) as journal:
        state = fold(read_journal(folder / "journal"))
        groups = groups_of(config, provider)
        controller = ClusterController(cluster, provider, journal, state, groups=groups, clock=clock)
        if state.wanted != wish or not state.round:
            controller.want(wish)
        end_s = time.monotonic() + _LIMIT_S
        while not _is_done(controller, wish):
            if time.monotonic() > end_s:
                raise TimeoutError(f"not {wish} within {_LIMIT_S:g} s")
            try:
                has_acted = bool(controller.round())
            except PreconditionError as error:
                if error.code != "no-capacity":
                    raise
                controller.want(wish)  # as another `up` of the user
                has_acted = False
            if not has_acted:
                time.sleep(0.05)


def _is_done(controller: ClusterController, wish: str) -> bool:
    if wish == "down":
        return controller.state.is_closed
    if controller.state.open_intents:
        return False
    running = [each for each in controller.state.living() if each.state == "running"]
    return all(sum(each.group == name for each in running) == group.least for name, group in controller.groups.items())


def main() -> None:
    """Fork a client for each line of standard input."""
    import boto3

    boto3.session.Session().client("ec2")  # its model is read before the first fork
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            code = _FAILED
            try:
                _act(job["file"], Path(job["folder"]), job["cluster"], job["wish"], job["window_s"])
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                os._exit(code)  # the parent's loop is not the child's
        _say(f"{pid}")
        _, status = os.waitpid(pid, 0)
        _say(f"{pid} {os.waitstatus_to_exitcode(status)}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
