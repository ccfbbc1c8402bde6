"""Container engine, used through its command line: lists, signals and removes containers by the job's labels.

Everything that windlass creates in an engine has the label `windlass.token=<token>.<rank>` (containers) or `<token>`
(networks), and `windlass.run=<run>`. So leftovers of a killed supervisor can be found from the job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from windlass.core.errors import PreconditionError, WaitTimeoutError
from windlass.core.process import Completed, run

__all__ = ["ENGINE_VARIABLES", "RUN_LABEL", "TOKEN_LABEL", "ContainerEngine", "engine_variables"]

TOKEN_LABEL = "windlass.token"  # noqa: S105 - the name of a label
RUN_LABEL = "windlass.run"

ENGINE_VARIABLES = (
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"),
    *("CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF"),
)
"""Variables that select and configure the engine."""

_PAUSE_S = 0.05
_TIMEOUT_S = 20.0
_CREATE_TIMEOUT_S = 1800.0  # the engine downloads a missing image


def engine_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return those variables that configure the engine, for `ContainerConfig.variables`."""
    return {name: environ[name] for name in ENGINE_VARIABLES if environ.get(name)}


class ContainerEngine:
    """Container engine; every method blocks, for 20 s at most unless stated otherwise.

    Args:
        program: `docker` or `podman`.
        variables: values of `ENGINE_VARIABLES` at the launch.
    """

    def __init__(self, program: str, variables: Mapping[str, str]) -> None:
        self.program = program
        self.env = {**{name: value for name, value in os.environ.items() if name not in ENGINE_VARIABLES}, **variables}

    def ask(self, *words: str, timeout_s: float = _TIMEOUT_S) -> Completed:
        """Run one command of the engine; the exit code is 125 after a timeout or if the program is missing."""
        argv = [self.program, *words]
        try:
            return run(argv, env=self.env, timeout_s=timeout_s)
        except (PreconditionError, WaitTimeoutError) as error:
            return Completed(tuple(argv), 125, "", str(error))

    def create(self, words: Sequence[str]) -> Completed:
        """Create a container; this downloads a missing image, which may take half an hour."""
        return self.ask("create", *words, timeout_s=_CREATE_TIMEOUT_S)

    def containers(self, token: str, *, is_running: bool = False) -> list[str]:
        """Return the ids of the containers of one replica, `<token>.<rank>`."""
        words = [
            "ps",
            "--quiet",
            "--no-trunc",
            *([] if is_running else ["--all"]),
            f"--filter=label={TOKEN_LABEL}={token}",
        ]
        return self.ask(*words).stdout.split()

    def signal(self, token: str, name: str) -> bool:
        """Send a signal to the first process of a replica's containers; return whether any was running."""
        found = self.containers(token, is_running=True)
        return bool(found) and self.ask("kill", f"--signal={name}", *found).code == 0

    def sweep(self, token: str, rank: int, *, num_looks: int = 1) -> int:
        """Remove a replica's containers, including dead ones, and its job's network if it is empty.

        Args:
            num_looks: number of scans; a container whose creator was killed may appear a little later.

        Returns:
            The number of removed containers.
        """
        removed: set[str] = set()
        for look in range(num_looks):
            if look:
                time.sleep(_PAUSE_S)
            found = self.containers(f"{token}.{rank}")
            if found:
                self.ask("rm", "--force", "--volumes", *found, timeout_s=60.0)
                removed.update(found)
        networks = self.ask("network", "ls", "--quiet", f"--filter=label={TOKEN_LABEL}={token}").stdout.split()
        if networks:
            self.ask("network", "rm", *networks)  # refused while another replica uses it, which removes it later
        return len(removed)
