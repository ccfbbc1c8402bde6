"""The planner: experiment, pins and place to a plan. Pure: no files, no environment, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from windlass.config import JsonValue, to_data
from windlass.core.errors import InternalError, Place, SpecError
from windlass.plan.honour import apply_rules
from windlass.plan.launchers import Gang, Launch, launch
from windlass.plan.parameters import check_parameters
from windlass.plan.pins import Pins
from windlass.plan.placement import Request, check_fit, gpus_per_node
from windlass.plan.plan import Plan, TaskPlan
from windlass.plan.refusal import Refusals
from windlass.plan.resolve import LATE_TOKENS, Scope, flat_params, resolve_text
from windlass.plan.site import Site
from windlass.plan.tokens import IN_JOB_TOKENS, Token, parse_tokens
from windlass.plan.variables import Shape, beaker_variables, check_secrets, check_user_variables, windlass_variables
from windlass.spec import Command, Experiment, Task
from windlass.supervise.job import SecretUse

__all__ = ["make_plan"]


def make_plan(
    experiment: Experiment,
    pins: Pins,
    site: Site,
    *,
    overrides: Sequence[str] = (),
    is_debug: bool = False,
    best_effort: bool = False,
    origins: Mapping[str, Place] | None = None,
) -> Plan:
    """Decide everything that can be decided before anything runs.

    Args:
        experiment: checked, overrides applied.
        overrides: as given, for the record.
        is_debug: set CUDA_LAUNCH_BLOCKING=1 in every process.
        best_effort: note what the place cannot honour instead of refusing it.
        origins: where each setting was written (`Loaded.origins`), for messages.

    Raises:
        SpecError: with every problem found.
        InternalError: data without a pin.
    """
    refusals = Refusals(origins)
    notes = apply_rules(experiment, site, refusals, is_best_effort=best_effort)
    if site.machine is None:
        notes.append(f"the shape of `{site.name}` is not known, so nothing was checked against it")
    if experiment.limit.time is not None and len(experiment.tasks) > 1:
        notes.append("limit.time: counts for each task, all its attempts together")
    unpinned = [name for name, source in experiment.data.items() if source.source and name not in pins.data]
    if unpinned:
        raise InternalError(f"data `{unpinned[0]}` has no pin")
    _check_params(experiment.params, refusals)
    notes += check_parameters(experiment, overrides, refusals)
    if pins.code.kind == "in-place":
        notes.append("the code runs in place and is not pinned: later edits reach attempts that start after them")
    check_user_variables(experiment.env.vars, "env.vars", refusals, is_debug=is_debug)
    check_secrets([secret.name for secret in experiment.env.secrets], refusals)
    tasks = [_plan_task(name, experiment, site, refusals, is_debug=is_debug) for name in experiment.tasks]
    refusals.raise_all()
    return Plan(
        name=experiment.name,
        why=experiment.why,
        experiment=cast(Mapping[str, JsonValue], to_data(experiment)),
        overrides=tuple(overrides),
        pins=pins,
        site=site,
        tasks=tuple(task for task in tasks if task is not None),
        notes=tuple(notes),
        is_debug=is_debug,
        is_best_effort=best_effort,
    )


def _check_params(params: Mapping[str, JsonValue], refusals: Refusals) -> None:
    for name, value in flat_params(params).items():
        texts = value if isinstance(value, list) else [value]
        for text in texts:
            if isinstance(text, str) and any(isinstance(piece, Token) for piece in _pieces(text)):
                message = f"{name} holds `{text}`; tokens are replaced in `run` and `vars` only"
                refusals.add(
                    name, message, "token-in-param", "write the token in the command, or `$${` for a literal `${`"
                )


def _pieces(text: str) -> tuple[str | Token, ...]:
    try:
        return parse_tokens(text)
    except ValueError:
        return (text,)


def _plan_task(name: str, experiment: Experiment, site: Site, refusals: Refusals, *, is_debug: bool) -> TaskPlan | None:
    task, path = experiment.tasks[name], f"tasks.{name}"
    gpus = gpus_per_node(task, path, refusals)
    request = Request(
        nodes=task.nodes,
        gpus=gpus,
        cpus=float(task.cpus or 0),
        memory_bytes=task.memory or 0,
        is_total=task.total_gpus is not None,
    )
    check_fit(request, name, site, refusals)
    check_user_variables(task.vars, f"{path}.vars", refusals, is_debug=is_debug)
    scope = _scope(name, experiment, gpus)
    command = _resolve_command(task.run, scope, refusals, f"{path}.run")
    user = {key: resolve_text(value, scope, refusals, f"env.vars.{key}") for key, value in experiment.env.vars.items()}
    user |= {key: resolve_text(value, scope, refusals, f"{path}.vars.{key}") for key, value in task.vars.items()}
    gang = Gang(path=path, command=command, nodes=task.nodes, gpus=gpus, procs_per_node=task.procs_per_node)
    try:
        started = launch(task.cluster, gang)
    except SpecError as error:
        refusals.take(error, f"{path}.{'cluster' if error.code == 'launcher-unsupported' else 'run'}")
        return None
    shape = Shape(task=name, nodes=task.nodes, gpus=gpus, cpus=request.cpus)
    env = {**windlass_variables(shape, experiment.name, is_debug=is_debug), **started.env}
    env |= beaker_variables(shape) if "beaker" in task.compat else {}
    return _task_plan(name, task, experiment, request, started, env | user)


def _task_plan(
    name: str, task: Task, experiment: Experiment, request: Request, started: Launch, env: Mapping[str, str]
) -> TaskPlan:
    return TaskPlan(
        name=name,
        argv=started.argv,
        is_shell=started.is_shell,
        env=env,
        launcher=task.cluster,
        nodes=request.nodes,
        procs_per_node=started.procs_per_node,
        gpus=request.gpus,
        gpu_type=task.gpus.type if task.gpus is not None else "",
        cpus=request.cpus,
        memory_bytes=request.memory_bytes,
        after=tuple(task.after),
        secrets=tuple(SecretUse(secret.name, secret.as_ == "file") for secret in experiment.env.secrets),
        interrupted=experiment.retry.interrupted,
        failed=experiment.retry.failed,
        ready_timeout_s=float(task.ready_timeout),
        grace_s=float(task.grace),
        per_job_s=_seconds(experiment.limit.per_job),
        time_s=_seconds(experiment.limit.time),
        checkpoint_every_s=_seconds(task.checkpoints.every),
        checkpoint_pattern=task.checkpoints.pattern,
        is_resuming=task.checkpoints.resume == "latest",
        stall_floor_s=float(task.stall.floor),
        is_stall_watched=task.stall.enabled,
        compat=tuple(task.compat),
    )


def _seconds(duration: float | None) -> float | None:
    return None if duration is None else float(duration)


def _scope(name: str, experiment: Experiment, gpus: int) -> Scope:
    task = experiment.tasks[name]
    values: dict[str, JsonValue] = {
        **flat_params(experiment.params),
        "name": experiment.name,
        "nodes": task.nodes,
        "gpus_per_node": gpus,
        "num_gpus": gpus * task.nodes,
        "procs_per_node": task.procs_per_node or (1 if task.cluster == "none" else gpus or 1),
    }
    upstream = _upstream(name, experiment.tasks)
    later = {*LATE_TOKENS, *IN_JOB_TOKENS, *(f"data.{key}" for key in experiment.data)}
    later |= {f"tasks.{other}.{kind}" for other in upstream for kind in ("out", "checkpoints")}
    others = experiment.tasks.keys() - upstream
    blocked = {f"tasks.{other}.{kind}": other for other in sorted(others) for kind in ("out", "checkpoints")}
    return Scope(task=name, values=values, later=frozenset(later), blocked=blocked)


def _upstream(name: str, tasks: Mapping[str, Task]) -> set[str]:
    found: set[str] = set()
    todo = list(tasks[name].after)
    while todo:
        other = todo.pop()
        if other not in found and other in tasks:
            found.add(other)
            todo += tasks[other].after
    return found - {name}


def _resolve_command(command: Command, scope: Scope, refusals: Refusals, path: str) -> Command:
    if isinstance(command, str):
        return resolve_text(command, scope, refusals, path, is_shell=True)
    return tuple(resolve_text(item, scope, refusals, path) for item in command)
