"""What a site is: one file per machine, written once, read by people; nothing of it appears in an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Literal

from windlass.config import Diagnostic, Doc, DurationText, Name, OneOrMany, Pattern, Range, ScalarText, SizeText
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
    """Where a fact comes from and how far it can be trusted; `facts` names fields, such as `net.vars`."""

    facts: Annotated[tuple[str, ...], OneOrMany(), Doc("Fields it speaks about, such as `net.vars`.")]
    url: Annotated[str, Doc("Page or file it was read in.")] = ""
    seen: Annotated[str, Doc("Date it was read or measured, YYYY-MM-DD.")] = ""
    expires: Annotated[str, Doc("Date after which to look again.")] = ""
    status: Annotated[Literal["official", "user", "measured", "unverified"], Doc("Who says so.")] = "unverified"
    note: Annotated[str, Doc("What a reader should know.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """What a wish of an experiment (a priority, preemptible) becomes in the scheduler's terms."""

    partition: Annotated[str, Doc("Partition.")] = ""
    qos: Annotated[str, Doc("Quality of service.")] = ""
    nice: Annotated[int, Doc("Adjustment of the priority; positive is later.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A node that jobs keep away from."""

    host: Annotated[str, Doc("Name of the node, or a Slurm host list.")]
    reason: Annotated[str, Doc("Why.")] = ""
    seen: Annotated[str, Doc("Date, YYYY-MM-DD.")] = ""

    @classmethod
    def from_shorthand(cls, value: str) -> Exclusion:
        """A bare name."""
        return cls(host=value)

    def to_shorthand(self) -> str | None:
        """The bare name, where nothing else is known."""
        return self.host if self == Exclusion(host=self.host) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition and what one of its nodes has; 0 and empty mean unknown."""

    num_nodes: Annotated[int, Range(min=0), Doc("Nodes in it.")] = 0
    max_nodes: Annotated[int, Range(min=0), Doc("Most nodes of one job; 0: all.")] = 0
    time_max: Annotated[float | None, DurationText(), Doc("Longest walltime.")] = None
    gpus: Annotated[int | None, Range(min=0), Doc("GPUs of a node; empty: unknown.")] = None
    gpu_type: Annotated[str, Doc("Type as people call it, such as `gh200`.")] = ""
    gres: Annotated[str, Doc("The scheduler's name of the GPU type, where it has one.")] = ""
    gpu_memory: Annotated[int, SizeText(), Doc("Memory of one GPU.")] = 0
    cpus: Annotated[int, Range(min=0), Doc("CPUs of a node.")] = 0
    memory: Annotated[int, SizeText(), Doc("Memory of a node that jobs can have.")] = 0
    arch: Annotated[str, Doc("Machine, as `uname -m` says.")] = ""
    driver: Annotated[str, Doc("GPU driver version, such as `565.57`.")] = ""
    cuda: Annotated[str, Doc("Newest CUDA version that the driver runs, such as `12.7`.")] = ""
    features: Annotated[tuple[str, ...], OneOrMany(), Doc("Features of its nodes.")] = ()
    qos: Annotated[tuple[str, ...], OneOrMany(), Doc("QOS that may be used here; empty: any.")] = ()
    is_preempted: Annotated[bool, Doc("Whether others may take its nodes from a job.")] = False
    notice: Annotated[float | None, DurationText(), Doc("Grace between the notice of a preemption and the end.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteScheduler:
    """How jobs are queued."""

    version: Annotated[str, Doc("Version that was probed, such as `22.05.8`.")] = ""
    bin: Annotated[str, Doc("Folder of sbatch, squeue, ..., where they are not on the PATH.")] = ""
    partition: Annotated[str, Doc("Partition where an experiment wishes for nothing else.")] = ""
    cpu_partition: Annotated[
        str, Doc("Partition of work that takes no GPU, such as builds of data; empty: that of the experiment.")
    ] = ""
    qos: Annotated[str, Doc("QOS where an experiment wishes for nothing else.")] = ""
    account: Annotated[str, Doc("Account where an experiment names none.")] = ""
    accounts: Annotated[tuple[str, ...], OneOrMany(), Doc("Accounts that may be used; empty: not known.")] = ()
    qos_known: Annotated[tuple[str, ...], OneOrMany(), Doc("QOS there are; empty: not known.")] = ()
    accounting: Annotated[bool, Doc("Whether `sacct` answers.")] = False
    chain: Annotated[
        Literal["successor", "requeue", "none"],
        Doc("How a long run goes on: queued successors, requeue where the site forbids them, or not at all."),
    ] = "successor"
    submits_in_jobs: Annotated[bool, Doc("Whether compute nodes may run sbatch.")] = True
    exclusive: Annotated[bool, Doc("Whether jobs take whole nodes.")] = False
    gpu_option: Annotated[Literal["gres", "gpus-per-node", "none"], Doc("How GPUs are asked for.")] = "gres"
    asks_memory: Annotated[bool, Doc("Whether jobs state their memory.")] = True
    kill_wait: Annotated[float, DurationText(), Doc("Time between SIGTERM and SIGKILL at a job's end (KillWait).")] = (
        30.0
    )
    warn_before: Annotated[float, DurationText(), Doc("How long before the walltime Slurm's signal is asked for.")] = (
        120.0
    )
    submit_guard: Annotated[tuple[str, ...], OneOrMany(), Doc("Command that must succeed before a job is queued.")] = ()
    options: Annotated[tuple[str, ...], OneOrMany(), Doc("More options of sbatch, such as `--network=...`.")] = ()
    exclude: Annotated[tuple[Exclusion, ...], Doc("Nodes that jobs keep away from.")] = ()
    priority: Annotated[Mapping[str, Mapped], Doc("What each priority becomes.")] = field(default_factory=dict)
    preemptible: Annotated[Mapped | None, Doc("What `preemptible: true` becomes.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteVariable:
    """An environment variable of the site: who gets it, and when; `NAME=value` is its short form.

    `value` may hold `${env.path}` (the environment's folder), `${user}`, `${fs.shared}` and `${fs.node_local}`.
    """

    name: Annotated[
        str,
        Pattern("[A-Za-z_][A-Za-z0-9_]*", "a variable's name consists of letters, digits and `_`"),
        Doc("Variable."),
    ]
    value: Annotated[str | None, ScalarText(), Doc("Value; empty takes it away.")] = None
    role: Annotated[
        Literal["all", "driver", "worker"],
        Doc("Who gets it: `driver` runs the user's command, `worker` serves it (Ray)."),
    ] = "all"
    when: Annotated[
        tuple[Literal["multi-node", "one-node", "gpu", "ray", "torchrun"], ...], OneOrMany(), Doc("All must hold.")
    ] = ()
    why: Annotated[str, Doc("Why.")] = ""

    @classmethod
    def from_shorthand(cls, value: str) -> SiteVariable:
        """The short form `NAME=value`, for every role and always."""
        name, equals, rest = value.partition("=")
        if not equals:
            raise ValueError(f"write `{name}=VALUE` to set it, or `{{name: {name}}}` to take it away")
        return cls(name=name, value=rest)

    def to_shorthand(self) -> str | None:
        """The short form, where it says everything."""
        is_plain = self.value is not None and self == SiteVariable(name=self.name, value=self.value)
        return f"{self.name}={self.value}" if is_plain else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNetwork:
    """How nodes reach one another."""

    fabric: Annotated[
        str, Doc("Shipped fabric whose interface and variables these add to, such as `tcpxo`; empty: none.")
    ] = ""
    interface: Annotated[str, Doc("SiteNetwork interface, or the beginning of its name, such as `hsn`.")] = ""
    interconnect: Annotated[
        str, Doc("Fabric, such as `slingshot`, `infiniband`, `efa`, `ethernet`; empty: not declared.")
    ] = ""
    vars: Annotated[tuple[SiteVariable, ...], Doc("Variables that make collectives fast and right.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """Where files live. `${user}` in a path is the user's name there."""

    shared: Annotated[
        str, Doc("Folder that all nodes and the login node see; windlass keeps its state in `windlass` below it.")
    ] = ""
    node_local: Annotated[str, Doc("Fast folder of each node.")] = "/tmp"  # noqa: S108 - a default that sites override
    node_local_is_memory: Annotated[bool, Doc("Whether the node's own folder takes memory.")] = False
    stall: Annotated[
        float, DurationText(), Range(min=1), Doc("Longest stall of the shared file system that a run must survive.")
    ] = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A package that this machine needs in another build than the lock file says; recorded in the provenance."""

    package: Annotated[str, Doc("Name, with a version where it matters: `torch==2.9.0`.")]
    index: Annotated[str, Doc("Address of an index, folder of wheels, or one of PyTorch's such as `cu126`.")] = ""
    when_import_fails: Annotated[str, Doc("Module whose import must fail before a build from source is tried.")] = ""
    source_build: Annotated[bool, Doc("Build from source.")] = False
    build_vars: Annotated[
        Mapping[str, Annotated[str, ScalarText()]], Doc("Variables of the build, such as CC and MAX_JOBS.")
    ] = field(default_factory=dict)
    why: Annotated[str, Doc("Why.")] = ""
    seen: Annotated[str, Doc("Date, YYYY-MM-DD.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A named start-up patch: Python code that runs when an interpreter of the environment starts."""

    name: Annotated[str, Name(), Doc("Name of the patch; the module is called windlass_patch_NAME.")]
    code: Annotated[str, Doc("Python source.")]
    why: Annotated[str, Doc("Why.")] = ""
    seen: Annotated[str, Doc("Date, YYYY-MM-DD.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEnvironment:
    """What software is there and how environments are made."""

    python: Annotated[str, Doc("Python >= 3.9 for windlass's own supervisor.")] = "python3"
    uv: Annotated[str, Doc("The uv program.")] = "uv"
    build: Annotated[Literal["login", "compute"], Doc("Where environments are built.")] = "login"
    build_partition: Annotated[str, Doc("Partition of the build job, where `build: compute`.")] = ""
    stage: Annotated[Literal["shared", "node-local"], Doc("Where jobs use it from.")] = "shared"
    module_init: Annotated[str, Doc("Shell file that defines `module`; empty: looked for in the usual places.")] = ""
    module_purge: Annotated[bool, Doc("Unload all modules first.")] = False
    modules: Annotated[tuple[str, ...], OneOrMany(), Doc("Modules to load.")] = ()
    modules_forbidden: Annotated[tuple[str, ...], OneOrMany(), Doc("Modules that must not be loaded.")] = ()
    overrides: Annotated[tuple[Override, ...], Doc("Packages in another build.")] = ()
    patches: Annotated[tuple[Patch, ...], Doc("Start-up patches.")] = ()
    imports: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Modules that must import after a build, of those installed.")
    ] = ()
    vars: Annotated[tuple[SiteVariable, ...], Doc("Variables of every task.")] = ()
    forward: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Variables that jobs inherit from modules; `NAME` or `PREFIX*`.")
    ] = ()
    is_offline: Annotated[bool, Doc("Whether compute nodes have no way out.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """How container images run."""

    kind: Annotated[Literal["none", "apptainer", "enroot"], Doc("Runtime.")] = "none"
    program: Annotated[str, Doc("Program, where it is not on the PATH.")] = ""
    options: Annotated[tuple[str, ...], OneOrMany(), Doc("More options, such as `--nv`.")] = ()
    binds: Annotated[tuple[str, ...], OneOrMany(), Doc("Folders to show inside.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRay:
    """What Ray must be told here."""

    cpus: Annotated[
        int, Range(min=0), Doc("CPUs of a node that Ray may count; 0: those of the task or the partition.")
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is looked at before and while a job runs."""

    preflight: Annotated[
        tuple[Literal["gpu-count", "disk", "port", "clock"], ...],
        OneOrMany(),
        Doc("Checks of every node before user code."),
    ] = ()
    straggler: Annotated[
        float, Range(above=1), Doc("A replica whose steps take so many times the median is reported.")
    ] = 2.0
    exclude_after: Annotated[int, Range(min=1), Doc("Failures of one node after which the run avoids it.")] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One site, as its file says."""

    name: Annotated[str, Name(), Doc("Name of the site.")]
    kind: Annotated[Literal["slurm", "beaker"], Doc("Kind of the place.")] = "slurm"
    about: Annotated[str, Doc("One line for people.")] = ""
    ssh: Annotated[str, Doc("`user@host` of the login node; empty: commands run on it.")] = ""
    sources: Annotated[tuple[ProfileSource, ...], Doc("Where the facts come from.")] = ()
    scheduler: Annotated[SiteScheduler, Doc("Queueing.")] = SiteScheduler()
    beaker: Annotated[BeakerPlace, Doc("What jobs ask Beaker for, at a site of that kind.")] = BeakerPlace()
    partitions: Annotated[Mapping[str, Partition], Doc("Partitions by name; of Beaker, its clusters.")] = field(
        default_factory=dict
    )
    net: Annotated[SiteNetwork, Doc("SiteNetwork.")] = SiteNetwork()
    fs: Annotated[FileSystem, Doc("Files.")] = FileSystem()
    env: Annotated[SiteEnvironment, Doc("Software.")] = SiteEnvironment()
    containers: Annotated[Containers, Doc("Containers.")] = Containers()
    ray: Annotated[SiteRay, Doc("Ray.")] = SiteRay()
    health: Annotated[Health, Doc("Health of nodes.")] = Health()
    brought: Annotated[Brought, Doc("What commands written for Beaker mean here.")] = Brought()

    def check(self) -> Iterator[Diagnostic]:
        """Facts that contradict one another, names that do not exist, dates that are none."""
        yield from findings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A kind of network that many sites have, shipped with windlass; a profile names it in `net.fabric`."""

    name: Annotated[str, Name(), Doc("Name of the fabric.")]
    about: Annotated[str, Doc("One line for people.")] = ""
    sources: Annotated[tuple[ProfileSource, ...], Doc("Where the facts come from.")] = ()
    net: Annotated[SiteNetwork, Doc("What it adds to a profile's `net`.")] = SiteNetwork()
