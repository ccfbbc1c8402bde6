"""Environment that scores answers by a taskset of the package verifiers (Prime Intellect), 0.4 or newer.

A task is answered in one turn, and its rewards, each times its weight, are the reward of the turn. What a taskset needs
beyond the conversation is refused: tools, rewards that look at a container, tasks for one. Its harnesses are programs that
call a model by HTTP; they are not run.

    rollout:
      environments: [{name: verifiers, settings: {taskset: "my_tasks:Sums"}}]

A row's column `task` is the position of its task in the taskset; `windlass.post.environments.verifiers.rows` writes the rows.
Source: verifiers 0.4.0, `verifiers.v1`: `Taskset`, `Task.score`, `Trace`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.core.errors import UsageError
from windlass.core.extras import require
from windlass.post.environments.protocol import Reply, Turn
from windlass.train.reference import load_reference

__all__ = ["VerifiersTask", "rows"]


class VerifiersTask:
    """An environment over the tasks of a taskset.

    Args:
        taskset: its class, as `module:Class`, or the id of an installed one.
        config: settings of the taskset.

    Raises:
        PreconditionError: verifiers is not installed (`extra-missing`).
        UsageError: the taskset needs tools, a container or more tasks than it can list.
    """

    def __init__(self, taskset: str, config: Mapping[str, Any] | None = None) -> None:
        self._package, found = _open(taskset, config or {})
        self._tasks = list(found)
        for task in self._tasks[:1]:
            _check(taskset, found, task)
        self._task: Any = None

    def reset(self, row: Mapping[str, Any], seed: int) -> Turn:
        """Find the row's task."""
        del seed
        number = row.get("task")
        if not isinstance(number, int) or not 0 <= number < len(self._tasks):
            return Turn(error=f"the row's column `task` is {number!r}; the taskset has {len(self._tasks)} tasks")
        self._task = self._tasks[number]
        return Turn()

    def step(self, reply: Reply) -> Turn:
        """Score a reply."""
        package = self._package
        trace = package.Trace(
            task=package.TraceTask(type=type(self._task).__name__, data=self._task.data),
            agent=package.AgentInfo(config=package.AgentConfig()),
        )
        messages = [
            *([("system", self._task.data.system_prompt)] if self._task.data.system_prompt else []),
            ("user", self._task.data.prompt_text),
            ("assistant", reply.text),
        ]
        kinds = {"system": package.SystemMessage, "user": package.UserMessage, "assistant": package.AssistantMessage}
        for place, (role, content) in enumerate(messages):
            node = package.MessageNode(
                parent=place - 1 if place else None, message=kinds[role](content=content), sampled=role == "assistant"
            )
            trace.nodes.append(node)
        trace.is_completed = reply.is_complete
        asyncio.run(self._task.score(trace))
        return Turn(reward=float(trace.reward), is_done=True)

    def close(self) -> None:
        """Do nothing: nothing outlives a turn."""


def rows(taskset: str, config: Mapping[str, Any] | None = None) -> Iterator[dict[str, object]]:
    """Yield the rows of a taskset's prompts, for a file of JSON Lines."""
    _, found = _open(taskset, config or {})
    for number, task in enumerate(found):
        system = [{"role": "system", "content": task.data.system_prompt}] if task.data.system_prompt else []
        yield {"prompt": [*system, {"role": "user", "content": task.data.prompt_text}], "task": number}


def _open(taskset: str, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the package and a taskset."""
    hint = "`pip install verifiers`"
    package = require("verifiers.v1", "the environment `verifiers` needs the package verifiers", hint=hint)
    loaders = require("verifiers.v1.utils.loaders", "this version of verifiers has no loaders", hint=hint)
    kind: Any = load_reference(taskset) if ":" in taskset else loaders.taskset_class(taskset)
    generic = require("verifiers.v1.utils.generic", "this version of verifiers has no such module", hint=hint)
    settings = generic.concrete_type(kind, package.TasksetConfig, origin=package.Taskset) or package.TasksetConfig
    found = kind(settings(**config))
    if not found.bounded:
        raise UsageError(f"the taskset {taskset} is infinite", hint="bound it first", code="invalid-value")
    return package, found


def _check(name: str, taskset: Any, task: Any) -> None:
    """Raise UsageError for a task that more than a conversation is needed for."""
    needed = [
        what
        for what, is_needed in (
            ("a container", task.NEEDS_CONTAINER),
            ("tools", bool(type(taskset).toolsets(taskset.config) or type(task).toolsets(task.config))),
            (
                "a runtime to score in",
                any(_needs_runtime(hook) for hook in (*task.hooks("reward"), *task.hooks("metric"))),
            ),
        )
        if is_needed
    ]
    if needed:
        message = f"the taskset {name} needs {' and '.join(needed)}, which the environment `verifiers` does not give"
        raise UsageError(
            message, hint="use verifiers' own trainer, or write an environment", code="unsupported-setting"
        )


def _needs_runtime(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
