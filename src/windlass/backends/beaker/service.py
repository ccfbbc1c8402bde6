"""Everything that windlass asks of Beaker, through the official client."""

from __future__ import annotations

from windlass.backends.beaker.datasets import Datasets
from windlass.backends.beaker.experiments import Experiments
from windlass.backends.beaker.logs import Logs
from windlass.backends.beaker.workspaces import Workspaces

__all__ = ["BeakerService"]


class BeakerService(Experiments, Logs, Datasets, Workspaces):
    """Beaker for one account; safe for several threads, cheap until the first question.

    Args:
        account: whose; None: that of the environment (`BEAKER_TOKEN`, `BEAKER_CONFIG`, `~/.beaker/config.yml`).
        deadline_s: longest time of a question; a server that is not there is named sooner.

    Every method raises AccessError (token, rights), NotFoundError, UnreachableError (away or too slow: ask again),
    PreconditionError (refused for good, or the client is not installed) and UsageError (no workspace named).
    """
