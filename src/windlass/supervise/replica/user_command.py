"""Command and environment of one replica in one attempt, with all tokens replaced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Callable

from windlass.core.dataclass import dataclass
from windlass.supervise.gang.messages import Order
from windlass.supervise.job import JobDocument
from windlass.supervise.replica.environment import replace_tokens, user_environment
from windlass.supervise.replica.scratch import attempt_tokens

__all__ = ["UserCommand", "user_command"]


@dataclass(frozen=True)
class UserCommand:
    """Command of one replica: `words` is the user's; `argv` and `env` are executed, and differ for a container."""

    words: list[str]
    argv: list[str]
    env: Mapping[str, str]


def user_command(
    job: JobDocument,
    folder: Path,
    rank: int,
    attempt: int,
    order: Order,
    *,
    ours: Callable[[str], Mapping[str, str]],
    secrets: Mapping[str, str],
) -> UserCommand:
    """Return a replica's command and variables with all tokens replaced.

    Args:
        folder: the job's folder.
        ours: returns the variables that only the job knows, for the ids of the leased GPUs.
        secrets: values or file paths by variable.
    """
    base = None
    if job.container.image:
        from windlass.supervise.container.run import INHERITED_INSIDE, contained, order_inside  # lazy: seldom needed

        order = order_inside(job, order)
        base = {name: os.environ[name] for name in INHERITED_INSIDE if name in os.environ}
    command = job.command
    tokens = attempt_tokens(job.token, rank, attempt, order, [*command.argv, *command.env.values()])
    words = [replace_tokens(word, tokens) for word in command.argv]
    variables = {**ours(order.gpus), "WINDLASS_HOSTS": order.hosts}
    if order.evaluates:
        variables |= _evaluated(job, order)
    env = user_environment(job, tokens=tokens, ours=variables, secrets=secrets, base=base)
    if base is None:
        return UserCommand(words, words, env)
    return UserCommand(words, *contained(job, folder, rank, attempt, words, env))


def _evaluated(job: JobDocument, order: Order) -> Mapping[str, str]:
    """Return the variables with the checkpoint to evaluate; the path of an entry is relative."""
    path = order.evaluates
    if "://" not in path and job.settings.evaluates is not None:
        path = os.path.join(os.path.dirname(job.paths.checkpoints), job.settings.evaluates.of, path)
    return {"WINDLASS_CHECKPOINT": path, "WINDLASS_CHECKPOINT_STEP": str(order.evaluated_step)}
