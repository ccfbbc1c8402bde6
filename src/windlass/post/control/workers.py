"""A learner's view of a worker: what it was given, what it generated before, and with which weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from windlass.post.control.messages import Give
from windlass.post.rollout.types import Sample, SampleId
from windlass.post.workers.remote import RemoteEngine

__all__ = ["JoiningWorker", "RolloutWorker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningWorker:
    """A worker that connected by itself.

    Attributes:
        may_keep: whether it worked for this learner, or for the one before it, so that it can have samples to keep.
    """

    name: str
    engine: RemoteEngine
    may_keep: bool


@dataclass(slots=True)
class RolloutWorker:
    """A worker, and what it generated for an earlier learner.

    Attributes:
        is_draining: whether it has to load weights once it has no open samples.
        held: work for it that waits for that.
        version: what the controller knows of its weights; -1: nothing.
        keeps: whether its samples may be kept.
        is_stale: whether its weights are not this learner's, and it has not been told to load others.
        unproven: digests of the versions behind its samples that this learner has not made again.
        withheld: samples that wait for these versions.
    """

    engine: RemoteEngine
    has_joined: bool = False
    is_draining: bool = False
    held: list[Give] = field(default_factory=list)
    version: int = -1
    keeps: bool = True
    is_stale: bool = False
    unproven: dict[int, str] = field(default_factory=dict)
    withheld: list[Sample] = field(default_factory=list)

    def join(
        self, published: Mapping[int, str], *, last: int, wants: Callable[[SampleId], bool]
    ) -> tuple[SampleId, ...]:
        """Begin to work for this learner; returns what is kept of what the worker holds.

        Args:
            published: digests of the versions that this learner has made.
            last: newest version that it has made, or will make again from stored batches.
            wants: whether a sample is needed still.
        """
        loaded, own = self.engine.loaded, self.engine.version()
        may_keep = self.keeps and max(loaded, default=0) <= last
        kept = tuple(each for each in self.engine.holds if may_keep and wants(each))
        first = min(published)
        self.unproven = {version: loaded[version] for version in loaded if kept and version >= first}
        is_known = not self.unproven and loaded.get(own) == published.get(own, "")
        self.is_stale = not is_known and not self.unproven
        self.version = own if is_known else -1
        self.has_joined = True
        return kept

    def prove(self, published: Mapping[int, str], newest: int) -> bool:
        """Compare the versions behind its samples with those made since; returns whether none is known to differ."""
        for version in sorted(self.unproven):
            if version > newest:
                return True
            if published.get(version) != self.unproven.pop(version):
                return False
        self.version = self.engine.version()
        return True

    def start_over(self) -> int:
        """Drop its samples; it joins again without any. Returns how many they were."""
        count = len(self.withheld) + len(self.engine.open_work())
        self.unproven, self.withheld, self.has_joined, self.keeps = {}, [], False, False
        self.held, self.is_draining = [], False
        self.engine.start_over()
        return count

    def news(self) -> int | None:
        """Return the version of its weights if it has loaded one that the controller does not know."""
        version = self.engine.version()
        if self.is_stale or version == self.version or (self.version < 0 and self.engine.is_loading):
            return None
        self.version = version
        return version
