"""Interface of environments, and how they are found by name. Importable without torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

from windlass.core.errors import NotFoundError, UsageError
from windlass.core.names import nearest
from windlass.train.reference import load_reference

__all__ = ["ENTRY_POINTS", "Environment", "Reply", "Turn", "find_environment"]

ENTRY_POINTS = "windlass.environments"
"""Group of entry points: each names a class or function that returns an environment."""

_SHIPPED: Mapping[str, str] = {
    "python": "windlass.post.environments.python_tool:PythonTool",
    "verifiers": "windlass.post.environments.verifiers:VerifiersTask",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A turn of the policy.

    Attributes:
        text: decoded, without special tokens and without the end of an answer.
        is_complete: whether it ended by itself, not by the limit of tokens.
    """

    text: str
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn of an environment.

    Attributes:
        messages: what is added to the conversation, each with `role` and `content`.
        reward: for the reply before it; None: nothing. Of `reset`: not allowed.
        is_done: whether the episode is over; its messages are not read then.
        error: why the episode cannot be scored; empty if it can.
    """

    messages: Sequence[Mapping[str, object]] = ()
    reward: float | None = None
    is_done: bool = False
    error: str = ""


class Environment(Protocol):
    """Answers a policy; one object serves one episode, in a process of its own.

    The process is a copy of one in which the object was created once: what `__init__` loads is there at once, and
    nothing that an episode changes is seen by another one. A resumed run is the same run only if turns depend on the row,
    the seed and the replies alone.

    An environment may have a method `score() -> float | None`: the reward of an episode that ended before the environment
    was done, because turns or tokens were used up.
    """

    def reset(self, row: Mapping[str, Any], seed: int) -> Turn:
        """Begin an episode; returns messages after the row's prompt, usually none.

        Args:
            row: columns of the prompt's row, with the prompt as `messages`.
            seed: differs between the members of a group.
        """

    def step(self, reply: Reply) -> Turn:
        """Answer a reply. An exception counts as an episode that cannot be scored."""

    def close(self) -> None:
        """End the episode; the process is killed soon after."""


def find_environment(name: str, settings: Mapping[str, object] | None = None) -> Callable[[], Environment]:
    """Return what creates an environment: a shipped one, an entry point's, or your own by `module:function`.

    Raises:
        NotFoundError: there is none of this name.
        UsageError: it has no such setting, or lacks one.
    """
    create = _find(name)
    try:
        inspect.signature(create).bind(**(settings or {}))
    except TypeError as error:
        hint = f"it is created by `{name}{inspect.signature(create)}`"
        raise UsageError(
            f"invalid settings of environment `{name}`: {error}", hint=hint, code="invalid-value"
        ) from error
    return lambda: create(**(settings or {}))


def _find(name: str) -> Callable[..., Environment]:
    found = load_reference(_SHIPPED.get(name, name)) if name in _SHIPPED or ":" in name else None
    if callable(found):
        return found
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name in others:
        create: Callable[..., Environment] = others[name].load()
        return create
    known = [*_SHIPPED, *others]
    close = nearest(name, known)
    hint = f"did you mean `{close}`?" if close else f"environments: {', '.join(known)}; or `module:function`"
    raise NotFoundError(f"unknown environment `{name}`", hint=hint, code="unknown-name")
