"""job.json: the complete input of a job, written by the client and read by every supervisor.

`TaskShape`, `TaskSettings` and the requests to schedulers are parts of the plan too; the rest is known once a run exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from windlass.core.codec import decode, encode
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.json_text import read_object
from windlass.record.facts import EvaluationRule

__all__ = [
    "SCHEMA",
    "BeakerRequest",
    "ChainConfig",
    "ContainerConfig",
    "Fencing",
    "JobDocument",
    "JobPaths",
    "JobSecret",
    "Lease",
    "QueueRequest",
    "ReplicaCommand",
    "SiteSettings",
    "TaskSettings",
    "TaskShape",
]

SCHEMA = 2


@dataclass(frozen=True)
class TaskShape:
    """Number of nodes of a task, and the resources per node; fields that are not requested are 0 or empty.

    Attributes:
        shared_memory_bytes: size of /dev/shm in a container.
        node_cpus: CPUs of a node that the task may use; 0 if unknown.
    """

    nodes: int = 1
    gpus: int = 0
    gpu_type: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    shared_memory_bytes: int = 0
    node_cpus: int = 0


@dataclass(frozen=True)
class JobSecret:
    """Secret for the user's processes, passed as a variable, or in a 0600 file whose path is in the variable."""

    name: str
    is_file: bool = False


@dataclass(frozen=True)
class TaskSettings:
    """Settings of a task that hold for all its jobs.

    Attributes:
        after: tasks that must have succeeded before this one starts.
        interrupted, failed: number of retries after interruptions and after failures.
        per_job_s: walltime; an attempt ends before it has run this long, and the next one gets the full time again; None
            for no limit.
        evaluates: rule of a task that evaluates checkpoints of another task; None for other tasks.
        time_s: total running time of all attempts of the task, without the time between them; None for no limit.
    """

    after: tuple[str, ...] = ()
    secrets: tuple[JobSecret, ...] = ()
    interrupted: int = 50
    failed: int = 0
    ready_timeout_s: float = 600.0
    grace_s: float = 30.0
    per_job_s: float | None = None
    time_s: float | None = None
    checkpoint_every_s: float | None = None
    checkpoint_pattern: str = ""
    is_resuming: bool = True
    stall_floor_s: float = 60.0
    is_stall_watched: bool = True
    evaluates: EvaluationRule | None = None


@dataclass(frozen=True)
class QueueRequest:
    """Request to a scheduler: one link of a job at one site; fields that do not apply are 0 or empty.

    Attributes:
        name: name of the job, unique per run, task and number of the job; links use it to wait for each other.
        time_s: walltime of a link.
        num_links: links that the task's running time needs; 1 if unknown.
        num_queued: links that the client queues at the launch.
        gpu_option: option for GPUs: `gres`, `gpus-per-node`, or `none` (the partition implies them).
        gres_type: the scheduler's name for the GPU type.
        memory_bytes: memory per node; also 0 if jobs at the site do not request memory.
        tmp_bytes: node-local disk space.
        nodelist: exact list of hosts.
        constraint: features that every node must have, joined by `&`.
        signal_before_s: time before the walltime at which the scheduler should send its signal.
        build_job: scheduler's id of the job that builds the environment; it must have ended before link 1 starts.
        hold: whether link 1 is held until its upstream tasks have ended; the last of their leaders releases it.
        options: additional sbatch options, from the site.
        setup: first lines of the batch script, which load modules.
        python: interpreter for the supervisor.
    """

    name: str = ""
    partition: str = ""
    qos: str = ""
    account: str = ""
    nice: int = 0
    time_s: float = 0.0
    num_links: int = 1
    num_queued: int = 1
    gpus_per_node: int = 0
    gpu_option: str = "gres"
    gres_type: str = ""
    cpus_per_node: int = 0
    memory_bytes: int = 0
    tmp_bytes: int = 0
    exclusive: bool = False
    exclude: tuple[str, ...] = ()
    nodelist: tuple[str, ...] = ()
    constraint: str = ""
    signal_before_s: float = 0.0
    build_job: str = ""
    hold: bool = False
    options: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    python: str = "python3"


@dataclass(frozen=True)
class ChainConfig:
    """Chain of jobs that run a task; the chain continues without a client.

    A scheduler's job is a chain of links: the client submits link 1, and each link queues the next ones.

    Attributes:
        scheduler: `slurm`, or empty: the job is one process tree, and nothing is queued.
        mode: `successor` (queued links), `requeue` (the scheduler restarts the same job), `none`.
        submit: command that queues a link; `${link}` in it is the link's number.
        mark: mark of this job in a scheduler's listing, `<mark>.<link>`; not secret.
        bin: folder of the scheduler's programs, if they are not on the PATH.
        num_links: maximum number of links over all jobs of the task since its budgets were reset; 0 for no limit.
        can_submit: whether a compute node may queue links; otherwise the client queued all of them.
    """

    scheduler: str = ""
    mode: str = "none"
    submit: tuple[str, ...] = ()
    mark: str = ""
    bin: str = ""
    num_links: int = 0
    can_submit: bool = True
    exclude_after: int = 2


@dataclass(frozen=True)
class BeakerRequest:
    """Request to Beaker, in addition to the fields of every job; fields that do not apply are empty.

    Attributes:
        workspace: full name of the experiment's workspace; empty if this is not a Beaker job.
        image: `beaker:NAME` or `docker:REFERENCE`.
        clusters: full names of the clusters to choose from.
        datasets: entries of the task's `datasets` in Beaker's format: mounts of Weka buckets, host paths, ...
        secrets: variable of the supervisor -> name of the workspace's secret.
        bundle: dataset with the job's folder, if the client cannot access the jobs' storage.
        results: folder in the container whose files Beaker uploads.
        experiment, task: merge patches (RFC 7386) for the spec and for its task, from the user's file.
    """

    workspace: str = ""
    budget: str = ""
    description: str = ""
    groups: tuple[str, ...] = ()
    image: str = ""
    clusters: tuple[str, ...] = ()
    hostnames: tuple[str, ...] = ()
    priority: str = "normal"
    is_preemptible: bool = False
    datasets: tuple[Mapping[str, Any], ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    bundle: str = ""
    results: str = "/results"
    experiment: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplicaCommand:
    """Command of each replica, with its folder and variables.

    `argv` and the values of `env` may contain `${leader.address}`, `${leader.port}`, `${rank}` and `${attempt}`. Only
    these are replaced in the job, before a shell sees the line.

    Attributes:
        is_shell: whether argv is windlass's shell around the user's line, so that signals go to its children.
        path, python_path: folders prepended to the inherited PATH and PYTHONPATH.
        unset: variables of the job that user code does not inherit.
        num_heads: the first `num_heads` replicas run the task, the rest serve them and end with them; if 0, all run it.
        builds: name of the data that the command prepares; empty for a user's task.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    is_shell: bool = False
    path: tuple[str, ...] = ()
    python_path: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    num_heads: int = 0
    builds: str = ""


@dataclass(frozen=True)
class JobPaths:
    """Absolute paths of a job on its machines; empty if there is none.

    Attributes:
        run_dir: folder of the run.
        out, checkpoints: folders of the task, shared by all attempts.
        leases: folder with the table of leases.
        delivery: file with the secret values, outside the run's folder.
        environment: file that exists once the task's environment is built.
        build_lock: file that is locked while that environment is built.
        stage: folder on each node's own disk for a copy of the environment, made before anything starts.
    """

    run_dir: str
    out: str = ""
    checkpoints: str = ""
    leases: str = ""
    delivery: str = ""
    environment: str = ""
    build_lock: str = ""
    stage: str = ""


@dataclass(frozen=True)
class Fencing:
    """Fencing of attempts on several machines: the heartbeat's interval, and time limits without one, in seconds.

    Attributes:
        renew_s: interval of heartbeats; 0 if there are none, since all processes are on one machine.
        stop_s: after this long without a heartbeat the ranks are stopped; the next heartbeat resumes them.
        kill_s: after this long without a heartbeat the ranks are killed.
        quiet_s: a successor starts after it has seen no change for this long.
    """

    renew_s: float = 0.0
    stop_s: float = 120.0
    kill_s: float = 600.0
    quiet_s: float = 150.0


@dataclass(frozen=True)
class SiteSettings:
    """Settings of the site for its jobs.

    Attributes:
        host_address: address on which replicas listen; if empty, each uses the address of its machine.
        interface: network interface of that address, or the beginning of its name; if empty, the host name's address is used.
        inherit: additional variables that user code inherits from the job, `NAME` or `PREFIX*`.
        notice_s: time between the scheduler's notice and its kill.
        preflight: checks of each node before user code runs on it: `gpu-count`, `disk`, `port`, `clock`.
        straggler: ratio to the step time of the other replicas from which a replica is reported.
    """

    host_address: str = "127.0.0.1"
    interface: str = ""
    inherit: tuple[str, ...] = ()
    notice_s: float = 30.0
    preflight: tuple[str, ...] = ()
    straggler: float = 2.0
    fencing: Fencing = Fencing()


@dataclass(frozen=True)
class ContainerConfig:
    """Container for each replica; without an image, user code runs on the machine itself.

    Attributes:
        engine: `docker` or `podman`.
        variables: variables at the launch that select the engine (`DOCKER_HOST` and others).
        image: image to start, by digest or by the engine's id.
        name: name of the image for messages.
        network: `host`, or `private`: a network of the job, in which replicas find each other by name.
        folders: folders mounted read-only at the same path.
        writable: folders mounted writable at the same path; created if missing.
        cwd: working folder of the command inside; empty means the image's default.
    """

    engine: str = "docker"
    variables: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    name: str = ""
    network: str = "host"
    folders: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    cwd: str = ""


@dataclass(frozen=True)
class Lease:
    """Resources that a task needs on a machine shared by several runs; nothing is leased if the folder is empty."""

    folder: str = ""
    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True)
class JobDocument:
    """Complete input of a supervisor; no value is secret.

    Attributes:
        job: number of this submission of the task; an older one exits before user code runs.
        token: token in the environment of every process of this run on this machine (`WINDLASS_TOKEN`).
        queue: request for each link; its name is empty without a scheduler.
        container: container of the user's processes; without an image they run on the machine itself.
        beaker: request to Beaker, which runs the job's containers itself.
    """

    run: str
    task: str
    job: int
    token: str
    command: ReplicaCommand
    paths: JobPaths
    shape: TaskShape = TaskShape()
    settings: TaskSettings = TaskSettings()
    site: SiteSettings = SiteSettings()
    chain: ChainConfig = ChainConfig()
    queue: QueueRequest = QueueRequest()
    container: ContainerConfig = ContainerConfig()
    beaker: BeakerRequest = BeakerRequest()

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas, one per node."""
        return self.shape.nodes

    @property
    def is_on_one_machine(self) -> bool:
        """Return whether windlass starts all replicas as processes on one machine."""
        return self.site.host_address == "127.0.0.1"

    @property
    def lease(self) -> Lease:
        """Return the lease of all replicas together; one without GPUs hides all GPUs."""
        if not self.paths.leases:
            return Lease()
        each, nodes = self.shape, self.shape.nodes
        return Lease(self.paths.leases, nodes * each.gpus, nodes * each.cpus, nodes * each.memory_bytes)

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form, with its schema."""
        data = encode(self)
        assert isinstance(data, dict)  # `encode` returns a dict for a dataclass
        return {"schema": SCHEMA, **data}

    @classmethod
    def read(cls, path: Path) -> JobDocument:
        """Read job.json; raises PreconditionError if it is damaged or of another version."""
        try:
            data = read_object(path)
            schema = data.pop("schema", None)
            if schema == SCHEMA:
                return decode(cls, data)
        except (ValueError, TypeError) as error:
            raise PreconditionError(f"{path} is not a valid job description: {error}", code="plan-broken") from error
        message = f"{path} was made by another version of windlass: its format is `{schema}`, not `{SCHEMA}`"
        hint = "use the version that made it, or launch the experiment again: windlass launch FILE"
        raise PreconditionError(message, hint=hint, code="other-version")
