"""What a job of a Beaker site has in its job.json beside what every job has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from windlass.core.errors import InternalError
from windlass.plan.beaker.placement import beaker_image
from windlass.plan.job import RunPaths, fencing_for
from windlass.plan.plan import TaskPlan
from windlass.plan.site import Site
from windlass.supervise.beaker.replica import SHOWN_PREFIX

__all__ = ["beaker_fields"]

_INHERITED = ("BEAKER_*", "CUDA_VISIBLE_DEVICES", "HF_*", "NCCL_*")
"""What Beaker and the image say to every process of a job."""

_NOTICE_S = 30.0


def beaker_fields(site: Site, task: TaskPlan, places: RunPaths, job: int) -> dict[str, Any]:
    """Queue, chain and ask; replicas are machines that must find one another and be fenced. Pure."""
    profile = site.profile
    if profile is None:
        raise InternalError(f"site `{site.name}` has no profile")
    ask = replace(task.beaker, secrets=_secrets(task, places))
    return {
        "host_address": "",
        "interface": profile.net.interface,
        "inherit": (*_INHERITED, *profile.env.forward),
        "notice_s": _notice_s(site, task),
        "straggler": profile.health.straggler,
        "preflight": tuple(profile.health.preflight),
        "queue": replace(task.queue, name=f"{places.run}-{task.name}-{job}"),
        "chain": task.chain,
        "fencing": fencing_for(profile.fs.stall),
        "beaker": replace(ask, image=beaker_image(places.image) or ask.image),
    }


def _notice_s(site: Site, task: TaskPlan) -> float:
    profile = site.profile
    there = profile.partitions.get(task.queue.partition) if profile is not None else None
    return there.notice if there is not None and there.notice else _NOTICE_S


def _secrets(task: TaskPlan, places: RunPaths) -> dict[str, str]:
    """The workspace's secrets by the variables that show them; a launch has found out what each is called there."""
    return {SHOWN_PREFIX + use.name: places.secrets.get(use.name, use.name) for use in task.secrets}
