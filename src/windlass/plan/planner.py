"""Planner, which makes a plan from an experiment, its pins and a site. Pure: uses no files and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from windlass.config.annotations import JsonValue
from windlass.config.encode import to_data
from windlass.core.errors import InternalError, SourcePlace, SpecError
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.launchers.context import Launch, LaunchContext
from windlass.plan.launchers.registry import launch
from windlass.plan.pins import Pins, built_name
from windlass.plan.placement import place_tasks
from windlass.plan.placement_result import PlacedTask, Placement
from windlass.plan.plan import Plan, TaskPlan
from windlass.plan.site import Site
from windlass.plan.tokens.parameters import check_parameters
from windlass.plan.tokens.resolve import Scope, resolve_text
from windlass.plan.tokens.scope import scope_of
from windlass.plan.tokens.tokens import Token, flat_params, parse_tokens
from windlass.plan.tokens.variables import (
    beaker_variables,
    check_secrets,
    check_user_variables,
    windlass_variables,
)
from windlass.record.facts import EvaluationRule
from windlass.spec import Command, Experiment, Task
from windlass.supervise.job import JobSecret, TaskSettings, TaskShape

__all__ = ["make_plan"]


def make_plan(
    experiment: Experiment,
    pins: Pins,
    site: Site,
    *,
    overrides: Sequence[str] = (),
    is_debug: bool = False,
    best_effort: bool = False,
    reshape: bool = False,
    origins: Mapping[str, SourcePlace] | None = None,
) -> Plan:
    """Make a plan, which settles everything that can be decided before a launch.

    Args:
        experiment: the checked experiment with overrides applied.
        overrides: overrides as given, for the record.
        is_debug: set CUDA_LAUNCH_BLOCKING=1 in every process.
        best_effort: ignore unsupported settings with a note instead of refusing them.
        reshape: use more nodes for tasks that need more GPUs than a node has, with a note.
        origins: place of each setting (`LoadedConfig.origins`), for messages.

    Raises:
        SpecError: contains every problem.
        InternalError: data has no pin.
    """
    diagnostics = Diagnostics(origins)
    placed = place_tasks(_with_builds(experiment, pins), site, diagnostics, best_effort=best_effort, reshape=reshape)
    experiment, declared = placed.experiment, _as_declared(placed.experiment)
    notes = [*placed.notes, *(f"passed over: {reason}" for reason in site.passed_over)]
    if site.machine is None and placed.target is None:
        notes.append(f"the partitions and nodes of `{site.name}` are unknown, so nothing was checked")
    if experiment.limit.time is not None and len(declared.tasks) > 1:
        notes.append("limit.time: applies to each task, to all its attempts together")
    unpinned = [name for name, source in experiment.data.items() if source.source and name not in pins.data]
    if unpinned:
        raise InternalError(f"data `{unpinned[0]}` has no pin")
    _check_params(experiment.params, diagnostics)
    notes += check_parameters(declared, overrides, diagnostics)
    if pins.code.kind == "in-place":
        notes.append("the code runs in place and is not pinned: later edits reach attempts that start after them")
    check_user_variables(experiment.env.vars, "env.vars", diagnostics, is_debug=is_debug)
    python_version = pins.environment.python_version if pins.environment.kind == "uv" else ""
    check_secrets([secret.name for secret in experiment.env.secrets], diagnostics)
    tasks = []
    for name in experiment.tasks:
        task, more = _plan_task(name, placed, site, diagnostics, is_debug=is_debug, python_version=python_version)
        tasks.append(task)
        notes += more
    diagnostics.raise_all()
    return Plan(
        name=experiment.name,
        why=experiment.why,
        experiment=cast(Mapping[str, JsonValue], to_data(declared)),
        overrides=tuple(overrides),
        pins=pins,
        site=site,
        tasks=tuple(task for task in tasks if task is not None),
        notes=tuple(dict.fromkeys(notes)),
        is_debug=is_debug,
        is_best_effort=best_effort,
    )


def _with_builds(experiment: Experiment, pins: Pins) -> Experiment:
    """Add the tasks that build missing data."""
    if not any(source.is_built for source in experiment.data.values()):
        return experiment
    from windlass.plan.builds import needed_builds, with_builds  # lazy: most experiments build no data

    unpinned = sorted(needed_builds(experiment) - pins.builds.keys())
    if unpinned:
        raise InternalError(f"built data `{unpinned[0]}` has no pin")
    return with_builds(experiment, pins.builds)


def _as_declared(experiment: Experiment) -> Experiment:
    if not any(map(built_name, experiment.tasks)):
        return experiment
    from windlass.plan.builds import without_builds  # lazy: as above

    return without_builds(experiment)


def _check_params(params: Mapping[str, JsonValue], diagnostics: Diagnostics) -> None:
    for name, value in flat_params(params).items():
        texts = value if isinstance(value, list) else [value]
        for text in texts:
            if isinstance(text, str) and any(isinstance(piece, Token) for piece in _pieces(text)):
                message = f"{name} holds `{text}`; tokens are replaced in `run` and `vars` only"
                diagnostics.add(
                    name, message, "unknown-token", "write the token in the command, or `$${` for a literal `${`"
                )


def _pieces(text: str) -> tuple[str | Token, ...]:
    try:
        return parse_tokens(text)
    except ValueError:
        return (text,)


def _plan_task(
    name: str, placed: Placement, site: Site, diagnostics: Diagnostics, *, is_debug: bool, python_version: str
) -> tuple[TaskPlan | None, tuple[str, ...]]:
    """Return the plan for one task (None after a problem), and notes."""
    built = built_name(name)
    experiment, path = placed.experiment, name if built else f"tasks.{name}"
    task, shape = experiment.tasks[name], placed.tasks[name].shape
    check_user_variables(task.vars, f"{path}.vars", diagnostics, is_debug=is_debug)
    scope = scope_of(name, experiment, shape)
    command = _resolve_command(task.run, scope, diagnostics, f"{path}.build" if built else f"{path}.run")
    common = _build_variables(built, experiment) if built else experiment.env.vars
    user = {key: resolve_text(value, scope, diagnostics, f"env.vars.{key}") for key, value in common.items()}
    user |= {key: resolve_text(value, scope, diagnostics, f"{path}.vars.{key}") for key, value in task.vars.items()}
    context = LaunchContext(path=path, command=command, task=task, shape=shape)
    try:
        started = launch(task.cluster, context)
    except SpecError as error:
        diagnostics.take(error, f"{path}.run")
        return None, ()
    env = {**windlass_variables(name, shape, experiment.name, is_debug=is_debug), **started.env}
    evaluated_by = [other for other, each in experiment.tasks.items() if each.evaluate and each.evaluate.of == name]
    env |= {"WINDLASS_EVALUATED_BY": ",".join(evaluated_by)} if evaluated_by else {}
    planned = _task_plan(name, task, experiment, placed.tasks[name], started, env | user)
    if "beaker" in task.compat:  # decided by the place, so that the same work keeps its hash
        there = _beaker_variables(name, replace(shape, cpus=shape.cpus or shape.node_cpus), site)
        planned = replace(planned, site_env={key: value for key, value in there.items() if key not in user})
    return _with_site_variables(planned, task, placed, user, python_version=python_version)


def _beaker_variables(task: str, shape: TaskShape, site: Site) -> dict[str, str]:
    """Return the variables that `compat: beaker` sets; none at a Beaker site, where Beaker sets them."""
    if site.backend == "beaker":
        profile = site.profile
        return {} if profile is None else {"RESULTS_DIR": profile.beaker.results}
    if not shape.cpus and site.machine is not None:
        shape = replace(shape, cpus=site.machine.num_cpus / shape.nodes)
    return beaker_variables(task, shape, site.name)


def _build_variables(name: str, experiment: Experiment) -> Mapping[str, str]:
    from windlass.plan.builds import variables_of_build  # lazy: most experiments build no data

    return variables_of_build(name, experiment)


def _with_site_variables(
    planned: TaskPlan, task: Task, placed: Placement, user: Mapping[str, str], *, python_version: str
) -> tuple[TaskPlan, tuple[str, ...]]:
    if placed.target is None:
        return planned, ()
    from windlass.plan.tokens.site_variables import site_variables  # lazy: a local plan needs no site profiles

    shape = placed.tasks[planned.name].shape
    own = {*user, *(secret.name for secret in placed.experiment.env.secrets)}
    found = site_variables(task, shape, placed.target, own, python_version=python_version)
    everyone, driver, worker = (
        {name: value for name, value in variables.items() if value is not None}
        for variables in (found.everyone, found.driver, found.worker)
    )
    planned = replace(
        planned,
        site_env={**planned.site_env, **everyone},
        driver_env=driver,
        worker_env=worker,
        site_unset=tuple(sorted(found.everyone.keys() - everyone.keys())),
        driver_unset=tuple(sorted(found.driver.keys() - driver.keys())),
        worker_unset=tuple(sorted(found.worker.keys() - worker.keys())),
    )
    return planned, found.notes


def _task_plan(
    name: str, task: Task, experiment: Experiment, placed: PlacedTask, started: Launch, env: Mapping[str, str]
) -> TaskPlan:
    return TaskPlan(
        name=name,
        argv=started.argv,
        is_shell=started.is_shell,
        env=env,
        launcher=task.cluster,
        procs_per_node=started.procs_per_node,
        shape=placed.shape,
        settings=_settings(name, task, experiment, placed.time_s),
        compat=tuple(task.compat),
        queue=placed.queue,
        chain=placed.chain,
        bundles=placed.bundles,
        beaker=placed.beaker,
    )


def _settings(name: str, task: Task, experiment: Experiment, time_s: float | None) -> TaskSettings:
    return TaskSettings(
        after=tuple(task.after),
        secrets=tuple(JobSecret(secret.name, secret.as_ == "file") for secret in experiment.env.secrets),
        interrupted=experiment.retry.interrupted,
        failed=experiment.retry.failed,
        ready_timeout_s=float(task.ready_timeout),
        grace_s=float(task.grace),
        per_job_s=None if built_name(name) else _seconds(experiment.limit.per_job),
        time_s=time_s,
        checkpoint_every_s=_seconds(task.checkpoints.every),
        checkpoint_pattern=task.checkpoints.pattern,
        is_resuming=task.checkpoints.resume == "latest",
        stall_floor_s=float(task.stall.floor),
        is_stall_watched=task.stall.enabled,
        evaluates=_rule_of(task),
    )


def _rule_of(task: Task) -> EvaluationRule | None:
    evaluate = task.evaluate
    if evaluate is None:
        return None
    best = evaluate.best
    return EvaluationRule(
        of=evaluate.of,
        every=evaluate.every or 0,
        last=evaluate.last,
        best=best.metric if best is not None else "",
        mode=best.mode if best is not None else "min",
        max_waiting=evaluate.max_waiting,
    )


def _seconds(duration: float | None) -> float | None:
    return None if duration is None else float(duration)


def _resolve_command(command: Command, scope: Scope, diagnostics: Diagnostics, path: str) -> Command:
    if isinstance(command, str):
        return resolve_text(command, scope, diagnostics, path, is_shell=True)
    return tuple(resolve_text(item, scope, diagnostics, path) for item in command)
