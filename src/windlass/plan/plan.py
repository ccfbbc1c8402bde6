"""The plan: experiment, pins and place, frozen, with a hash; exactly what will be submitted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from windlass.config import JsonValue
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.names import nearest
from windlass.plan.codec import decode, encode
from windlass.plan.pins import Pins
from windlass.plan.site import Site
from windlass.supervise.job import SecretUse

__all__ = ["PLAN_SCHEMA", "Plan", "TaskPlan"]

PLAN_SCHEMA = "windlass.plan/1"
_HASH_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """One task of a plan; all its replicas execute the same text.

    `argv` and the values of `env` hold late tokens: paths (`${out}`), the run (`${run}`) and what only the job knows
    (`${rank}`); `$${` in them is a literal `${`.

    Attributes:
        is_shell: argv is `/bin/sh -c` around the user's line.
        gpus, cpus, memory_bytes: per replica; 0 where nothing was asked for.
        per_job_s, time_s: walltime of one attempt, and running time of all of a task together; None for no limit.
    """

    name: str
    argv: tuple[str, ...]
    is_shell: bool
    env: Mapping[str, str] = field(default_factory=dict)
    launcher: str = "none"
    nodes: int = 1
    procs_per_node: int = 1
    gpus: int = 0
    gpu_type: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    after: tuple[str, ...] = ()
    secrets: tuple[SecretUse, ...] = ()
    interrupted: int = 50
    failed: int = 0
    ready_timeout_s: float = 600.0
    grace_s: float = 30.0
    per_job_s: float | None = None
    time_s: float | None = None
    checkpoint_every_s: float | None = None
    checkpoint_pattern: str = ""
    is_resuming: bool = True
    stall_floor_s: float = 60.0
    is_stall_watched: bool = True
    compat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Exactly what will be submitted.

    Attributes:
        experiment: the experiment after overrides, as plain data (`windlass.config.from_data` reads it).
        overrides: as they were given, for the record.
        notes: what the place satisfies trivially, or not at all with `--best-effort`.
        is_debug: `--debug` was given.
        is_best_effort: `--best-effort` was given.
    """

    name: str
    why: str = ""
    experiment: Mapping[str, JsonValue] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    pins: Pins = Pins()
    site: Site = Site()
    tasks: tuple[TaskPlan, ...] = ()
    notes: tuple[str, ...] = ()
    is_debug: bool = False
    is_best_effort: bool = False

    @property
    def plan_hash(self) -> str:
        """Hex sha256 of what defines the work: pins, parameters, and every task's command, variables and resources.

        Left out are the reason (`why`), the place, the account and notes; so the same work has the same hash on every
        machine. Limits and retries count.
        """
        identity = {
            "schema": _HASH_SCHEMA,
            "name": self.name,
            "params": encode(self.experiment.get("params", {})),
            "pins": self.pins.identity(),
            "tasks": [encode(task) for task in sorted(self.tasks, key=lambda task: task.name)],
        }
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def task(self, name: str) -> TaskPlan:
        """The task of that name; raises NotFoundError."""
        for task in self.tasks:
            if task.name == name:
                return task
        names = [task.name for task in self.tasks]
        close = nearest(name, names)
        hint = f"did you mean `{close}`?" if close else f"the tasks are: {', '.join(names)}"
        raise NotFoundError(f"no task `{name}` in {self.name}", hint=hint, code="unknown-task")

    def to_data(self) -> dict[str, object]:
        """The JSON form, with its schema and the hash."""
        data = encode(self)
        assert isinstance(data, dict)  # encode makes one of every dataclass
        return {"schema": PLAN_SCHEMA, "plan_hash": self.plan_hash, **data}

    @classmethod
    def from_data(cls, data: object) -> Plan:
        """Read the JSON form; raises PreconditionError when it is of another version, broken or changed."""
        fields = dict(data) if isinstance(data, Mapping) else {}
        schema, stated = fields.pop("schema", None), fields.pop("plan_hash", None)
        if schema != PLAN_SCHEMA:
            message = f"this is no plan of this version: schema `{schema}`, expected `{PLAN_SCHEMA}`"
            raise PreconditionError(message, hint="make the plan again: windlass plan", code="plan-schema")
        try:
            plan = decode(cls, fields)
        except (TypeError, ValueError) as error:
            message = f"the plan is broken: {error}"
            raise PreconditionError(message, hint="make the plan again: windlass plan", code="plan-broken") from error
        if plan.plan_hash != stated:
            message = f"the plan was changed: it states the hash {stated}, its content has {plan.plan_hash}"
            raise PreconditionError(message, hint="make the plan again: windlass plan", code="plan-broken")
        return plan
