"""job.json: the one thing that goes into a job. Written by the client when it renders, read by every supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.json_text import read_json

__all__ = [
    "SCHEMA",
    "BeakerRequest",
    "ChainConfig",
    "ContainerConfig",
    "Fencing",
    "JobDocument",
    "JobSecret",
    "Lease",
    "QueueRequest",
    "ReplicaCommand",
]

SCHEMA = 1


@dataclass(frozen=True)
class ReplicaCommand:
    """What one replica executes.

    `argv` and the values of `env` may hold `${leader.address}`, `${leader.port}`, `${rank}` and `${attempt}`; nothing
    else is replaced in the job, and a shell line sees them already replaced.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobSecret:
    """A secret the user's processes get: as a variable, or as the path of a 0600 file in that variable."""

    name: str
    is_file: bool = False


@dataclass(frozen=True)
class Lease:
    """What the task takes of a machine that several runs share; empty folder: nothing is leased."""

    folder: str = ""
    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True)
class Fencing:
    """How an attempt on several machines proves that it lives, and when it must be still; seconds.

    Attributes:
        renew_s: between two signs of life; 0: the attempt needs none, all its processes are on one machine.
        stop_s: without a renewal for so long the ranks are stopped; a renewal lets them go on.
        kill_s: without a renewal for so long they are killed.
        quiet_s: a successor starts when it has seen no change for so long.
    """

    renew_s: float = 0.0
    stop_s: float = 120.0
    kill_s: float = 600.0
    quiet_s: float = 150.0


@dataclass(frozen=True)
class ChainConfig:
    """How the jobs of a task follow one another without a client.

    A job of a scheduler is a chain of links: link 1 is submitted by the client, each link queues the ones after it.

    Attributes:
        scheduler: `slurm`, or empty: the job is one process tree, and nothing is queued.
        mode: `successor` (queued links), `requeue` (the scheduler starts the same job again), `none`.
        submit: command line that queues a link; `${link}` in it is the link's number.
        mark: what a scheduler's listing shows of this job, `<mark>.<link>`; not secret.
        bin: folder of the scheduler's programs, where they are not on the PATH.
        num_links: most links there may be, over all jobs of the task since its budgets were reset; 0: no limit.
        can_submit: whether a compute node may queue links; else the client queued all of them.
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
class ContainerConfig:
    """What the container of a replica is made with; without an image user code runs on the machine itself.

    Attributes:
        engine: `docker` or `podman`.
        variables: which engine is meant (`DOCKER_HOST` and the like), as at the launch.
        image: what it is started from; by digest, or by the engine's own id.
        name: what people call the image.
        network: `host`, or `private`: one of the job, in which the replicas find one another by name.
        folders: shown inside at their own path, not to be written to.
        writable: shown inside at their own path, to be written to; made where they are not there.
        cwd: where the command starts inside; empty: the image's own working folder.
        shared_memory_bytes: size of /dev/shm; 0: half of the machine's memory, or the task's memory.
        cpus: of a replica; 0: no limit.
        gpus: of a replica; which ones, the lease says.
    """

    engine: str = "docker"
    variables: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    name: str = ""
    network: str = "host"
    folders: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    cwd: str = ""
    shared_memory_bytes: int = 0
    cpus: float = 0.0
    gpus: int = 0


@dataclass(frozen=True)
class QueueRequest:
    """What a scheduler is asked for: one link of a job on one site; 0 and empty: nothing is said.

    Attributes:
        name: the job's name, unique per run, task and number of the job; links wait for one another by it.
        time_s: walltime of a link.
        num_links: links that the task's running time needs; 1 where it is not known.
        num_queued: links that the client queues at the launch.
        gpu_option: how GPUs are asked for: `gres`, `gpus-per-node`, or `none` (the partition implies them).
        gres_type: the scheduler's name of the GPU type.
        memory_bytes: per node; 0 also where jobs of the site state no memory.
        tmp_bytes: node-local disk.
        nodelist: hosts, exactly these.
        constraint: features that every node must have, joined by `&`.
        signal_before_s: how long before the walltime the scheduler should send its signal.
        build_job: scheduler's id of the job that builds the environment; it must have ended before link 1 starts.
        hold: link 1 waits in the queue until the tasks before it have ended, when the last of their leaders lets it go.
        options: more options of sbatch, as the site wants them.
        setup: shell lines that come first: modules.
        python: interpreter of the supervisor.
    """

    name: str = ""
    partition: str = ""
    qos: str = ""
    account: str = ""
    nice: int = 0
    time_s: float = 0.0
    num_links: int = 1
    num_queued: int = 1
    nodes: int = 1
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
class BeakerRequest:
    """What Beaker is asked for beside what every job says; empty: nothing is said.

    Attributes:
        workspace: full name of the workspace the experiment is created in; without it the job is not Beaker's.
        image: `beaker:NAME` or `docker:REFERENCE`.
        clusters: full names of clusters, any of which will do.
        datasets: entries of the task's `datasets` as Beaker's spec writes them: mounts of Weka buckets, host paths, ...
        secrets: name of the workspace's secret by the variable that shows it to the supervisor.
        bundle: dataset with the job's folder, where the storage of the jobs is not seen from the client.
        results: folder inside whose files Beaker uploads.
        experiment, task: merge patches (RFC 7386) for the spec and for its task, from the user's own file.
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
    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0
    shared_memory_bytes: int = 0
    experiment: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobDocument:
    """Everything a supervisor needs to know; absolute paths, no secret values.

    Attributes:
        job: number of this submission of the task; an older one leaves before user code.
        token: in the environment of every process of this run on this machine (`WINDLASS_TOKEN`).
        is_shell: argv is a shell we wrapped around the user's line, so signals go to its children.
        env: variables for the user's processes; `path` and `python_path` are put in front of the inherited ones.
        after: tasks that must have succeeded before this one starts.
        per_job_s: walltime; an attempt ends itself before it has run so long, and the next one has as much; None for
            no limit.
        time_s: running time of the task, all attempts together, without the time between them; None for no limit.
        memory_bytes: limit per replica, enforced by the supervisor; 0 for none.
        delivery: file with the secret values, outside the run's folder; empty when there are none.
        host_address: where replicas listen; empty: each finds the address of its own machine.
        interface: network interface of that address, or the beginning of its name; empty: the host name's.
        inherit: more variables that user code inherits from the job, `NAME` or `PREFIX*`.
        unset: variables that user code does not inherit although the job has them.
        num_heads: so many first replicas run the task; the others serve them and live as long; 0: all run it.
        notice_s: time between the scheduler's notice and its kill.
        queue: what each link asks the scheduler for; its name is empty where there is none.
        preflight: what each node must show before user code runs on it: `gpu-count`, `disk`, `port`, `clock`.
        straggler: a replica whose steps take so many times those of the others is reported.
        environment: file that is there when the task's environment is built; empty: nothing to wait for.
        build_lock: file that a build of that environment holds locked.
        stage: folder on each node's own disk where a copy of the environment is put before anything starts.
        container: what the user's processes run in; without an image, on the machine itself.
        beaker: what Beaker is asked for; the job's containers are Beaker's own.
        builds: name of the data that the task prepares; empty: it is a task of the user's.
    """

    run: str
    task: str
    job: int
    token: str
    run_dir: str
    replicas: tuple[ReplicaCommand, ...]
    cwd: str
    is_shell: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    python_path: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
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
    memory_bytes: int = 0
    out: str = ""
    checkpoints: str = ""
    lease: Lease = field(default_factory=Lease)
    secrets: tuple[JobSecret, ...] = ()
    delivery: str = ""
    host_address: str = "127.0.0.1"
    interface: str = ""
    inherit: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    num_heads: int = 0
    notice_s: float = 30.0
    chain: ChainConfig = field(default_factory=ChainConfig)
    queue: QueueRequest = field(default_factory=QueueRequest)
    fencing: Fencing = field(default_factory=Fencing)
    straggler: float = 2.0
    preflight: tuple[str, ...] = ()
    environment: str = ""
    build_lock: str = ""
    stage: str = ""
    container: ContainerConfig = field(default_factory=ContainerConfig)
    builds: str = ""
    beaker: BeakerRequest = field(default_factory=BeakerRequest)
    schema: int = SCHEMA

    @property
    def num_replicas(self) -> int:
        """Size of the gang."""
        return len(self.replicas)

    @property
    def is_on_one_machine(self) -> bool:
        """Whether all replicas are processes of one machine, which started none of them itself."""
        return self.host_address == "127.0.0.1"

    def to_data(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> JobDocument:
        """Read job.json; raises PreconditionError when it is of a later version or broken."""
        try:
            data = read_json(path)
            if data["schema"] != SCHEMA:
                raise PreconditionError(
                    f"{path} has schema {data['schema']}, this supervisor reads {SCHEMA}", code="job-broken"
                )
            data["replicas"] = tuple(ReplicaCommand(tuple(r["argv"]), r["env"]) for r in data["replicas"])
            data["secrets"] = tuple(JobSecret(**use) for use in data["secrets"])
            data["lease"] = Lease(**data["lease"])
            data["fencing"] = Fencing(**data["fencing"])
            data["chain"] = ChainConfig(**{**data["chain"], "submit": tuple(data["chain"]["submit"])})
            lists = ("exclude", "nodelist", "options", "setup")
            data["queue"] = QueueRequest(**{**data["queue"], **{key: tuple(data["queue"][key]) for key in lists}})
            held = {"folders": (), "writable": (), **data.get("container", {})}  # jobs of earlier versions have none
            shown = {key: tuple(held[key]) for key in ("folders", "writable")}
            data["container"] = ContainerConfig(**{**held, **shown})
            asked = dict(data.get("beaker", {}))  # as above
            lists = ("groups", "clusters", "hostnames", "datasets")
            data["beaker"] = BeakerRequest(**{**asked, **{key: tuple(asked.get(key, ())) for key in lists}})
            for key in ("path", "python_path", "after", "inherit", "preflight", "unset"):
                data[key] = tuple(data[key])
            return cls(**data)
        except (ValueError, KeyError, TypeError) as error:
            raise PreconditionError(f"{path} is not a job description: {error}", code="job-broken") from error
