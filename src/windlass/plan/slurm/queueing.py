"""Queue request for one link of a task, and the settings of its chain."""

from __future__ import annotations

import shlex
from math import ceil

from windlass.plan.slurm.queue_target import QueueTarget
from windlass.plan.slurm.walltime import LinkPlan
from windlass.sites.profile import SiteEnvironment
from windlass.spec import Task
from windlass.supervise.job import ChainConfig, QueueRequest, TaskShape

__all__ = ["chain_of", "queue_of"]


def queue_of(task: Task, shape: TaskShape, links: LinkPlan, target: QueueTarget) -> QueueRequest:
    """Return the queue request, except for the job name, which the run adds."""
    scheduler, there = target.profile.scheduler, target.there
    return QueueRequest(
        partition=target.partition,
        qos=target.qos,
        account=target.account,
        nice=target.nice,
        time_s=links.time_s,
        num_links=links.num_needed,
        num_queued=links.num_queued,
        gpus_per_node=shape.gpus,
        gpu_option=scheduler.gpu_option,
        gres_type=there.gres if shape.gpus else "",
        cpus_per_node=_cpus(task, shape, target),
        memory_bytes=shape.memory_bytes if scheduler.asks_memory else 0,
        tmp_bytes=task.disk or 0,
        exclusive=scheduler.exclusive,
        exclude=tuple(entry.host for entry in scheduler.exclude),
        nodelist=task.hosts,
        constraint="&".join(task.features),
        signal_before_s=min(float(scheduler.warn_before), links.time_s / 4 or float("inf")),
        options=scheduler.options,
        setup=(*_setup(target.profile.env), *_scratch(target.profile.fs.node_local)),
        python=target.profile.env.python,
    )


def chain_of(links: LinkPlan, target: QueueTarget) -> ChainConfig:
    """Return the chain's settings, except for the submit command and the job mark, which the run adds."""
    profile = target.profile
    return ChainConfig(
        scheduler="slurm",
        mode=profile.scheduler.chain,
        bin=profile.scheduler.bin,
        num_links=links.num_most,
        can_submit=profile.scheduler.submits_in_jobs,
        exclude_after=profile.health.exclude_after,
    )


def _cpus(task: Task, shape: TaskShape, target: QueueTarget) -> int:
    """Return the number of CPUs to request; a task with its own scheduler gets all that it may use."""
    if target.profile.scheduler.exclusive:
        return ceil(shape.cpus)
    hands_out = task.cluster == "ray" or bool(task.bundles)
    return max(ceil(shape.cpus), shape.node_cpus if hands_out else 0)


def _scratch(node_local: str) -> tuple[str, ...]:
    """Return shell lines that put temporary files on a node-local disk."""
    if node_local.rstrip("/") in ("", "/tmp"):  # noqa: S108 - Slurm's default
        return ()
    folder = node_local.replace("${user}", "$(id -un)")
    return (f'export TMPDIR="{folder}" && mkdir -p "$TMPDIR"',)


def _setup(env: SiteEnvironment) -> tuple[str, ...]:
    """Return shell lines that load the site's modules; the script defines `forbid_module`."""
    lines = [f". {shlex.quote(env.module_init)}"] if env.module_init else []
    lines += ["module purge"] if env.module_purge else []
    lines += [f"module load {shlex.join(env.modules)}"] if env.modules else []
    lines += [f"forbid_module {shlex.quote(name)}" for name in env.modules_forbidden if env.modules]
    return tuple(lines)
