"""Plan as a page of text, to review before a launch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from windlass.core.phrases import count, size
from windlass.core.units import format_duration, format_size
from windlass.plan.tokens.tokens import parse_tokens

if TYPE_CHECKING:
    from windlass.plan.plan import Plan, TaskPlan
    from windlass.record.facts import EvaluationRule
from windlass.supervise.job import TaskSettings, TaskShape

__all__ = ["plan_page"]

_OWN = ("WINDLASS_", "BEAKER_")


def plan_page(plan: Plan, *, image_is: str = "") -> str:
    """Return the page of a plan, with its commands, pins and site; late tokens remain visible.

    Args:
        image_is: text that describes whether the image already exists.
    """
    lines = [*_header(plan, image_is)]
    for task in plan.tasks:
        lines += ["", *_task(task, _own_variables(plan, task.name))]
    if plan.notes:
        lines += ["", "notes", *(f"  - {note}" for note in plan.notes)]
    return "\n".join(lines) + "\n"


def _header(plan: Plan, image_is: str) -> Iterator[str]:
    yield f"experiment   {plan.name}"
    if plan.why:
        yield f"why          {plan.why}"
    yield f"plan         {plan.plan_hash[:12]}"
    yield f"where        {_where(plan)} ({plan.site.backend})"
    yield from _labelled("code", _code(plan))
    if plan.pins.environment.kind != "none" or not plan.image:
        yield f"environment  {plan.pins.environment.text()}"
    if plan.image:
        yield from _labelled("image", [plan.pins.image.text(), *([image_is] if image_is else [])])
    for name, pin in plan.pins.data.items():
        yield f"data         {name}: {pin.source}  sha256:{pin.digest[:12]}  {size(pin.size_bytes)}, {count(pin.num_files, 'file')}"
    for build in plan.pins.builds.values():
        from windlass.plan.builds import describe_build  # lazy: most experiments build no data

        yield f"data         {build.name}: {describe_build(build)}"
    if plan.overrides:
        yield f"overrides    {shlex.join(plan.overrides)}"
    if plan.is_debug:
        yield "debug        CUDA_LAUNCH_BLOCKING=1"


def _where(plan: Plan) -> str:
    from windlass.plan.pins import built_name  # lazy: not needed to read command lines

    partitions = {task.queue.partition for task in plan.tasks if task.queue.partition and not built_name(task.name)}
    return "/".join([plan.site.name, *sorted(partitions)])


def _labelled(label: str, texts: list[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        yield f"{label if index == 0 else '':<11}  {text}"


def _code(plan: Plan) -> list[str]:
    pin = plan.pins.code
    if pin.kind == "none":
        return ["none"]
    origin = " of ".join(text for text in (pin.branch, pin.remote) if text)
    folder = f", folder {pin.subdir}" if pin.subdir else ""
    if pin.kind == "commit":
        return [f"commit {pin.commit[:12]}{f' ({origin})' if origin else ''}{folder}"]
    dirty = [f"  {name}" for name in pin.dirty_files[:8]]
    dirty += [f"  and {len(pin.dirty_files) - 8} more"] if len(pin.dirty_files) > 8 else []
    if pin.kind == "snapshot":
        base = f", differs from commit {pin.base[:12]} in" if pin.base and pin.dirty_files else ""
        return [f"snapshot {pin.tree[:12]}{folder}{base}", *(dirty if base else [])]
    start = (
        f"runs in place and is not pinned; its base is commit {pin.commit[:12]}"
        if pin.commit
        else "runs in place and is not pinned"
    )
    return [start + folder + (", edited:" if dirty else ""), *dirty]


def _task(task: TaskPlan, own: frozenset[str]) -> Iterator[str]:
    settings = task.settings
    yield f"task {task.name}" + (f"   after {', '.join(settings.after)}" if settings.after else "")
    if settings.evaluates is not None:
        yield f"  evaluates    {_evaluates(settings.evaluates)}"
    yield f"  replicas     {_resources(task.shape)}"
    if task.launcher != "none":
        yield f"  launcher     {task.launcher}, {count(task.procs_per_node, 'process', 'processes')} per replica"
    if task.chain.scheduler:
        yield f"  queue        {_queue(task)}"
        yield f"  jobs         {_jobs(task)}"
    for index, line in enumerate(task.bundles):
        yield f"  {'bundles' if index == 0 else '':<11}  {line}"
    yield from _command(task)
    yield from _variables(task.env, own)
    for role, variables, unset in _roles(task):
        texts = [
            *(f"{name}={value}" for name, value in variables.items() if not name.startswith(_OWN)),
            *_hidden(variables),
            *(f"{name} is unset" for name in unset),
        ]
        for index, text in enumerate(texts):
            yield f"  {role if index == 0 else '':<11}  {text}"
    if settings.secrets:
        yield "  secrets      " + ", ".join(
            f"{use.name} (file)" if use.is_file else use.name for use in settings.secrets
        )
    yield f"  checkpoints  {_checkpoints(settings)}"
    yield f"  limits       {_limits(settings)}"
    yield f"  retries      {settings.interrupted} after interruptions, {settings.failed} after failures"


def _evaluates(rule: EvaluationRule) -> str:
    """Describe the checkpoints that a task evaluates."""
    numbers = f"checkpoints {rule.every}, {2 * rule.every}, {3 * rule.every}, ..."
    which = [numbers if rule.every > 1 else "every checkpoint"] if rule.every else []
    which += ["the last one"] if rule.last else []
    which += [f"the best one by {rule.best} ({rule.mode})"] if rule.best else []
    return f"{', '.join(which)} of task {rule.of}; if more than {rule.max_waiting} wait, the oldest are skipped"


def _resources(shape: TaskShape) -> str:
    parts = [count(shape.gpus, "GPU") + (f" ({shape.gpu_type})" if shape.gpu_type else "")]
    parts += [f"{shape.cpus:g} {'CPU' if shape.cpus == 1 else 'CPUs'}"] if shape.cpus else []
    parts += [format_size(shape.memory_bytes)] if shape.memory_bytes else []
    return f"{shape.nodes} x {', '.join(parts)}"


def _queue(task: TaskPlan) -> str:
    """Describe the queue request of a task."""
    queue = task.queue
    if task.beaker.workspace:
        return _beaker(task)
    named = (("partition", queue.partition), ("QOS", queue.qos), ("account", queue.account))
    parts = [f"{noun} {name}" for noun, name in named if name] or ["the site's defaults"]
    parts += [f"nice {queue.nice}"] if queue.nice else []
    parts += ["whole nodes"] if queue.exclusive else []
    parts += [f"on {', '.join(queue.nodelist)}"] if queue.nodelist else []
    parts += [f"features {queue.constraint}"] if queue.constraint else []
    parts += [f"{format_size(queue.tmp_bytes)} of node-local disk"] if queue.tmp_bytes else []
    parts += [f"away from {', '.join(queue.exclude)}"] if queue.exclude else []
    return ", ".join([*parts, *queue.options])


def _beaker(task: TaskPlan) -> str:
    """Describe the request to Beaker."""
    ask = task.beaker
    parts = [f"workspace {ask.workspace}", *([f"budget {ask.budget}"] if ask.budget else [])]
    parts += [f"cluster {' or '.join(ask.clusters)}" if ask.clusters else "any cluster", f"priority {ask.priority}"]
    parts += ["may be preempted"] if ask.is_preemptible else []
    parts += [f"on {', '.join(ask.hostnames)}"] if ask.hostnames else []
    parts += [f"mounts {', '.join(str(mount['mountPath']) for mount in ask.datasets)}"] if ask.datasets else []
    return ", ".join([*parts, f"image {ask.image}"] if ask.image else parts)


def _jobs(task: TaskPlan) -> str:
    """Describe the walltime and the number of jobs of a chain."""
    queue, chain = task.queue, task.chain
    if chain.scheduler == "beaker" and chain.num_links == 1:
        return "one, started once"
    if chain.scheduler == "beaker":
        return f"one, restarted by Beaker after a preemption, at most {chain.num_links} times in all"
    walltime = format_duration(queue.time_s) if queue.time_s else "the partition's walltime"
    if chain.mode == "none":
        return f"one of {walltime}"
    needed = f"{queue.num_links} x {walltime}" if queue.num_links > 1 else f"one of {walltime}"
    how = "the same job is queued again" if chain.mode == "requeue" else f"{queue.num_queued} queued at the launch"
    return f"{needed}, at most {chain.num_links}; {how}"


def _roles(task: TaskPlan) -> Iterator[tuple[str, Mapping[str, str], tuple[str, ...]]]:
    """Yield a (label, variables to set, variables to unset) triple for each role at the site."""
    yield "of the site", task.site_env, task.site_unset
    yield "its driver", task.driver_env, task.driver_unset
    if task.launcher == "ray":
        yield "its workers", task.worker_env, task.worker_unset


def _command(task: TaskPlan) -> Iterator[str]:
    text = task.argv[-1] if task.is_shell else " ".join(_shown(item) for item in task.argv)
    label = "shell" if task.is_shell else "command"
    for index, line in enumerate(text.rstrip("\n").split("\n")):
        yield f"  {label if index == 0 else '':<11}  {line}"


def _shown(item: str) -> str:
    literal = "".join(piece for piece in parse_tokens(item) if isinstance(piece, str))
    return item if item and shlex.quote(literal or "x") == (literal or "x") else shlex.quote(item)


def _own_variables(plan: Plan, task: str) -> frozenset[str]:
    """Return the names of the variables that the experiment sets for a task."""
    tasks = plan.experiment.get("tasks")
    held = (plan.experiment.get("env"), tasks.get(task) if isinstance(tasks, Mapping) else None)
    given = (each.get("vars") for each in held if isinstance(each, Mapping))
    return frozenset(name for each in given if isinstance(each, Mapping) for name in each)


def _variables(env: Mapping[str, str], own: frozenset[str]) -> Iterator[str]:
    """Yield lines for the experiment's variables, then for those that windlass adds."""
    added = {name: value for name, value in env.items() if name not in own}
    shown = {name: value for name, value in sorted(env.items()) if name in own}
    shown |= {name: value for name, value in sorted(added.items()) if not name.startswith(_OWN)}
    texts = [f"{name}={value}".replace("\n", "\\n") for name, value in shown.items()]
    for index, text in enumerate((*texts, *_hidden(added))):
        yield f"  {'variables' if index == 0 else '':<11}  {text}"


def _hidden(env: Mapping[str, str]) -> Iterator[str]:
    """Yield a line with the number of variables that have the same value in every run."""
    for prefix in _OWN:
        hidden = sum(name.startswith(prefix) for name in env)
        if hidden:
            yield f"{prefix}* ({count(hidden, 'variable')})"


def _checkpoints(task: TaskSettings) -> str:
    every = f"every {format_duration(task.checkpoint_every_s)}" if task.checkpoint_every_s else "when the code saves"
    pattern = f", matching {task.checkpoint_pattern}" if task.checkpoint_pattern else ""
    return (
        f"{every}{pattern}, {'resumes from the latest' if task.is_resuming else 'starts from the beginning every time'}"
    )


def _limits(task: TaskSettings) -> str:
    parts = [f"{format_duration(task.time_s)} for each task"] if task.time_s is not None else []
    parts += [f"{format_duration(task.per_job_s)} per job"] if task.per_job_s is not None else []
    parts += [f"ready within {format_duration(task.ready_timeout_s)}", f"{format_duration(task.grace_s)} to stop"]
    stall = f"stalled after {format_duration(task.stall_floor_s)} of silence at the earliest"
    return ", ".join([*parts, stall if task.is_stall_watched else "stalls are not detected"])
