"""Import of SkyPilot's task files: a cluster and an experiment; each key is honoured, noted, or refused by name.

task = read_sky_file(text, source="task.yaml")
task.cluster, task.experiment, task.notes
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from windlass.cluster.config import ClusterConfig
from windlass.cluster.imports.pruning import pruned
from windlass.cluster.imports.ray import is_ray_file
from windlass.cluster.imports.sky_file import SkyFile
from windlass.cluster.imports.sky_resources import Machines, SkyResources
from windlass.config.decode import DocumentDecoder
from windlass.config.document import MappingNode, Node, ScalarNode
from windlass.config.loading import from_data, raise_any
from windlass.config.path import join_path, split_path
from windlass.config.yaml_reader.parser import MAX_TEXT, compose, too_large
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem, SourcePlace, SpecError
from windlass.spec import Experiment

__all__ = ["SkyImport", "is_sky_file", "read_sky_file"]

T = TypeVar("T")

_REFUSED: Mapping[str, str] = {
    "service": "services are not supported; remove it",
    "pool": "pools of workers are not supported; remove it",
    "config": "remove it; it is for other clouds and for SkyPilot's server",
    "event_callback": "remove it, and watch the run with `windlass watch`",
    "managed_secrets": "write `secrets: {NAME: null}`, and store the value: windlass secret set NAME",
    "volumes": "volumes are not attached; copy the data in `setup`",
    "volume_mounts": "volumes are not attached; copy the data in `setup`",
    "inputs": "remove it; it only estimates costs",
    "outputs": "remove it; it only estimates costs",
    "api_server_access": "remove it; there is no server",
    "experimental": "remove it",
    "file_mounts_mapping": "remove it; it is internal to SkyPilot",
    "_metadata": "remove it; it is internal to SkyPilot",
}
_FOLDER = "~/sky_workdir"
_VARIABLES: Mapping[str, str] = {
    "SKYPILOT_NODE_RANK": "${rank}",
    "SKYPILOT_NUM_NODES": "${nodes}",
    "SKYPILOT_NUM_GPUS_PER_NODE": "${gpus_per_node}",
}
_LEADER = "SKYPILOT_NODE_IPS"
_HEAD_OF_LIST = re.compile(r"\$\{?SKYPILOT_NODE_IPS\}?\"?\s*\|\s*head\s+(-n\s*1|-1|--lines=1)\b")
_OTHERS: Mapping[str, str] = {"SKYPILOT_TASK_ID": "${run}"}
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyImport:
    """A task file read as ours.

    Attributes:
        notes: what is done otherwise, without harm.
    """

    cluster: ClusterConfig
    experiment: Experiment
    notes: tuple[str, ...]


def is_sky_file(root: Node) -> bool:
    """Return whether a document looks like SkyPilot's task rather than a file of ours or Ray's."""
    ours = ("place", "head", "groups", "python", "tasks", "code", "env", "params", "where", "sweep", "retry", "limit")
    if not isinstance(root, MappingNode) or is_ray_file(root) or any(root.find(key) for key in ours):
        return False
    return any(root.find(key) for key in ("resources", "num_nodes", "workdir", "file_mounts", "envs", "setup", "run"))


def read_sky_file(text: str, *, source: str) -> SkyImport:
    """Read SkyPilot's YAML.

    Raises:
        SpecError: contains every key that is unknown, invalid, or cannot be honoured.
    """
    if len(text) > MAX_TEXT:
        raise SpecError([too_large(SourcePlace(source), MAX_TEXT)])
    node, problems = compose(text, source=source, merges=True)
    if not isinstance(node, MappingNode):
        message = "the file must contain a mapping"
        hint = "write `key: value` lines"
        raise SpecError(problems or [Problem(message, "invalid-value", SourcePlace(source), hint)])
    kept = [each for each in node.entries if not (isinstance(each.node, ScalarNode) and each.node.value is None)]
    decoder = DocumentDecoder(SkyFile)
    file = decoder.decode(MappingNode(tuple(kept), node.place))
    raise_any([*problems, *decoder.problems])
    assert isinstance(file, SkyFile)
    reading = _Reading(file, decoder.origins, source)
    reading.refuse_unsupported()
    machines = SkyResources(file.resources, reading.refuse, reading.notes.append).machines()
    cluster, experiment = reading.cluster(machines), reading.experiment(machines)
    raise_any(reading.problems)
    return SkyImport(
        cluster=reading.checked(ClusterConfig, cluster),
        experiment=reading.checked(Experiment, experiment),
        notes=tuple(dict.fromkeys(reading.notes)),
    )


class _Reading:
    """Conversion of one file; collects problems and notes."""

    def __init__(self, file: SkyFile, origins: Mapping[str, SourcePlace], source: str) -> None:
        self._file, self._origins, self._source = file, origins, source
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        stem = Path(source).name.partition(".")[0]
        self._name = _name_of(file.name) or _name_of(stem) or "task"
        if file.name and self._name != file.name:
            self.notes.append(f"it is called `{self._name}`, not `{file.name}`")

    def refuse(self, path: str, message: str, hint: str) -> None:
        """Add a problem at a key or, if it is not in the file, at what it belongs to."""
        parts = split_path(path) if path else ()
        found = [self._origins[at] for at in map(join_path, _prefixes(parts)) if at in self._origins]
        place = found[0] if found else SourcePlace(self._source)
        self.problems.append(Problem(message, "unsupported-setting", place, hint))

    def refuse_unsupported(self) -> None:
        """Refuse the keys that cannot be honoured; those that say nothing are accepted."""
        for key, hint in _REFUSED.items():
            if getattr(self._file, key):
                self.refuse(key, f"`{key}` cannot be honoured", hint)
        for key, value in self._file.envs.items():
            if value is None:
                hint = f"write its value or, if it is a secret, `secrets: {{{key}: null}}`"
                self.refuse(f"envs.{key}", f"`envs.{key}` has no value", hint)
        if not self._file.run:
            self.refuse("", "`run` is missing", "add `run: COMMAND`, or write a cluster's file of ours")
        if self._file.workdir is not None and not isinstance(self._file.workdir, str):
            message = "`workdir` from a git repository cannot be honoured"
            self.refuse("workdir", message, "clone it, and write its folder here")

    def cluster(self, machines: Machines) -> dict[str, Any]:
        """Return the cluster's settings as plain data."""
        file = self._file
        gib = f"{machines.disk_gib}GiB" if machines.disk_gib else None
        group = {
            "types": machines.types,
            "gpus": machines.gpus or None,
            "gpu_type": machines.gpu_type,
            "market": machines.market if machines.market != "on-demand" else None,
            "disk": gib,
        }
        files = dict(self._files())
        aws: dict[str, Any] = {"zones": machines.zones, "tags": machines.tags}
        if len(machines.regions) == 1:
            (region,) = machines.regions
            aws |= {"region": region, "image": machines.images.get(region, "")}
        else:
            aws |= {"regions": machines.regions, "images": machines.images}
        return pruned(
            {
                "name": self._name,
                "place": {"aws": aws},
                "head": group,
                "groups": {"workers": {**group, "count": file.num_nodes - 1}} if file.num_nodes > 1 else {},
                "setup": list(self._setup()),
                "files": files,
                "exclude_from": [".gitignore"] if _FOLDER in files else [],
                "price": {} if machines.per_hour is None else {"per_hour": machines.per_hour},
            }
        )

    def experiment(self, machines: Machines) -> dict[str, Any]:
        """Return the experiment as plain data."""
        file = self._file
        kind = self._gpus_of_task()
        task: dict[str, Any] = {"run": ["bash", "-c", file.run.replace("${", "$${")], "nodes": file.num_nodes}
        if kind:
            task["gpus"] = kind
        if machines.cpus:
            task["cpus"] = machines.cpus
        if machines.memory_gib:
            task["memory"] = f"{max(1, round(machines.memory_gib * 1024))}MiB"
        task["vars"] = {**_VARIABLES, **dict(self._variables())}
        env: dict[str, Any] = {}
        if file.envs:
            env["vars"] = {key: (value or "").replace("${", "$${") for key, value in file.envs.items()}
        if file.secrets:
            env["secrets"] = list(file.secrets)
            self.notes += [
                f"the value of a secret is not copied; store it: windlass secret set {each}" for each in file.secrets
            ]
        self.notes.append(
            "`where` of the experiment is `local`: set it to a site; on the cluster itself run commands with"
            f" `windlass cluster submit {self._name}`"
        )
        code = file.workdir if isinstance(file.workdir, str) else ""
        found = {"name": self._name, "env": env, "tasks": {"main": task}, "code": self._expanded(code, "workdir")}
        if machines.retries:
            found["retry"] = {"failed": machines.retries}
        return {key: value for key, value in found.items() if value}

    def _gpus_of_task(self) -> str:
        """Return the GPUs of a node as the experiment has them; also where a type of machine is named."""
        silent = SkyResources(self._file.resources, lambda *_: None, lambda _: None)
        number, kind = silent.gpus()
        return f"{number} x {kind}" if number else ""

    def _variables(self) -> Iterator[tuple[str, str]]:
        """Yield SkyPilot's variables that the command reads; refuse those that have no equivalent."""
        run = self._file.run
        for name in sorted(set(re.findall(r"SKYPILOT_[A-Z_]+", run))):
            if name in _VARIABLES or name in self._file.envs or name in self._file.secrets:
                continue
            if name in _OTHERS:
                self.notes.append(f"`{name}` is the run's id")
                yield name, _OTHERS[name]
            elif name == _LEADER and (self._file.num_nodes == 1 or not _HEAD_OF_LIST.sub("", run).count(name)):
                if self._file.num_nodes > 1:
                    self.notes.append(f"`{name}` holds the address of the first node alone, which is what `run` takes")
                yield name, "${leader.address}"
            else:
                hint = "use ${leader.address} and ${rank} in the experiment, or remove it"
                self.refuse("run", f"`run` reads `{name}`, which has no equivalent", hint)

    def _setup(self) -> Iterator[str]:
        """Yield the set-up command, with its folder and variables."""
        file = self._file
        if not file.setup:
            return
        read = set(_VARIABLE.findall(file.setup))
        for name in sorted(read & set(file.secrets)):
            message = f"`setup` reads the secret `{name}`, which machines do not get"
            self.refuse("setup", message, "move what needs it to `run`")
        for name in sorted(set(re.findall(r"SKYPILOT_[A-Z_]+", file.setup)) - set(file.envs)):
            self.refuse("setup", f"`setup` reads `{name}`, which is not set", "remove it, or move it to `run`")
        lines = [f"export {key}={shlex.quote(value or '')}" for key, value in file.envs.items()]
        if isinstance(file.workdir, str):
            lines.append(f"cd {_FOLDER}")
        yield "\n".join([*lines, file.setup])

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield what is copied to each node: path there, path here."""
        if isinstance(self._file.workdir, str):
            yield _FOLDER, self._expanded(self._file.workdir, "workdir")
        for there, here in self._file.file_mounts.items():
            path = join_path(("file_mounts", there))
            if not isinstance(here, str):
                message = f"file_mounts: `{there}` is a bucket or a volume, and none is mounted"
                self.refuse(path, message, "read the bucket in `run`, or name it under `data` of the experiment")
            elif "://" in here:
                message = f"file_mounts: `{here}` is not on this machine"
                self.refuse(path, message, "copy it in `setup`, or name it under `data` of the experiment")
            else:
                yield self._expanded(there, path), self._expanded(here, path)

    def _expanded(self, text: str, path: str) -> str:
        """Return a path with the file's variables replaced, as SkyPilot does."""

        def value(found: re.Match[str]) -> str:
            known = self._file.envs.get(found[1])
            if known is None:
                self.refuse(path, f"`{text}` contains {found[0]}, which `envs` does not set", "write the value")
            return known or ""

        return _VARIABLE.sub(value, text)

    def checked(self, schema: type[T], data: Mapping[str, Any]) -> T:
        """Return settings; what they refuse is an error of the whole file."""
        try:
            return from_data(schema, data, source=self._source)
        except SpecError as error:
            place = self._origins.get("") or SourcePlace(self._source)
            raise SpecError(
                Problem(each.message, each.code, place, each.hint or "correct it in the task's file")
                for each in error.problems
            ) from error


def _prefixes(parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield a path and those above it."""
    for length in range(len(parts), -1, -1):
        yield parts[:length]


def _name_of(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")[:64].rstrip("-_")
