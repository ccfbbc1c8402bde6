"""Placement of a sweep's actors on Ray: create, find and remove actors and placement groups."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Mapping
from typing import Any

from windlass.core.errors import WaitTimeoutError
from windlass.tune.executors.ray.cluster import actor_options, group_bundles, needs_group
from windlass.tune.executors.ray.slot_actor import SlotActor, SlotOrder

__all__ = ["Placer"]


NUM_CALLS = 4
"""Maximum concurrent calls of an actor: one waits for messages, others send orders."""


class Placer:
    """Actors of one sweep, in a separate namespace.

    Args:
        runtime_env: runtime environment of each actor, if the connection has none.
        work: the sweep's work, as JSON.
    """

    def __init__(self, ray: Any, namespace: str, work: bytes, runtime_env: Mapping[str, Any] | None = None) -> None:
        self.namespace = namespace
        self._ray = ray
        self._groups_of_ray = importlib.import_module("ray.util.placement_group")  # not a function of ray.util
        self._strategies = importlib.import_module("ray.util.scheduling_strategies")
        self._work = ray.put(work)
        self._env = {"runtime_env": dict(runtime_env)} if runtime_env else {}
        self._class = ray.remote(SlotActor)

    def make(self, order: SlotOrder) -> tuple[Any, Any]:
        """Request an actor and its placement group, and return both. Does not block.

        The group is None if the actor needs none.
        """
        options = actor_options(order.resources)
        group = None
        if needs_group(order.resources):
            group = self._make_group(order)
            options["scheduling_strategy"] = self._within(group, order)
        actor = self._class.options(
            name=order.slot,
            namespace=self.namespace,
            lifetime="detached",
            max_concurrency=NUM_CALLS,
            max_restarts=0,
            **options,
            **self._env,
        ).remote(order, self._work)
        return actor, group

    def remove(self, actor: Any, group: Any) -> None:
        """Kill an actor and remove its placement group. Idempotent."""
        with contextlib.suppress(ValueError, self._ray.exceptions.RayError):
            self._ray.kill(actor)
        if group is not None:
            self._groups_of_ray.remove_placement_group(group)

    def found(self) -> dict[str, Any]:
        """Return the live actors of the sweep by name."""
        actors = {}
        for name in self._names():
            with contextlib.suppress(ValueError):  # it has ended meanwhile
                actors[name] = self._ray.get_actor(name, namespace=self.namespace)
        return actors

    def remove_all(self, timeout_s: float = 20.0) -> None:
        """Remove all actors and placement groups of this sweep. Blocks until they are gone.

        Raises:
            WaitTimeoutError: some still exist.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            groups = self._groups()
            for actor in self.found().values():
                self.remove(actor, None)
            for group in groups:
                self._groups_of_ray.remove_placement_group(group)
            names = self._names()
            if not names and not groups:
                return
            if time.monotonic() > deadline:
                raise WaitTimeoutError(
                    f"{len(names)} slots and {len(groups)} placement groups still exist on Ray: {', '.join(names)}",
                    hint="see `ray list actors` and `ray list placement-groups`; they end later without action",
                    code="timed-out",
                )
            time.sleep(0.02)

    def _names(self) -> list[str]:
        entries = self._ray.util.list_named_actors(all_namespaces=True)
        return sorted(entry["name"] for entry in entries if entry["namespace"] == self.namespace)

    def _groups(self) -> list[Any]:
        """Return the placement groups of this sweep that exist."""
        table = self._groups_of_ray.placement_group_table()
        mine = (entry for entry in table.values() if entry["name"].startswith(f"{self.namespace}/"))
        ids = [entry["placement_group_id"] for entry in mine if entry["state"] != "REMOVED"]
        make = self._groups_of_ray.PlacementGroup
        return [make(self._ray._raylet.PlacementGroupID(bytes.fromhex(id_))) for id_ in ids]

    def _make_group(self, order: SlotOrder) -> Any:
        return self._groups_of_ray.placement_group(
            group_bundles(order.resources),
            strategy=order.resources.strategy,
            name=f"{self.namespace}/{order.slot}",
            lifetime="detached",
        )

    def _within(self, group: Any, order: SlotOrder) -> Any:
        """Return a strategy that schedules the actor in the first bundle, and its trial's tasks in the same group."""
        has_own = any(amount > 0 for amount in order.resources.bundles[0].values())
        return self._strategies.PlacementGroupSchedulingStrategy(
            placement_group=group,
            placement_group_bundle_index=0 if has_own else -1,
            placement_group_capture_child_tasks=True,
        )
