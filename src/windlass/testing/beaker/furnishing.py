"""Setup of a starting job: its node, Beaker's variables, secrets, mounts and results folder.

Source of the variables: what open-instruct, OLMo-core and gantry read; there is no official list.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.testing.beaker.acceptance import constrained_to
from windlass.testing.beaker.container import Container, Mount, can_enclose
from windlass.testing.beaker.records import Cluster, Dataset, Node, StoredJob, StoredTask
from windlass.testing.beaker.world import BeakerState, Refused

__all__ = ["Furnishing", "Unfurnishable"]


class Unfurnishable(Exception):
    """Exception for a job that cannot start; its message is the reason."""


class Furnishing:
    """Factory that turns specs into containers.

    Args:
        environ: variables that the "image" sets in addition to PATH and HOME.
        hidden: folders of this machine that are empty for jobs.
    """

    def __init__(
        self,
        world: BeakerState,
        *,
        environ: Mapping[str, str],
        hidden: Sequence[Path],
        small: Callable[[str], Path | None],
    ) -> None:
        self._world = world
        self._environ = environ
        self._hidden = hidden
        self._small = small

    def folder(self, job: StoredJob) -> Path:
        """Return the job's folder on this machine."""
        return self._world.folder / "jobs" / job.id

    def weka(self, bucket: str) -> Path:
        """Return the folder of a Weka bucket."""
        folder = self._small(bucket) or self._world.folder / "weka" / bucket
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def place(self, job: StoredJob) -> Node:
        """Return a node for a job: the least used node of the clusters on which it may run.

        Raises:
            Unfurnishable: no machine of these clusters is large enough.
        """
        spec = job.task.spec
        gpus = (spec.get("resources") or {}).get("gpuCount") or 0
        hosts = constrained_to(spec, "hostname")
        fitting = [
            node
            for cluster in self._clusters(spec)
            if cluster.gpus_per_node >= gpus
            for node in cluster.nodes
            if not node.is_cordoned and (not hosts or node.hostname in hosts)
        ]
        if not fitting:
            raise Unfurnishable(f"no node of the given clusters and hosts has {gpus} GPUs")
        running = [
            other.node.id
            for experiment in self._world.experiments
            for other in experiment.jobs
            if other.node is not None and not other.finalized_ns
        ]
        return min(fitting, key=lambda node: running.count(node.id))

    def prepare_results(self, job: StoredJob) -> None:
        """Back the results dataset with the folder that the job writes to, so that its files are visible at once."""
        small = self._small("results")
        assert job.results is not None
        if small is not None:
            job.results.folder = small / job.id
            job.results.folder.mkdir(parents=True, exist_ok=True)

    def furnish(self, job: StoredJob) -> Container:
        """Return all parameters for starting a job.

        Raises:
            Unfurnishable: a secret, a dataset or the right to mount is missing.
        """
        spec = job.task.spec
        mounts = self._mounts(job)
        if mounts and not can_enclose():
            raise Unfurnishable(
                f"the fake Beaker cannot mount {mounts[0].target}: it needs root or user namespaces on this machine"
            )
        assert job.node is not None
        is_enclosed = can_enclose()
        return Container(
            folder=self.folder(job),
            argv=[*(spec.get("command") or ("true",)), *(spec.get("arguments") or ())],
            environ=self._variables(job, is_enclosed=is_enclosed),
            hostname=job.node.hostname,
            hosts=self._world.hosts,
            mounts=mounts,
            hidden=self._hidden,
        )

    def _clusters(self, spec: Mapping[str, Any]) -> list[Cluster]:
        names = constrained_to(spec, "cluster")
        if (spec.get("context") or {}).get("cluster"):
            names.append(spec["context"]["cluster"])
        return [self._world.cluster(name) for name in names] or self._world.clusters[:1]

    def _variables(self, job: StoredJob, *, is_enclosed: bool) -> dict[str, str]:
        folder = self.folder(job)
        image = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(folder / "box" / "home"),
            "LANG": "C.UTF-8",
            **self._environ,
        }
        return {**image, **self._given(job), **self._beaker(job, is_enclosed=is_enclosed)}

    def _beaker(self, job: StoredJob, *, is_enclosed: bool) -> dict[str, str]:
        task, node, results = job.task, job.node, job.results
        assert node is not None
        assert results is not None
        gpus = (task.spec.get("resources") or {}).get("gpuCount") or 0
        cpus = (task.spec.get("resources") or {}).get("cpuCount") or 15.5
        variables = {
            "BEAKER_WORKLOAD_ID": task.experiment.id,
            "BEAKER_EXPERIMENT_ID": task.experiment.id,
            "BEAKER_TASK_ID": task.id,
            "BEAKER_JOB_ID": job.id,
            "BEAKER_JOB_KIND": "batch",
            "BEAKER_NODE_ID": node.id,
            "BEAKER_NODE_HOSTNAME": node.hostname if is_enclosed else "localhost",
            "BEAKER_WORKSPACE_ID": task.experiment.workspace_id,
            "BEAKER_USER_ID": self._world.user_id,
            "BEAKER_RESULT_DATASET_ID": results.id,
            "BEAKER_ASSIGNED_GPU_COUNT": str(gpus),
            "BEAKER_ASSIGNED_CPU_COUNT": f"{cpus:g}",
        }
        if task.is_replica:
            variables["BEAKER_REPLICA_RANK"] = str(task.rank)
            variables["BEAKER_REPLICA_COUNT"] = str(task.size)
        if job.leader is not None and job.leader.node is not None:
            variables["BEAKER_LEADER_REPLICA_HOSTNAME"] = job.leader.node.hostname if is_enclosed else "localhost"
            variables["BEAKER_LEADER_REPLICA_NODE_ID"] = job.leader.node.id
            variables["BEAKER_LEADER_REPLICA_JOB_ID"] = job.leader.id
        return variables

    def _given(self, job: StoredJob) -> dict[str, str]:
        return {
            variable["name"]: self._secret(job.task, variable["secret"])
            if variable.get("secret")
            else variable.get("value") or ""
            for variable in job.task.spec.get("envVars") or ()
        }

    def _secret(self, task: StoredTask, name: str) -> str:
        try:
            return self._world.secret(self._world.workspace(task.experiment.workspace_id), name).value
        except Refused as refused:
            raise Unfurnishable(refused.message) from refused

    def _mounts(self, job: StoredJob) -> list[Mount]:
        mounts = [self._mount(job, mount) for mount in job.task.spec.get("datasets") or ()]
        result = job.task.spec.get("result")
        if result and job.results is not None:
            mounts.append(Mount(source=job.results.folder, target=result["path"].rstrip("/")))
        return mounts

    def _mount(self, job: StoredJob, mount: Mapping[str, Any]) -> Mount:
        (kind, value) = next((kind, value) for kind, value in mount["source"].items() if value)
        source = self._source(job, kind, value)
        if mount.get("subPath"):
            source = source / mount["subPath"].strip("/")
        if kind == "weka":
            source.mkdir(parents=True, exist_ok=True)
        if not source.exists():
            raise Unfurnishable(
                f"nothing at {mount.get('subPath') or value!r} of the {kind} mount {mount['mountPath']}"
            )
        is_readonly = kind in ("beaker", "secret", "result")
        return Mount(source=source, target=mount["mountPath"].rstrip("/"), is_readonly=is_readonly)

    def _source(self, job: StoredJob, kind: str, value: str) -> Path:
        if kind == "weka":
            return self.weka(value)
        if kind == "beaker":
            return self._dataset(value).folder
        if kind == "result":
            task = next(task for task in job.task.experiment.tasks if task.name == value)
            assert task.job.results is not None
            return task.job.results.folder
        if kind == "secret":
            path = self.folder(job) / "secrets" / value
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._secret(job.task, value))
            return path
        return self._host_path(value)

    def _dataset(self, key: str) -> Dataset:
        try:
            return self._world.dataset(key)
        except Refused as refused:
            raise Unfurnishable(refused.message) from refused

    def _host_path(self, value: str) -> Path:
        """Return the folder for a host path: this machine's own if it exists, else one in the fake's folder."""
        path = Path(value)
        if not path.exists():
            path = self._world.folder / "hosts" / value.lstrip("/")
            path.mkdir(parents=True, exist_ok=True)
        return path
