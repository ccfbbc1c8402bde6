"""Errors in training, all below those of core.errors.

PreconditionError
+-- CheckpointError      a checkpoint is torn, changed, unfinished, or of another model
+-- TrainingError        training cannot continue: a loss that is not finite, corrupt data
"""

from __future__ import annotations

from windlass.core.errors import PreconditionError

__all__ = ["CheckpointError", "TrainingError"]


class CheckpointError(PreconditionError):
    """Error for a checkpoint that is incomplete, damaged, changed, or made from another model."""


class TrainingError(PreconditionError):
    """Error that prevents training from continuing."""
