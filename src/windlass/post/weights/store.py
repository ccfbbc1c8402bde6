"""Protocol of a store of weight versions: the learner publishes, and engines fetch when they want to.

A version is whole or absent. It carries a probe: tokens with the learner's own log-probabilities, which an engine compares
with its own before it generates anything with the version.

These modules belong to `post` and not to `train`, because only rollout engines load versions; everything else reads checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from windlass.core.errors import UsageError
from windlass.post.rollout.engine import EngineError
from windlass.post.rollout.types import ScoreRequest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AdapterBase", "MemoryWeightStore", "MissingVersionError", "Probe", "WeightRef", "WeightStore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRef:
    """A published version.

    Attributes:
        version: number of finished optimiser steps.
        digest: of everything that describes the version, checksums of the weights included; two versions with one
            number, such as those before and after a learner went back, differ in it.
    """

    version: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterBase:
    """Frozen model that engines merge the weights of an adapter into.

    Attributes:
        base: the frozen model's weights.
        scales: factor of the update of each adapted layer, by its name.
    """

    base: WeightRef
    scales: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Tokens with the learner's log-probabilities, and how far an engine's may differ.

    Attributes:
        requests: rows to score.
        logp: the learner's log-probabilities of each row's tokens from its start on.
        tolerance: largest absolute difference of a token.
    """

    requests: tuple[ScoreRequest, ...]
    logp: tuple[tuple[float, ...], ...]
    tolerance: float


class WeightStore(Protocol):
    """Keeps published versions."""

    def publish(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> WeightRef:
        """Store a copy of weights; blocks. Versions of this number or above are of an abandoned past, and removed."""

    def latest(self) -> WeightRef | None:
        """Return the newest version."""

    def fetch(self, ref: WeightRef, into: Mapping[str, Tensor], *, have: WeightRef | None = None) -> Probe | None:
        """Overwrite tensors with a version, and return its probe; blocks.

        Args:
            into: tensors by name; those of a type that differs from the stored one are converted.
            have: version that the tensors hold; only what differs from it is read, if the store can.

        Raises:
            MissingVersionError: the version does not exist any more.
            EngineError: it is damaged, or its names or shapes are others. If it is damaged, some tensors may have been
                overwritten.
        """

    def retire(self, keep: Collection[int]) -> None:
        """Remove versions but for these, the newest one, and those that these are stored relative to or being read."""


class MemoryWeightStore:
    """Versions in the memory of this process; each takes as much as the weights."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[int, tuple[WeightRef, Mapping[str, Tensor], Probe | None]] = {}
        self._count = 0

    def publish(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> WeightRef:
        """Store a copy of weights."""
        copies = {name: tensor.detach().clone() for name, tensor in weights.items()}
        with self._lock:
            self._count += 1
            ref = WeightRef(version=version, digest=f"{self._count:032x}")
            self._versions = {number: kept for number, kept in self._versions.items() if number < version}
            self._versions[version] = (ref, copies, probe)
        return ref

    def latest(self) -> WeightRef | None:
        """Return the newest version."""
        with self._lock:
            return self._versions[max(self._versions)][0] if self._versions else None

    def fetch(self, ref: WeightRef, into: Mapping[str, Tensor], *, have: WeightRef | None = None) -> Probe | None:
        """Overwrite tensors with a version; `have` makes no difference."""
        with self._lock:
            found, weights, probe = self._versions.get(ref.version, (None, {}, None))
        if found != ref:
            raise missing(ref)
        check_names({name: tuple(tensor.shape) for name, tensor in weights.items()}, into, ref)
        for name, tensor in into.items():
            tensor.copy_(weights[name])
        return probe

    def retire(self, keep: Collection[int]) -> None:
        """Remove versions but for these and the newest one; a fetch in another thread keeps its version's memory."""
        with self._lock:
            kept = {*keep, max(self._versions, default=-1)}
            self._versions = {number: value for number, value in self._versions.items() if number in kept}


class MissingVersionError(EngineError):
    """The store has no such version any more; nothing was overwritten."""


def missing(ref: WeightRef) -> MissingVersionError:
    """Return the error for a version that the store has not."""
    return MissingVersionError(
        f"weights of version {ref.version} ({ref.digest[:8]}) do not exist any more", hint="load the newest version"
    )


def check_names(stored: Mapping[str, tuple[int, ...]], into: Mapping[str, Tensor], ref: WeightRef) -> None:
    """Raise EngineError unless names and shapes are equal."""
    found = {name: tuple(tensor.shape) for name, tensor in into.items()}
    wrong = sorted(name for name in {*stored, *found} if stored.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise EngineError(
            f"weights of version {ref.version} have `{name}` of shape {_shape(stored.get(name))}, "
            f"and the engine's model has {_shape(found.get(name))}",
            hint="start the engine with the settings of the learner's model",
        )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))


def check_version(version: int) -> None:
    """Raise UsageError for a version below 0."""
    if version < 0:
        raise UsageError(f"version {version} cannot be published", hint="use 0 or more", code="invalid-value")
