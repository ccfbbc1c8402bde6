"""Launch of a sweep on a cluster: the pinned code and the sweep's record go to the head, whose command runs the sweep."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

from windlass.cluster.home import ClusterHome, list_clusters
from windlass.cluster.nodes.commands import ClusterNode, new_run_name
from windlass.core.errors import PreconditionError, Problem, SourcePlace, SpecError, UsageError
from windlass.core.names import NAME_RULE, is_name, new_run_id
from windlass.launcher.prepare import Options
from windlass.pin.code.checkouts import checkout
from windlass.pin.code.pinned import CodePin
from windlass.pin.code.pinning import pin_code
from windlass.runs.home import Home
from windlass.sites.store import site_names
from windlass.spec import Experiment
from windlass.spec.load import load_experiment
from windlass.supervise.node.commands import PYTHON, NodeCommand
from windlass.tune.sweep.cluster.record import SweepPlace, TrialPlan
from windlass.tune.sweep.record import SweepRecord, sweeps_folder

__all__ = [
    "PreparedClusterSweep",
    "check_python",
    "cluster_named",
    "create_sweep",
    "prepare_cluster_sweep",
    "send",
    "start_head",
]

_HERE = ("local", "docker", "podman")
_CHECK = "import windlass.tune.sweep.cluster.__main__, ray"
_REFUSED = ("allow_dirty", "best_effort", "reshape", "debug")
"""Options of launches that mean nothing for actors on a cluster, whose code is a copy."""


def cluster_named(name: str, home: Home) -> ClusterHome | None:
    """Return the cluster that `--on NAME` means; None if it means a site.

    Raises:
        UsageError: both have this name (`ambiguous-name`).
    """
    found = next((cluster for cluster in list_clusters(home) if cluster.name == name), None)
    if found is None:
        return None
    if name in _HERE or name in site_names(home.path):
        message = f"`--on {name}` is both a site and a cluster"
        hint = f"`--on {name}/PARTITION` is the site; for the cluster, bring it up with another `name`"
        raise UsageError(message, hint=hint, code="ambiguous-name")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClusterSweep:
    """Sweep that has been read and checked, with its code pinned.

    Attributes:
        base: the experiment's code folder on this machine.
        pin: its pinned content.
    """

    record: SweepRecord
    plan: TrialPlan
    base: Path
    pin: CodePin
    home: Home

    @property
    def folder(self) -> Path:
        """Folder of the sweep on this machine."""
        return sweeps_folder(self.home) / self.record.name

    def content(self) -> bytes:
        """Return what goes to the head, as a compressed tar file: record, plan and code."""
        packed = io.BytesIO()
        with tempfile.TemporaryDirectory(prefix="windlass-sweep-") as temporary:
            root = Path(temporary)
            self.record.write(root)
            self.plan.write(root)
            checkout(self.pin, self.base, root / "code", store=self.home.cache / "code.git")
            with tarfile.open(fileobj=packed, mode="w:gz") as tar:
                tar.add(root, arcname=".")
        return packed.getvalue()


def prepare_cluster_sweep(
    path: Path, overrides: Sequence[str], options: Options, *, name: str, cluster: str, home: Home
) -> PreparedClusterSweep:
    """Read a file, check its sweep, and pin its code. Starts nothing.

    Raises:
        WindlassError: the file is invalid, its trials cannot be actors, or its code cannot be pinned.
    """
    loaded = load_experiment(path, tuple(overrides))
    experiment, origins = loaded.value, loaded.origins
    sweep = experiment.sweep
    name = name or new_run_id(experiment.name)
    problem: Problem | None = None
    if sweep is None:
        problem = Problem(f"{path} has no `sweep:`", "missing-key", SourcePlace(str(path)), "add `sweep:`")
    elif not sweep.trainable:
        message = f"trials on the cluster {cluster} are calls of a `trainable`, and the sweep names none"
        hint = "set `sweep.trainable: MODULE:NAME`, a class or function of the configuration"
        problem = Problem(message, "sweep-unsupported", origins.get("sweep"), hint)
    elif not is_name(name):
        problem = Problem(f"invalid sweep name `{name}`", "invalid-name", None, NAME_RULE)
    elif refused := [name for name in _REFUSED if getattr(options, name)]:
        option = "--" + refused[0].replace("_", "-")
        hint = "`--snapshot` sends the tree exactly as it is" if refused[0] == "allow_dirty" else "leave it out"
        message = f"`{option}` is not supported on the cluster {cluster}"
        problem = Problem(message, "unsupported-setting", None, hint)
    if problem is not None or sweep is None:
        raise SpecError([problem] if problem is not None else [])
    resources = _resources(experiment, origins)
    base = path.absolute().parent / experiment.code
    pin = pin_code(base, snapshot=options.snapshot, store=home.cache / "code.git")
    return PreparedClusterSweep(
        record=SweepRecord(name=name, sweep=sweep, file=str(path.absolute()), place=cluster),
        plan=TrialPlan(resources=resources, code=f"code/{pin.subdir}".rstrip("/")),
        base=base,
        pin=pin,
        home=home,
    )


_TASK_SETTINGS = frozenset({"run", "cpus", "gpus", "memory", "nodes"})
_SECTIONS = frozenset({"name", "why", "code", "tasks", "sweep", "params", "where"})
"""Settings of an experiment that a trial on a cluster has; others are those of the cluster's file."""


def _resources(experiment: Experiment, origins: Mapping[str, SourcePlace]) -> dict[str, float]:
    """Return what a trial needs: the CPUs, GPUs and memory of the experiment's task.

    Raises:
        SpecError: the experiment has other settings, which the nodes of a cluster do not have, or several tasks.
    """
    problems = [
        Problem(f"trials on a cluster do not support `{path}`", "unsupported-setting", origins.get(path), _HINT)
        for path in _other_settings(experiment)
    ]
    if len(experiment.tasks) != 1:
        message = f"the experiment has {len(experiment.tasks)} tasks, and a trial on a cluster is one process"
        problems.append(Problem(message, "sweep-unsupported", origins.get("tasks"), "describe one task"))
    if problems:
        raise SpecError(problems)
    (task,) = experiment.tasks.values()
    gpus = task.gpus.count if task.gpus is not None else 0
    wanted = {"CPU": float(task.cpus or 1), "GPU": float(gpus), "memory": float(task.memory or 0)}
    return {name: amount for name, amount in wanted.items() if amount}


_HINT = "leave it out; packages, files and variables of nodes are in the cluster's file (`setup`, `files`)"


def _other_settings(experiment: Experiment) -> list[str]:
    """Return the settings that differ from their defaults and that a trial on a cluster does not have."""
    found = [field.name for field in fields(experiment) if field.name not in _SECTIONS and _is_set(experiment, field)]
    for name, task in experiment.tasks.items():
        own = [field.name for field in fields(task) if field.name not in _TASK_SETTINGS and _is_set(task, field)]
        if (task.nodes or 1) != 1:
            own.append("nodes")
        if task.gpus is not None and task.gpus.type:
            own.append("gpus")
        found += [f"tasks.{name}.{each}" for each in own]
    return found


def _is_set(values: object, field: Field[Any]) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(getattr(values, field.name) != default)


def check_python(head: ClusterNode) -> None:
    """Check that the cluster's Python can run sweeps.

    Raises:
        PreconditionError: windlass or one of its extras is missing there (`extra-missing`).
    """
    run, output = new_run_name("check"), _Output()
    head.start(run, NodeCommand((PYTHON, "-c", _CHECK)))
    if head.follow(run, output):
        last = output.last_line()
        message = f"the Python of the cluster {head.home.name} cannot run sweeps: {last}"
        hint = "add `setup: [\"python3 -m pip install 'windlass[ray,tune]'\"]` to the cluster's file, and bring it up again"
        raise PreconditionError(message, hint=hint, code="extra-missing")


class _Output:
    """Reader of a short command: keeps its errors."""

    def __init__(self) -> None:
        self._errors = b""

    def output(self, piece: bytes) -> None:
        """Ignore standard output."""

    def errors(self, piece: bytes) -> None:
        """Keep standard error."""
        self._errors += piece

    def note(self, text: str) -> None:
        """Ignore what happens to the connection."""

    def last_line(self) -> str:
        """Return the last line of standard error."""
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


def send(made: PreparedClusterSweep, head: ClusterNode) -> str:
    """Send the sweep to the head, and return its folder there."""
    there = f".windlass/clusters/{head.home.id}/sweeps/{made.record.name}"
    head.host.store_file(there, "sweep.tar.gz", made.content())
    answer = head.host.shell.run(["tar", "-C", there, "--no-same-owner", "-xzf", f"{there}/sweep.tar.gz"])
    if answer.code:
        message = f"{head.host.shell.name}: cannot unpack the sweep: {answer.err.strip()[-200:]}"
        raise PreconditionError(message, hint="is its disk full?", code="invalid-reply")
    return there


def create_sweep(made: PreparedClusterSweep) -> Path:
    """Create the sweep's folder on this machine.

    Raises:
        PreconditionError: a sweep of that name already exists (`already-exists`).
    """
    try:
        made.folder.mkdir(parents=True, mode=0o700)
    except FileExistsError as error:
        message = f"the sweep `{made.record.name}` already exists"
        hint = f"windlass sweep resume {made.record.name}, or launch with another --name"
        raise PreconditionError(message, hint=hint, code="already-exists") from error
    made.record.write(made.folder)
    return made.folder


def start_head(folder: Path, head: ClusterNode, there: str) -> SweepPlace:
    """Start the sweep's head on the cluster's head; return where it runs."""
    place = SweepPlace(cluster=head.home.name, id=head.home.id, folder=there, run=new_run_name(folder.name))
    place.write(folder)
    head.start(place.run, NodeCommand((PYTHON, "-m", "windlass.tune.sweep.cluster", there)))
    return place
