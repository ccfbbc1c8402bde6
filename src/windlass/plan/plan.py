"""Plan: an experiment with its pins and site, and a hash, exactly as submitted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field

from windlass.config.annotations import JsonValue
from windlass.core.codec import decode, encode
from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.names import nearest
from windlass.plan.pins import Pins, built_name
from windlass.plan.site import Site
from windlass.supervise.job import BeakerRequest, ChainConfig, QueueRequest, TaskSettings, TaskShape

__all__ = ["PLAN_SCHEMA", "Plan", "TaskPlan"]

PLAN_SCHEMA = "windlass.plan/3"
_HASH_SCHEMA = 1
_NOT_THE_WORK = (
    *("site_env", "site_unset", "driver_env", "driver_unset", "worker_env", "worker_unset"),
    *("queue", "chain", "bundles", "node_cpus", "shared_memory_bytes", "beaker", "shape", "settings"),
)
"""Fields of a task that depend on its site, and those whose own fields are hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """Task in a plan; all its replicas run the same text.

    `argv` and the values of `env` contain late tokens: paths (`${out}`), the run (`${run}`) and values known only in the
    job (`${rank}`). `$${` in them is a literal `${`.

    Attributes:
        is_shell: argv is `/bin/sh -c` around the user's line.
        site_env, driver_env, worker_env: the site's variables for all processes, for those that run the user's
            command and for those that serve it. `env` takes precedence. Besides late tokens they may contain
            `${env.path}`, `${user}`, `${fs.shared}` and `${fs.node_local}`.
        site_unset, driver_unset, worker_unset: variables that the site unsets, for the same processes.
        queue: scheduler request of one link; `name` is empty, and `state` may contain `${user}`.
        chain: settings of the chain of links; `submit` and `mark` are empty.
        bundles: lines that describe the task's bundles.
        beaker: request to Beaker; empty at other sites.
    """

    name: str
    argv: tuple[str, ...]
    is_shell: bool
    env: Mapping[str, str] = field(default_factory=dict)
    launcher: str = "none"
    procs_per_node: int = 1
    shape: TaskShape = TaskShape()
    settings: TaskSettings = TaskSettings()
    compat: tuple[str, ...] = ()
    site_env: Mapping[str, str] = field(default_factory=dict)
    site_unset: tuple[str, ...] = ()
    driver_env: Mapping[str, str] = field(default_factory=dict)
    driver_unset: tuple[str, ...] = ()
    worker_env: Mapping[str, str] = field(default_factory=dict)
    worker_unset: tuple[str, ...] = ()
    queue: QueueRequest = QueueRequest()
    chain: ChainConfig = ChainConfig()
    bundles: tuple[str, ...] = ()
    beaker: BeakerRequest = BeakerRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Experiment, pins, site and tasks, exactly as submitted.

    Attributes:
        experiment: the experiment after overrides, as plain data (`windlass.config.loading.from_data` reads it).
        overrides: overrides as given, for the record.
        notes: settings that the place satisfies trivially, or ignores with `--best-effort`.
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
        """Return the hex sha256 of the pins, the parameters, and each task's command, variables and resources.

        The reason (`why`), place, account and notes are excluded, so that the same work has the same hash on every
        machine. Limits and retries are included.
        """
        identity = {
            "schema": _HASH_SCHEMA,
            "name": self.name,
            "params": encode(self.experiment.get("params", {})),
            "pins": self.pins.identity(),
            "tasks": [
                _work(task) for task in sorted(self.tasks, key=lambda task: task.name) if not built_name(task.name)
            ],
        }
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def image(self) -> str:
        """Return the tasks' container image, as the user wrote it; may be empty."""
        return self.pins.image.name

    @property
    def secret_names(self) -> Mapping[str, str]:
        """Return the secrets' names in the vault, by the variable that gets the value."""
        env = self.experiment.get("env")
        written = env.get("secrets", ()) if isinstance(env, Mapping) else ()
        uses = written if isinstance(written, list | tuple) else [written]
        named = {str(use["name"]): str(use["from"]) for use in uses if isinstance(use, Mapping) and use.get("from")}
        return {use.name: named.get(use.name, use.name) for task in self.tasks for use in task.settings.secrets}

    def task(self, name: str) -> TaskPlan:
        """Return the task with this name. Raises NotFoundError."""
        for task in self.tasks:
            if task.name == name:
                return task
        names = [task.name for task in self.tasks]
        close = nearest(name, names)
        hint = f"did you mean `{close}`?" if close else f"the tasks are: {', '.join(names)}"
        raise NotFoundError(f"no task `{name}` in {self.name}", hint=hint, code="unknown-task")

    def to_data(self) -> dict[str, object]:
        """Return the JSON form, with its schema and the hash."""
        data = encode(self)
        assert isinstance(data, dict)  # `encode` returns a dict for a dataclass
        return {"schema": PLAN_SCHEMA, "plan_hash": self.plan_hash, **data}

    @classmethod
    def from_data(cls, data: object) -> Plan:
        """Read the JSON form. Raises PreconditionError if it was changed or has another version."""
        fields = dict(data) if isinstance(data, Mapping) else {}
        schema, stated = fields.pop("schema", None), fields.pop("plan_hash", None)
        if schema != PLAN_SCHEMA:
            message = f"the plan was made by another version of windlass: its format is `{schema}`, not `{PLAN_SCHEMA}`"
            hint = "use the version that made it, or launch the experiment again: windlass launch FILE"
            raise PreconditionError(message, hint=hint, code="other-version")
        try:
            plan = decode(cls, fields)
        except (TypeError, ValueError) as error:
            message = f"the plan is invalid: {error}"
            raise PreconditionError(message, hint="plan again: windlass plan", code="plan-broken") from error
        if plan.plan_hash != stated:
            message = f"the plan was changed: it states the hash {stated}, its content has {plan.plan_hash}"
            raise PreconditionError(message, hint="plan again: windlass plan", code="plan-broken")
        return plan


def _work(task: TaskPlan) -> dict[str, object]:
    """Return the fields that define the work, in one object however the plan groups them."""
    data, shape, settings = _fields(task), _fields(task.shape), _fields(task.settings)
    if settings["evaluates"] is None:  # so that other tasks keep the hash that they had before
        del settings["evaluates"]
    settings["after"] = [name for name in task.settings.after if not built_name(name)]  # the pins have builds' keys
    return {key: value for key, value in {**data, **shape, **settings}.items() if key not in _NOT_THE_WORK}


def _fields(value: TaskPlan | TaskShape | TaskSettings) -> dict[str, object]:
    data = encode(value)
    assert isinstance(data, dict)  # `encode` returns a dict for a dataclass
    return data
