"""Jobs and specs for tests of the Beaker backend."""

from __future__ import annotations

import dataclasses
from typing import Any

from windlass.sites.beaker import BeakerPlace
from windlass.sites.profile import Profile
from windlass.supervise.job import (
    BeakerRequest,
    ChainConfig,
    JobDocument,
    JobPaths,
    QueueRequest,
    ReplicaCommand,
    TaskShape,
)

__all__ = ["job", "plain_spec", "site"]


def job(*, num_replicas: int = 1, ask: dict[str, Any] | None = None, **changes: Any) -> JobDocument:
    """A job as a plan would write it; `ask` are fields of what Beaker is asked for."""
    facts: dict[str, Any] = {
        "workspace": "lab/main",
        "image": "docker:python:3.12",
        "budget": "lab/budget",
        **(ask or {}),
    }
    document = JobDocument(
        run="demo-01234567",
        task="main",
        job=1,
        token="secret-token",
        paths=JobPaths("/weka/bucket/runs/demo-01234567"),
        shape=TaskShape(nodes=num_replicas),
        command=ReplicaCommand(("true",), cwd="/"),
        chain=ChainConfig(scheduler="beaker", mode="requeue"),
        queue=QueueRequest(python="python3"),
        beaker=BeakerRequest(**facts),
    )
    return dataclasses.replace(document, **changes)


def plain_spec(line: str, *, replicas: int = 1, **task: Any) -> dict[str, Any]:
    """A spec whose replicas execute a shell line."""
    gang = {"replicas": replicas, "leaderSelection": True, "propagateFailure": True} if replicas > 1 else {}
    return {
        "version": "v2",
        "tasks": [
            {
                "name": "main",
                "image": {"docker": "busybox"},
                "command": ["/bin/sh", "-c", line],
                "result": {"path": "/results"},
                "context": {"priority": "normal", "autoResume": True},
                **gang,
                **task,
            }
        ],
    }


def site() -> Profile:
    """The profile of a Beaker site."""
    return Profile(name="lab", kind="beaker", beaker=BeakerPlace(workspace="lab/main"))
