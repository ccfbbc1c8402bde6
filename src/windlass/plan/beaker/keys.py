"""Decisions about the keys under `beaker`: each is satisfied with a note, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from windlass.config.path import join_path
from windlass.plan.beaker.patch import divided
from windlass.plan.beaker.task_keys import UNKNOWN, KeptKey, TaskKeys, is_nothing, said_of
from windlass.spec import Experiment

if TYPE_CHECKING:
    from windlass.plan.site import Site
    from windlass.plan.slurm.queue_target import QueueTarget

__all__ = ["KeptKey", "kept_keys"]


def kept_keys(experiment: Experiment, site: Site, target: QueueTarget | None = None) -> Iterator[KeptKey]:
    """Yield a decision about each key under `beaker`.

    At a Beaker site, only the keys that windlass handles itself are considered.
    """
    image = experiment.env.image.name
    if image.startswith("beaker:") and site.backend != "beaker":
        reason = "only Beaker has the image; set `env.image` to a copy in a registry"
        yield KeptKey(path="env.image", said=image, reason=reason, is_impossible=True)
    for key, value in experiment.beaker.items():
        yield from _of_experiment(key, value, experiment, site)
    for name, task in experiment.tasks.items():
        judge = TaskKeys(experiment, name, task, site, target)
        kept = task.beaker
        if site.backend == "beaker":
            kept = divided(task.beaker, getattr(target, "clusters", ()))[1]
        for key, value in kept.items():
            yield from judge.found(key, value)


def _of_experiment(key: str, value: Any, experiment: Experiment, site: Site) -> Iterator[KeptKey]:
    path, said = f"beaker.{join_path((key,))}", said_of(value)
    if site.backend == "beaker":
        if key == "retry":
            yield KeptKey(
                path=path, said=said, is_met=True, reason="windlass itself restarts the task (`retry.failed`)"
            )
        return
    reasons = {
        "version": "the version of the Beaker spec",
        "description": "the description, used only by Beaker",
        "budget": f"a Beaker budget, which `{site.name}` does not charge",
        "groups": "groups, used only by Beaker",
    }
    if key == "retry":
        retries = value.get("allowedTaskRetries") if isinstance(value, Mapping) else None
        is_same = is_nothing(value) or (
            _only(value, "allowedTaskRetries") and (retries or 0) == experiment.retry.failed
        )
        reason = "the same as `retry.failed`" if is_same else "write `retry.failed`, which works at every site"
        yield KeptKey(path=path, said=said, is_met=is_same, reason=reason)
    else:
        is_met = key in reasons or is_nothing(value)
        yield KeptKey(path=path, said=said, is_met=is_met, reason=reasons.get(key, UNKNOWN))


def _only(value: Mapping[str, Any], key: str) -> bool:
    return set(value) <= {key}
