"""Environment of a mason command at another site: variables, secrets and folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from windlass.compat.mason.reading import MasonCommand, MasonLaunch
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.relocation import CHECKPOINTS, CODE, OUT, Relocation
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem
from windlass.spec import SecretUse

__all__ = ["Surroundings", "kept_path_note", "surroundings_of", "unknown_path"]

_NETWORK = frozenset({"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"})
_PER_TASK = frozenset({"WANDB_RUN_ID", "CHECKPOINT_OUTPUT_DIR"})
_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Variables and secrets for all tasks, as in an experiment file, and the mapping of paths.

    Attributes:
        own: variables whose values differ by task.
        is_continued: whether `--run-id` names the tracker's run.
    """

    paths: Relocation
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[SecretUse, ...] = ()
    own: frozenset[str] = frozenset()
    is_continued: bool = False
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def task_variables(self, command: MasonCommand, *, is_one: bool) -> dict[str, str]:
        """Return the variables that differ between tasks: the tracker's run id and the checkpoint folder."""
        found = {}
        if "WANDB_RUN_ID" in self.own:
            own = "${run}" if is_one else "${run}-" + command.run_id
            found["WANDB_RUN_ID"] = command.run_id if self.is_continued else own
        if "CHECKPOINT_OUTPUT_DIR" in self.own:
            found["CHECKPOINT_OUTPUT_DIR"] = CHECKPOINTS.token
        return found


def unknown_path(path: str, where: str, place: Destination) -> Problem:
    """Return the problem for a path on Beaker's storage whose path at a site is unknown."""
    folder = "/".join(path.split("/")[:3])
    message = f"`{path}` in {where} is on Beaker's storage, and its path at `{place.name}` is unknown"
    hint = f"--map {folder}=FOLDER"
    if place.kind in ("slurm", "beaker"):
        hint += f", or in the profile of `{place.name}`: brought: {{paths: {{{folder}: FOLDER}}}}"
    return Problem(message, "mason-path", None, hint)


def kept_path_note(path: str, where: str, place: Destination) -> str:
    """Return the note on a path that is kept unchanged."""
    return f"`{path}` in {where} is not changed; if its path at `{place.name}` differs: --map {path}=FOLDER"


def surroundings_of(launch: MasonLaunch, place: Destination) -> Surroundings:
    """Return those of mason's variables that have a meaning at a site."""
    mounts = [each for each in launch.spec["tasks"][0]["datasets"] if each["mountPath"] != _SOCKET]
    asked = tuple(each["mountPath"] for each in mounts) if place.kind == "beaker" else ()
    paths = Relocation(
        paths={"/output": OUT.text, "/stage": CODE.text, **place.paths},
        roots=("/weka", *(mount["mountPath"] for mount in mounts)),
        present=(*place.present, *asked),
    )
    reader = _Reader(launch, place, paths)
    return reader.read(mounts)


@dataclass(slots=True)
class _Reader:
    launch: MasonLaunch
    place: Destination
    paths: Relocation
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, SecretUse] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def read(self, mounts: list[Mapping[str, object]]) -> Surroundings:
        """Read the variables of the first task and the paths of the mounts."""
        said = {name for name, _ in (*self.launch.options.env, *self.launch.options.secret)}
        for variable in self.launch.spec["tasks"][0]["envVars"]:
            name = variable["name"]
            if "secret" in variable:
                self._secret(name, variable["secret"], is_asked=name in said)
            else:
                self._variable(name, variable.get("value", ""), is_asked=name in said)
        self.notes += [
            f"left out, because they refer to {why}: {', '.join(names)}" for why, names in self.left_out.items()
        ]
        self.notes += self._on_mounts(mounts)
        return Surroundings(
            paths=self.paths,
            variables=self.variables,
            secrets=tuple(self.secrets.values()),
            own=frozenset(self.own),
            is_continued=bool(self.launch.own.run_id),
            notes=tuple(self.notes),
            problems=tuple(self.problems),
        )

    def _secret(self, name: str, secret: str, *, is_asked: bool) -> None:
        if name == "BEAKER_TOKEN" and not is_asked and self.place.kind != "beaker":
            self.notes.append("BEAKER_TOKEN is not passed to the tasks: they do not run on Beaker")
            return
        self.secrets[name] = SecretUse(name=name, from_="" if secret == name else secret)

    def _variable(self, name: str, value: str, *, is_asked: bool) -> None:
        strangers = self.paths.strangers(value)
        if is_asked:
            self.variables[name] = self.paths.value(value)
            self.problems += [unknown_path(path, f"--env {name}", self.place) for path in strangers]
            self.notes += [kept_path_note(path, f"--env {name}", self.place) for path in self.paths.kept(value)]
        elif name == "PATH":
            self.notes.append("PATH is the site's, not this shell's")
        elif name in _PER_TASK:
            self.own.add(name)
        elif name in _NETWORK and self.place.kind != "beaker":
            self.left_out.setdefault("Beaker's network", []).append(name)
        elif strangers:
            self.left_out.setdefault("Beaker's storage", []).append(name)
        else:
            self.variables[name] = self.paths.value(value)

    def _on_mounts(self, mounts: list[Mapping[str, object]]) -> Iterator[str]:
        for mount in mounts:
            source, path = mount["source"], str(mount["mountPath"])
            assert isinstance(source, Mapping)  # as mason writes them
            if "beaker" in source and self.paths.strangers(path):
                yield f"the dataset {source['beaker']} of Beaker is not mounted at {path}; --map {path}=FOLDER sets its path at the site"
