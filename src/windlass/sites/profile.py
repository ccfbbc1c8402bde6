"""Profile of a site: one file per machine, independent of experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Literal

from windlass.config.annotations import (
    Diagnostic,
    Doc,
    DurationText,
    Name,
    OneOrMany,
    Pattern,
    Range,
    ScalarText,
    SizeText,
)
from windlass.core.dataclass import dataclass
from windlass.sites.beaker import BeakerPlace, Brought
from windlass.sites.consistency import findings

__all__ = [
    "Containers",
    "Exclusion",
    "Fabric",
    "FileSystem",
    "Health",
    "Mapped",
    "Override",
    "Partition",
    "Patch",
    "Profile",
    "ProfileSource",
    "SiteEnvironment",
    "SiteNetwork",
    "SiteRay",
    "SiteScheduler",
    "SiteVariable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSource:
    """Source of facts in a profile, and its reliability."""

    facts: Annotated[tuple[str, ...], OneOrMany(), Doc("Fields it documents, such as `net.vars`.")]
    url: Annotated[str, Doc("Page or file of the source.")] = ""
    seen: Annotated[str, Doc("Date it was read or measured, YYYY-MM-DD.")] = ""
    expires: Annotated[str, Doc("Date after which it must be checked again.")] = ""
    status: Annotated[Literal["official", "user", "measured", "unverified"], Doc("Kind of source.")] = "unverified"
    note: Annotated[str, Doc("Note for readers.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Scheduler settings for a priority, or for preemptible jobs."""

    partition: Annotated[str, Doc("Partition.")] = ""
    qos: Annotated[str, Doc("Quality of service.")] = ""
    nice: Annotated[int, Doc("Priority adjustment (sbatch --nice); positive values run later.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Node that jobs must avoid."""

    host: Annotated[str, Doc("Name of the node, or a Slurm host list.")]
    reason: Annotated[str, Doc("Reason.")] = ""
    seen: Annotated[str, Doc("Date, YYYY-MM-DD.")] = ""

    @classmethod
    def from_shorthand(cls, value: str) -> Exclusion:
        """Read the short form, a bare name."""
        return cls(host=value)

    def to_shorthand(self) -> str | None:
        """Return the bare name, if nothing else is set."""
        return self.host if self == Exclusion(host=self.host) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Partition and properties of one of its nodes; 0 and empty mean unknown."""

    num_nodes: Annotated[int, Range(min=0), Doc("Number of nodes.")] = 0
    max_nodes: Annotated[int, Range(min=0), Doc("Maximum number of nodes per job; 0: all nodes.")] = 0
    time_max: Annotated[float | None, DurationText(), Doc("Maximum walltime.")] = None
    gpus: Annotated[int | None, Range(min=0), Doc("GPUs per node; empty: unknown.")] = None
    gpu_type: Annotated[str, Doc("Common name of the GPU type, such as `gh200`.")] = ""
    gres: Annotated[str, Doc("Name of the GPU type in the scheduler, if it has one.")] = ""
    gpu_memory: Annotated[int, SizeText(), Doc("Memory of one GPU.")] = 0
    cpus: Annotated[int, Range(min=0), Doc("CPUs per node.")] = 0
    memory: Annotated[int, SizeText(), Doc("Memory per node that jobs can use.")] = 0
    arch: Annotated[str, Doc("Architecture, as printed by `uname -m`.")] = ""
    driver: Annotated[str, Doc("GPU driver version, such as `565.57`.")] = ""
    cuda: Annotated[str, Doc("Newest CUDA version that the driver supports, such as `12.7`.")] = ""
    features: Annotated[tuple[str, ...], OneOrMany(), Doc("Features of the nodes.")] = ()
    qos: Annotated[tuple[str, ...], OneOrMany(), Doc("QOS that may be used here; empty: any.")] = ()
    is_preempted: Annotated[bool, Doc("Jobs may be preempted.")] = False
    notice: Annotated[float | None, DurationText(), Doc("Grace time between a preemption notice and the kill.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteScheduler:
    """Scheduler settings of a site."""

    version: Annotated[str, Doc("Version that was probed, such as `22.05.8`.")] = ""
    bin: Annotated[str, Doc("Folder with sbatch, squeue, ..., if they are not on the PATH.")] = ""
    partition: Annotated[str, Doc("Default partition.")] = ""
    cpu_partition: Annotated[
        str, Doc("Partition for tasks without GPUs, such as data builds; empty: the experiment's partition.")
    ] = ""
    qos: Annotated[str, Doc("Default QOS.")] = ""
    account: Annotated[str, Doc("Default account.")] = ""
    accounts: Annotated[tuple[str, ...], OneOrMany(), Doc("Allowed accounts; empty: unknown.")] = ()
    qos_known: Annotated[tuple[str, ...], OneOrMany(), Doc("Names of all QOS; empty: unknown.")] = ()
    accounting: Annotated[bool, Doc("`sacct` works.")] = False
    chain: Annotated[
        Literal["successor", "requeue", "none"],
        Doc("How a run continues after the walltime: queued successors, requeue, or not at all."),
    ] = "successor"
    submits_in_jobs: Annotated[bool, Doc("Compute nodes may run sbatch.")] = True
    exclusive: Annotated[bool, Doc("Jobs get whole nodes.")] = False
    gpu_option: Annotated[Literal["gres", "gpus-per-node", "none"], Doc("Option that requests GPUs.")] = "gres"
    asks_memory: Annotated[bool, Doc("Jobs request memory.")] = True
    kill_wait: Annotated[
        float, DurationText(), Doc("Time between SIGTERM and SIGKILL when Slurm ends a job (KillWait).")
    ] = 30.0
    warn_before: Annotated[float, DurationText(), Doc("Time before the walltime at which Slurm sends a signal.")] = (
        120.0
    )
    submit_guard: Annotated[tuple[str, ...], OneOrMany(), Doc("Command that must succeed before a job is queued.")] = ()
    options: Annotated[tuple[str, ...], OneOrMany(), Doc("Additional sbatch options, such as `--network=...`.")] = ()
    exclude: Annotated[tuple[Exclusion, ...], Doc("Nodes that jobs avoid.")] = ()
    priority: Annotated[Mapping[str, Mapped], Doc("Settings for each priority.")] = field(default_factory=dict)
    preemptible: Annotated[Mapped | None, Doc("Settings for `preemptible: true`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteVariable:
    """Environment variable for tasks at the site; the short form is `NAME=value`.

    `value` may contain `${env.path}` (the environment's folder), `${user}`, `${fs.shared}` and `${fs.node_local}`.
    """

    name: Annotated[
        str,
        Pattern("[A-Za-z_][A-Za-z0-9_]*", "a variable's name consists of letters, digits and `_`"),
        Doc("Variable."),
    ]
    value: Annotated[str | None, ScalarText(), Doc("Value; empty unsets it.")] = None
    role: Annotated[
        Literal["all", "driver", "worker"],
        Doc("Processes that get it: `driver` runs the user's command, `worker` serves it (Ray)."),
    ] = "all"
    when: Annotated[
        tuple[Literal["multi-node", "one-node", "gpu", "ray", "torchrun"], ...],
        OneOrMany(),
        Doc("Conditions that must all hold."),
    ] = ()
    why: Annotated[str, Doc("Reason.")] = ""

    @classmethod
    def from_shorthand(cls, value: str) -> SiteVariable:
        """Read the short form `NAME=value`, which applies to every role, unconditionally."""
        name, equals, rest = value.partition("=")
        if not equals:
            raise ValueError(f"write `{name}=VALUE` to set it, or `{{name: {name}}}` to unset it")
        return cls(name=name, value=rest)

    def to_shorthand(self) -> str | None:
        """Return the short form, or None if that would lose settings."""
        is_plain = self.value is not None and self == SiteVariable(name=self.name, value=self.value)
        return f"{self.name}={self.value}" if is_plain else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNetwork:
    """Network between nodes."""

    fabric: Annotated[
        str, Doc("Shipped fabric with default interface and variables, such as `tcpxo`; empty: none.")
    ] = ""
    interface: Annotated[str, Doc("Network interface, or a prefix of its name, such as `hsn`.")] = ""
    interconnect: Annotated[
        str, Doc("Kind of network, such as `slingshot`, `infiniband`, `efa`, `ethernet`; empty: unknown.")
    ] = ""
    vars: Annotated[tuple[SiteVariable, ...], Doc("Variables for fast and correct collectives.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """File systems of a site. `${user}` in a path is the user's name there."""

    shared: Annotated[
        str,
        Doc(
            "Folder shared by the login node and all other nodes; windlass keeps its state in its subfolder `windlass`."
        ),
    ] = ""
    node_local: Annotated[str, Doc("Fast folder of each node.")] = "/tmp"  # noqa: S108 - a default that sites override
    node_local_is_memory: Annotated[bool, Doc("The node-local folder is in memory.")] = False
    stall: Annotated[
        float, DurationText(), Range(min=1), Doc("Longest stall of the shared file system that a run survives.")
    ] = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Package that needs a different build from the one in the lock file; recorded in the provenance."""

    package: Annotated[str, Doc("Name, optionally with a version: `torch==2.9.0`.")]
    index: Annotated[str, Doc("URL of an index, folder of wheels, or PyTorch index such as `cu126`.")] = ""
    when_import_fails: Annotated[str, Doc("Build from source only if importing this module fails.")] = ""
    source_build: Annotated[bool, Doc("Build from source.")] = False
    build_vars: Annotated[
        Mapping[str, Annotated[str, ScalarText()]], Doc("Environment variables of the build, such as CC and MAX_JOBS.")
    ] = field(default_factory=dict)
    why: Annotated[str, Doc("Reason.")] = ""
    seen: Annotated[str, Doc("Date, YYYY-MM-DD.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Start-up patch: Python code that runs when the environment's interpreter starts."""

    name: Annotated[str, Name(), Doc("Name of the patch; its module is windlass_patch_NAME.")]
    code: Annotated[str, Doc("Python source.")]
    why: Annotated[str, Doc("Reason.")] = ""
    seen: Annotated[str, Doc("Date, YYYY-MM-DD.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEnvironment:
    """Software at a site, and settings for environment builds."""

    python: Annotated[str, Doc("Python interpreter, 3.9 or newer, that runs windlass's supervisor.")] = "python3"
    uv: Annotated[str, Doc("Path or name of the uv program.")] = "uv"
    build: Annotated[Literal["login", "compute"], Doc("Where environments are built.")] = "login"
    build_partition: Annotated[str, Doc("Partition for the build job, if `build: compute`.")] = ""
    stage: Annotated[Literal["shared", "node-local"], Doc("Where jobs read the environment from.")] = "shared"
    module_init: Annotated[str, Doc("Shell file that defines `module`; empty: found in the usual places.")] = ""
    module_purge: Annotated[bool, Doc("Unload all modules first.")] = False
    modules: Annotated[tuple[str, ...], OneOrMany(), Doc("Modules to load.")] = ()
    modules_forbidden: Annotated[tuple[str, ...], OneOrMany(), Doc("Modules that must not be loaded.")] = ()
    overrides: Annotated[tuple[Override, ...], Doc("Packages that need a different build.")] = ()
    patches: Annotated[tuple[Patch, ...], Doc("Start-up patches.")] = ()
    imports: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Python modules that, if installed, must be importable after a build.")
    ] = ()
    vars: Annotated[tuple[SiteVariable, ...], Doc("Environment variables for every task.")] = ()
    forward: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Variables that jobs inherit from modules; `NAME` or `PREFIX*`.")
    ] = ()
    is_offline: Annotated[bool, Doc("Compute nodes have no internet access.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """Container runtime of a site."""

    kind: Annotated[Literal["none", "apptainer", "enroot"], Doc("Runtime.")] = "none"
    program: Annotated[str, Doc("Path of the runtime's program, if it is not on the PATH.")] = ""
    options: Annotated[tuple[str, ...], OneOrMany(), Doc("Additional options, such as `--nv`.")] = ()
    binds: Annotated[tuple[str, ...], OneOrMany(), Doc("Folders to mount.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRay:
    """Ray settings of a site."""

    cpus: Annotated[int, Range(min=0), Doc("CPUs per node for Ray; 0: the task's or the partition's number.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Health checks before and during a job."""

    preflight: Annotated[
        tuple[Literal["gpu-count", "disk", "port", "clock"], ...],
        OneOrMany(),
        Doc("Checks that run on every node before the user's code."),
    ] = ()
    straggler: Annotated[
        float, Range(above=1), Doc("Report a replica whose steps take this many times as long as the median.")
    ] = 2.0
    exclude_after: Annotated[int, Range(min=1), Doc("Number of failures after which the run avoids a node.")] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Profile of a site, as written in its file."""

    name: Annotated[str, Name(), Doc("Name of the site.")]
    kind: Annotated[Literal["slurm", "beaker"], Doc("Kind of site.")] = "slurm"
    about: Annotated[str, Doc("Description in one line.")] = ""
    ssh: Annotated[str, Doc("`user@host` of the login node; empty: this machine is the login node.")] = ""
    sources: Annotated[tuple[ProfileSource, ...], Doc("Sources of the facts.")] = ()
    scheduler: Annotated[SiteScheduler, Doc("Scheduler.")] = SiteScheduler()
    beaker: Annotated[BeakerPlace, Doc("Defaults for jobs at a Beaker site.")] = BeakerPlace()
    partitions: Annotated[Mapping[str, Partition], Doc("Partitions by name; at Beaker, clusters.")] = field(
        default_factory=dict
    )
    net: Annotated[SiteNetwork, Doc("Network.")] = SiteNetwork()
    fs: Annotated[FileSystem, Doc("Files.")] = FileSystem()
    env: Annotated[SiteEnvironment, Doc("Software.")] = SiteEnvironment()
    containers: Annotated[Containers, Doc("Containers.")] = Containers()
    ray: Annotated[SiteRay, Doc("Ray.")] = SiteRay()
    health: Annotated[Health, Doc("Health checks.")] = Health()
    brought: Annotated[Brought, Doc("Translation of commands written for Beaker.")] = Brought()

    def check(self) -> Iterator[Diagnostic]:
        """Yield a problem for each contradiction, unknown name and invalid date."""
        yield from findings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Network settings shared by many sites, shipped with windlass and named in `net.fabric`."""

    name: Annotated[str, Name(), Doc("Name of the fabric.")]
    about: Annotated[str, Doc("Description in one line.")] = ""
    sources: Annotated[tuple[ProfileSource, ...], Doc("Sources of the facts.")] = ()
    net: Annotated[SiteNetwork, Doc("Settings that it adds to a profile's `net`.")] = SiteNetwork()
