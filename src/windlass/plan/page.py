"""The plan as a page that a person can check before anything happens."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from windlass.core.units import format_duration, format_size
from windlass.plan.plan import Plan, TaskPlan
from windlass.plan.tokens import parse_tokens

__all__ = ["environment_text", "page"]

_OWN = ("WINDLASS_", "BEAKER_")


def page(plan: Plan) -> str:
    """Plain text: what runs, from which pins, where; tokens that are replaced later stay visible."""
    lines = [*_header(plan)]
    for task in plan.tasks:
        lines += ["", *_task(task)]
    if plan.notes:
        lines += ["", "notes", *(f"  - {note}" for note in plan.notes)]
    return "\n".join(lines) + "\n"


def _header(plan: Plan) -> Iterator[str]:
    yield f"experiment   {plan.name}"
    if plan.why:
        yield f"why          {plan.why}"
    yield f"plan         {plan.plan_hash[:12]}"
    yield f"where        {plan.site.name} ({plan.site.backend})"
    yield from _labelled("code", _code(plan))
    yield f"environment  {environment_text(plan)}"
    for name, pin in plan.pins.data.items():
        yield f"data         {name}: {pin.source}  sha256:{pin.digest[:12]}  {_size(pin.size_bytes)}, {_count(pin.num_files, 'file')}"
    if plan.overrides:
        yield f"overrides    {shlex.join(plan.overrides)}"
    if plan.is_debug:
        yield "debug        CUDA_LAUNCH_BLOCKING=1"


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
        f"runs in place and is not pinned; it sits on commit {pin.commit[:12]}"
        if pin.commit
        else "runs in place and is not pinned"
    )
    return [start + folder + (", edited:" if dirty else ""), *dirty]


def environment_text(plan: Plan) -> str:
    """The environment in one line."""
    pin = plan.pins.environment
    if pin.kind == "none":
        return "none: the programs of the place"
    if pin.kind == "python":
        return f"python {pin.python_version} at {pin.interpreter}, as it is, {_count(len(pin.packages), 'package')}"
    wanted = [f"group {name}" for name in pin.groups] + [f"extra {name}" for name in pin.extras]
    parts = [f"uv {pin.lock_file} sha256:{pin.lock_sha256[:12]}", f"python {pin.python_version}", *wanted]
    return ", ".join([*parts, *(f"{name} from outside the lock" for name in pin.unhashed)])


def _task(task: TaskPlan) -> Iterator[str]:
    yield f"task {task.name}" + (f"   after {', '.join(task.after)}" if task.after else "")
    yield f"  replicas     {_resources(task)}"
    if task.launcher != "none":
        yield f"  launcher     {task.launcher}, {_count(task.procs_per_node, 'process', 'processes')} per replica"
    yield from _command(task)
    yield from _variables(task.env)
    if task.secrets:
        yield "  secrets      " + ", ".join(f"{use.name} (file)" if use.is_file else use.name for use in task.secrets)
    yield f"  checkpoints  {_checkpoints(task)}"
    yield f"  limits       {_limits(task)}"
    yield f"  retries      {task.interrupted} after interruptions, {task.failed} after failures"


def _resources(task: TaskPlan) -> str:
    parts = [_count(task.gpus, "GPU") + (f" ({task.gpu_type})" if task.gpu_type else "")]
    parts += [f"{task.cpus:g} {'CPU' if task.cpus == 1 else 'CPUs'}"] if task.cpus else []
    parts += [format_size(task.memory_bytes)] if task.memory_bytes else []
    return f"{task.nodes} x {', '.join(parts)}"


def _command(task: TaskPlan) -> Iterator[str]:
    text = task.argv[2] if task.is_shell else " ".join(_shown(item) for item in task.argv)
    label = "shell" if task.is_shell else "command"
    for index, line in enumerate(text.rstrip("\n").split("\n")):
        yield f"  {label if index == 0 else '':<11}  {line}"


def _shown(item: str) -> str:
    literal = "".join(piece for piece in parse_tokens(item) if isinstance(piece, str))
    return item if item and shlex.quote(literal or "x") == (literal or "x") else shlex.quote(item)


def _variables(env: Mapping[str, str]) -> Iterator[str]:
    shown = [f"{name}={value}".replace("\n", "\\n") for name, value in sorted(env.items()) if not name.startswith(_OWN)]
    for prefix in _OWN:
        hidden = sum(name.startswith(prefix) for name in env)
        shown += [f"{prefix}* ({_count(hidden, 'variable')})"] if hidden else []
    for index, text in enumerate(shown):
        yield f"  {'variables' if index == 0 else '':<11}  {text}"


def _checkpoints(task: TaskPlan) -> str:
    every = f"every {format_duration(task.checkpoint_every_s)}" if task.checkpoint_every_s else "when the code saves"
    pattern = f", seen as {task.checkpoint_pattern}" if task.checkpoint_pattern else ""
    return f"{every}{pattern}, {'resumes from the latest' if task.is_resuming else 'starts afresh every time'}"


def _limits(task: TaskPlan) -> str:
    parts = [f"{format_duration(task.time_s)} for each task"] if task.time_s is not None else []
    parts += [f"{format_duration(task.per_job_s)} per job"] if task.per_job_s is not None else []
    parts += [f"ready within {format_duration(task.ready_timeout_s)}", f"{format_duration(task.grace_s)} to stop"]
    stall = f"stalled after {format_duration(task.stall_floor_s)} of silence at the earliest"
    return ", ".join([*parts, stall if task.is_stall_watched else "stalls are not watched"])


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _size(num_bytes: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return _count(num_bytes, "byte")
