"""Experiment as declared by the user: code, environment, data, parameters, tasks and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Annotated, ClassVar

from windlass.config.annotations import Diagnostic, Doc, JsonValue, Name, OneOrMany, Pattern
from windlass.core.errors import Problem, SourcePlace, SpecError
from windlass.spec.command import Command
from windlass.spec.data import DataSource
from windlass.spec.env import Env
from windlass.spec.limits import Context, Limit, Retain, Retry
from windlass.spec.references import check_after, check_data, check_evaluate, check_variables
from windlass.spec.sweep import Sweep
from windlass.spec.task import Task

__all__ = ["Experiment"]

_ParameterName = Annotated[
    str,
    Pattern(
        "[A-Za-z_][A-Za-z0-9_-]*",
        "a parameter's name consists of letters, digits, '_' and '-', the first a letter or '_'",
        "invalid-name",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Experiment as declared, before anything is resolved or pinned.

    Attributes with tuple and mapping types contain the long form, however it was written: `where: lab` is `("lab",)`,
    and a top-level `run` is `tasks["main"].run`.
    """

    KEY_SHORTHANDS: ClassVar[Mapping[str, str]] = {"run": "tasks.main.run"}

    name: Annotated[str, Name(), Doc("Name of the experiment; runs are called NAME-xxxxxxxx.")]
    why: Annotated[str, Doc("The question it answers; shown wherever the run is shown.")] = ""
    code: Annotated[str, Doc("Folder of the code, pinned to a commit.")] = "."
    env: Annotated[Env, Doc("Image or lock file, variables, secrets.")] = Env()
    data: Annotated[Mapping[Annotated[str, Name(is_dotted=False)], DataSource], Doc("Inputs by name.")] = field(
        default_factory=dict
    )
    params: Annotated[Mapping[_ParameterName, JsonValue], Doc("Parameters, used as ${params.NAME}.")] = field(
        default_factory=dict
    )
    tasks: Annotated[Mapping[Annotated[str, Name(is_dotted=False)], Task], Doc("Steps by name.")] = field(
        default_factory=dict
    )
    where: Annotated[
        tuple[str, ...], OneOrMany(), Doc("A site, a partition of it (`isambard/gpu`), or several to choose from.")
    ] = ("local",)
    context: Annotated[Context, Doc("Priority, preemption, account, group.")] = Context()
    limit: Annotated[Limit, Doc("Time, jobs and GPU-hours.")] = Limit()
    retry: Annotated[Retry, Doc("Number of restarts of a task.")] = Retry()
    retain: Annotated[Retain, Doc("Files that `windlass gc` keeps after a run has ended.")] = Retain()
    sweep: Annotated[Sweep | None, Doc("A search over settings, for `windlass sweep launch`.")] = None
    beaker: Annotated[
        Mapping[str, JsonValue], Doc("Keys of Beaker's spec without an equivalent here, only for Beaker.")
    ] = field(default_factory=dict)
    run: InitVar[Command | None] = None

    def __post_init__(self, run: Command | None) -> None:
        """Convert the `run` of `Experiment(name=..., run=...)` to a task named `main`."""
        if run is None:
            return
        if self.tasks:
            hint = "`run` is short for `tasks.main.run`; keep one of them"
            raise SpecError(
                [Problem("both `run` and `tasks` are set", "conflicting-options", SourcePlace("<python>"), hint)]
            )
        object.__setattr__(self, "tasks", {"main": Task(run=run)})

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        if not self.tasks:
            yield (
                "tasks",
                "the experiment has no task",
                "no-tasks",
                "add `run: COMMAND`, or `tasks: {NAME: {run: COMMAND}}`",
            )
        if not self.where:
            yield "where", "`where` names no site", "invalid-value", "write `where: local`, or remove it"
        yield from check_after(self.tasks)
        yield from check_evaluate(self.tasks)
        yield from check_data(self.data)
        yield from check_variables(self.tasks, self.env)
