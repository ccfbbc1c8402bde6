"""Errors of training, below those of core.errors.

PreconditionError
+-- CheckpointError      a checkpoint is torn, changed, unfinished, or of another model
+-- TrainingError        training cannot continue: a loss that is not finite, corrupt data
"""

from __future__ import annotations

from windlass.core.errors import PreconditionError

__all__ = ["CheckpointError", "TrainingError"]


class CheckpointError(PreconditionError):
    """A checkpoint is torn, changed, unfinished, or of another model."""


class TrainingError(PreconditionError):
    """Training cannot continue."""
