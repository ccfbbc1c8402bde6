"""Tasks of environments: which one answers each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windlass.core.errors import Problem, SpecError
from windlass.post.data.prepared import PreparedData
from windlass.post.rollout.streams import stream_key, uniform
from windlass.post.rollout.types import EpisodeTask, SampleId

if TYPE_CHECKING:
    from windlass.post.control.config import EnvironmentConfig

__all__ = ["EnvironmentTasks"]

_MEMBER = -1
"""Member whose random number chooses a group's environment; real ones count from 0."""


class EnvironmentTasks:
    """Environment of each group: the one that its row names, else one by fraction; a pure function of seed and group."""

    def __init__(self, environments: Sequence[EnvironmentConfig], data: PreparedData) -> None:
        self._fractions = {each.name: each.fraction for each in environments}
        self._data = data

    def task(self, group: int, row: int, seed: int) -> EpisodeTask | None:
        """Return the task of a group's environment; None without environments.

        Raises:
            SpecError: the row names an environment that the settings do not have.
        """
        if not self._fractions:
            return None
        columns = self._data.chat(row)
        name = columns.get("environment") or self._drawn(group, seed)
        if name not in self._fractions:
            message = f"a row of the prompts names the environment `{name}`, and `rollout.environments` has no such one"
            known = ", ".join(self._fractions)
            raise SpecError([Problem(message, "unknown-name", hint=f"add it, or name one of: {known}")])
        return EpisodeTask(environment=str(name), row=columns)

    def _drawn(self, group: int, seed: int) -> str:
        names = [name for name, fraction in self._fractions.items() if fraction]
        aim = uniform(stream_key(seed, SampleId(group=group, member=_MEMBER)), 0) * sum(self._fractions.values())
        for name in names[:-1]:
            aim -= self._fractions[name]
            if aim < 0:
                return name
        return names[-1]
