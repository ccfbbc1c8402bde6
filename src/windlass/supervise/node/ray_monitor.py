"""Monitor of Ray's autoscaler on the head: started, checked and restarted by the node's agent.

`ray start` would start it as well, but returns 0 whatever becomes of it, and nothing would restart it. It runs with the code
of the head's folder on its path, which Ray's other processes and tasks do not see. Its `turn` file is written each time that
it has listed the machines.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping

from windlass.core.errors import PreconditionError
from windlass.core.process import ProcessId, identify
from windlass.supervise.node.container import NodeContainer, enter
from windlass.supervise.node.processes import last_lines
from windlass.supervise.node.spec import NodeFolder

__all__ = ["LEAST_PYTHON", "TURN", "RayMonitor", "check_scaling_python"]

TURN = "turn"
LEAST_PYTHON = (3, 11)
_FIRST_TURN_S = 180.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_STEADY_S = 60.0
_BOOT_LIMIT = {"RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S": "3600"}
"""Seconds in which a machine may boot and set up its node before Ray's autoscaler replaces it; Ray 2.40 would give it 300."""


def check_scaling_python(python: str, environ: Mapping[str, str], container: NodeContainer | None = None) -> None:
    """Raise PreconditionError if a Python is too old for the provider that Ray's autoscaler calls."""
    program = "import sys; print(*sys.version_info[:2])"
    argv, outer = enter(container, [python, "-c", program], environ)
    try:
        done = subprocess.run(
            argv,
            env=outer,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        found = tuple(int(word) for word in done.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        found = ()
    if found < LEAST_PYTHON:
        version = ".".join(str(part) for part in found) or "none"
        message = f"the head of a cluster with rented machines needs Python 3.11, and `{python}` is {version}"
        raise PreconditionError(message, hint="set `python` to a newer one that has Ray", code="setup-failed")


class RayMonitor:
    """The monitor's process.

    Args:
        python: the user's.
        environ: variables of Ray's processes.
        container: where it runs; None: on the machine.
    """

    def __init__(
        self,
        folder: NodeFolder,
        python: str,
        environ: Mapping[str, str],
        head: str,
        container: NodeContainer | None = None,
    ) -> None:
        self._folder, self._python, self._head, self._container = folder, python, head, container
        code = str(folder.path / "code.zip")
        paths = [code, *filter(None, [environ.get("PYTHONPATH", "")])]
        ours = {"PYTHONPATH": os.pathsep.join(paths), "RAY_enable_autoscaler_v2": "1"}
        self._environ = {**_BOOT_LIMIT, **environ, **ours}
        self._process: ProcessId | None = None
        self._began_s = self._due_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self.num_starts = 0

    def start(self) -> None:
        """Start it."""
        argv = [self._python, "-u", "-m", "windlass.cluster.scaling.monitor"]
        argv += [str(self._folder.path), self._head]
        cwd = str(self._folder.path)
        argv, outer = enter(self._container, argv, self._environ, cwd=cwd)
        with open(str(self._folder.log("monitor-errors")), "ab") as log:
            child = subprocess.Popen(argv, env=outer, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd)
        self._process, self._began_s = identify(child.pid), time.monotonic()
        self.num_starts += 1

    def prepare(self) -> None:
        """Forget the turns of an earlier monitor."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder.path / TURN).unlink()

    def is_ready(self) -> bool:
        """Return whether it has listed the machines.

        Raises:
            PreconditionError: it ended, or took too long.
        """
        if (self._folder.path / TURN).exists():
            return True
        errors = self._folder.log("monitor-errors")
        last = last_lines(errors if not self.is_alive else self._folder.log("monitor"))
        hint = "windlass cluster logs NAME --node head"
        if not self.is_alive:
            raise PreconditionError(f"Ray's autoscaler ended: {last}", hint=hint, code="ray-failed")
        if time.monotonic() > self._began_s + _FIRST_TURN_S:
            message = f"Ray's autoscaler did not list machines within {_FIRST_TURN_S:g} s: {last}"
            raise PreconditionError(message, hint=hint, code="ray-failed")
        return False

    @property
    def is_alive(self) -> bool:
        """Return whether its process runs; one that is dead but not collected does not."""
        return self._process is not None and identify(self._process.pid) == self._process

    def look(self) -> None:
        """Start it again if it died; after a pause that grows while it dies at once."""
        now_s = time.monotonic()
        if self.is_alive:
            return
        if not self._due_s:
            self._pause_s = (
                _FIRST_PAUSE_S
                if now_s - self._began_s > _STEADY_S or self.num_starts == 1
                else min(_LONGEST_PAUSE_S, 2 * self._pause_s)
            )
            self._due_s = now_s + self._pause_s
        if now_s >= self._due_s:
            self._due_s = 0.0
            self.start()
