"""Weights & Biases: runs that are resumed by their id.

Source: the documentation of `wandb.init` (id, resume), of `Run.log` (steps below the newest are ignored) and of
`wandb.Api`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from windlass.core.extras import ensure_installed, require

__all__ = ["WandbRun", "ensure_wandb", "import_wandb"]

_HINT = "pip install wandb"


def ensure_wandb(message: str) -> None:
    """Raise a `PreconditionError` with this message if wandb is not installed; does not import it."""
    ensure_installed("wandb", message, hint=_HINT)


def import_wandb(message: str) -> Any:
    """Import wandb.

    Raises:
        PreconditionError: it is not installed (`extra-missing`), with this message.
    """
    return require("wandb", message, hint=_HINT)


class WandbRun:
    """Run of W&B; an existing id resumes that run.

    Args:
        client: the module wandb.
        arguments: passed to `wandb.init`.
    """

    def __init__(self, client: Any, arguments: Mapping[str, Any]) -> None:
        self._client = client
        self._run: Any = client.init(**{"resume": "allow", **arguments})
        self.id = str(self._run.id)

    @property
    def is_offline(self) -> bool:
        """Return whether the run sends nothing to a server."""
        return bool(getattr(self._run, "offline", False))

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Log the values of a step; W&B ignores a step below the newest one."""
        self._run.log(dict(values), step=step)

    def update_config(self, values: Mapping[str, Any]) -> None:
        """Add to the configuration, or change it."""
        self._run.config.update(dict(values), allow_val_change=True)

    def upload_model(self, name: str, folder: str) -> None:
        """Upload a folder as an artifact of type `model`."""
        artifact = self._client.Artifact(name=name, type="model")
        artifact.add_dir(folder)
        self._run.log_artifact(artifact)

    def has_tag(self, tags: Iterable[str]) -> bool:
        """Return whether the run has one of these tags on the server. Blocks on a request."""
        return not set(tags).isdisjoint(self._client.Api().run(self._run.path).tags)

    def finish(self, exit_code: int = 0) -> None:
        """Send the remaining data and end the run; a code other than 0 marks it as failed."""
        self._run.finish(exit_code=exit_code)
