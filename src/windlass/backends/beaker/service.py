"""Everything that windlass requests from Beaker, through the official client."""

from __future__ import annotations

from windlass.backends.beaker.datasets import Datasets
from windlass.backends.beaker.experiments import Experiments
from windlass.backends.beaker.logs import Logs
from windlass.backends.beaker.workspaces import Workspaces

__all__ = ["BeakerService"]


class BeakerService(Experiments, Logs, Datasets, Workspaces):
    """Beaker service for one account; thread-safe, cheap until the first call.

    Args:
        account: None for the one that the environment defines (`BEAKER_TOKEN`, `BEAKER_CONFIG`, `~/.beaker/config.yml`).
        deadline_s: time limit of a request; an unreachable server is reported sooner.

    Every method raises AccessError (token, rights), NotFoundError, UnreachableError (no response or too slow: try again),
    PreconditionError (refused for good, or the client is not installed) and UsageError (no workspace named).
    """
