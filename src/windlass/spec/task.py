"""Step of an experiment: command, resources, launcher and supervision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Literal, TypeAlias

from windlass.config.annotations import Diagnostic, Doc, DurationText, JsonValue, Name, OneOrMany, Range, SizeText
from windlass.core.dataclass import dataclass
from windlass.spec.command import Command
from windlass.spec.variables import Variables

__all__ = ["BestCheckpoint", "Bundle", "Checkpoints", "Evaluate", "Gpus", "Number", "Stall", "Task"]

_EXPRESSION = re.compile(r"\$\{[^{}]+\}")

Number: TypeAlias = int | str
"""Whole number, or an expression of the task's shape and parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Number of equal bundles of GPUs and CPUs, each on one node; `plan` checks that they fit."""

    count: Annotated[Number, Doc("Number of bundles, such as `${num_gpus - 2 * nodes}`.")] = 1
    gpus: Annotated[Number, Doc("GPUs per bundle, such as the tensor-parallel size.")] = 0
    cpus: Annotated[Number, Doc("CPUs per bundle.")] = 0
    strategy: Annotated[
        Literal["pack", "spread", "strict-pack", "strict-spread"],
        Doc("Placement: `strict-pack` on one node, `strict-spread` on as many nodes as there are bundles."),
    ] = "pack"

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        for key in ("count", "gpus", "cpus"):
            value = getattr(self, key)
            if isinstance(value, str) and not _EXPRESSION.fullmatch(value):
                hint = "write a number, or calculate it: `${2 * nodes}`"
                yield key, f"`{value}` is neither a whole number nor one expression", "invalid-value", hint
            elif isinstance(value, int) and value < 0:
                yield key, f"{value} is too small", "invalid-value", "write a number from 0, or an expression"
        if self.gpus == 0 and self.cpus == 0:
            yield "", "the bundle requests neither GPUs nor CPUs", "invalid-value", "write `gpus: 1`, or remove it"


_GPUS = re.compile(r"\s*(\d{1,6})\s*(?:x\s*([A-Za-z0-9][A-Za-z0-9._-]*))?\s*\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """GPUs of one node: number and type."""

    count: Annotated[int, Range(min=0, max=1024), Doc("GPUs per node.")]
    type: Annotated[str, Doc("Type, such as `gh200`; empty takes any.")] = ""

    @classmethod
    def from_shorthand(cls, value: int | str) -> Gpus:
        """Read the short forms `4` and `4 x gh200`."""
        if isinstance(value, int):
            return cls(count=value)
        match = _GPUS.match(value)
        if match is None:
            raise ValueError("write the number of GPUs per node, optionally with a type: `4` or `4 x gh200`")
        return cls(count=int(match.group(1)), type=match.group(2) or "")

    def to_shorthand(self) -> str | int | None:
        """Return the short form, or None if there is none."""
        if not self.type:
            return self.count
        text = f"{self.count} x {self.type}"
        return text if _GPUS.match(text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Checkpoint interval, resuming, and the name pattern of checkpoints."""

    every: Annotated[
        float | None,
        DurationText(),
        Range(min=1),
        Doc("Interval between checkpoints, applied by `report.should_checkpoint()`."),
    ] = None
    resume: Annotated[Literal["latest", "none"], Doc("Starting point of the next attempt.")] = "latest"
    pattern: Annotated[str, Doc("Names below ${checkpoints} that show progress, such as `step_*`.")] = ""

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        parts = self.pattern.split("/")
        hint = "write a pattern of names below ${checkpoints}, such as `step_*` or `*/model.pt`"
        if self.pattern.startswith("/") or ".." in parts:
            yield (
                "pattern",
                f"the pattern `{self.pattern}` points outside the folder of checkpoints",
                "invalid-value",
                hint,
            )
        elif any("**" in part and part != "**" for part in parts) or (self.pattern and not any(parts)):
            yield "pattern", f"invalid pattern `{self.pattern}`", "invalid-value", hint
        elif "\0" in self.pattern or parts[-1:] == ["**"] or set(parts) == {"."}:
            yield "pattern", f"the pattern `{self.pattern}` matches no names", "invalid-value", hint


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """Best checkpoint by a metric of the task that published it."""

    metric: Annotated[str, Doc("Name of a metric that the code reports, such as `eval/loss`.")]
    mode: Annotated[Literal["min", "max"], Doc("Best value: the smallest or the largest.")] = "min"

    @classmethod
    def from_shorthand(cls, value: str) -> BestCheckpoint:
        """Read the short form `eval/loss`, of which the smallest value is the best."""
        return cls(metric=value)

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        if not self.metric:
            yield "metric", "`metric` is empty", "invalid-value", "write the name of a metric, such as `eval/loss`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Checkpoints of another task that this task evaluates, each in an attempt of its own, while that task goes on."""

    of: Annotated[str, Doc("Task whose checkpoints are evaluated.")]
    every: Annotated[int | None, Range(min=1), Doc("Evaluate every Nth checkpoint.")] = None
    best: Annotated[
        BestCheckpoint | None, Doc("Evaluate the best checkpoint by a metric of `of`, once `of` has succeeded.")
    ] = None
    last: Annotated[bool, Doc("Evaluate the last checkpoint, once `of` has succeeded.")] = False
    max_waiting: Annotated[int, Range(min=1), Doc("If more checkpoints wait, the oldest are skipped.")] = 8
    partition: Annotated[str, Doc("Another partition of the run's site for this task.")] = ""
    priority: Annotated[
        Literal["", "low", "normal", "high", "urgent"], Doc("Priority of this task; default: the run's.")
    ] = ""

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        if not (self.every or self.best or self.last):
            hint = "add `every: 2`, `best: METRIC` or `last: true`"
            yield "", "`evaluate` selects no checkpoint", "invalid-value", hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Settings of stall detection, which is based on silence."""

    floor: Annotated[
        float, DurationText(), Range(min=1), Doc("Minimum time without output or progress before a stall is reported.")
    ] = 60.0
    enabled: Annotated[bool, Doc("End stalled attempts.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Named step: a gang of replicas, one per node, that start and end together."""

    run: Annotated[Command, Doc("A line for /bin/sh, or a list of arguments, such as `[bash, -c, LINE]`.")]
    after: Annotated[tuple[str, ...], OneOrMany(), Doc("Tasks that must succeed before this one starts.")] = ()
    nodes: Annotated[
        int | None,
        Range(min=1, max=10_000),
        Doc("Number of nodes, one replica each. Default: 1, or as many as `total_gpus` needs."),
    ] = None
    gpus: Annotated[Gpus | None, Doc("GPUs per node: `4` or `4 x gh200`.")] = None
    total_gpus: Annotated[int | None, Range(min=1), Doc("GPUs of the whole gang, instead of `gpus`.")] = None
    cpus: Annotated[float | None, Range(above=0), Doc("CPU cores per node.")] = None
    memory: Annotated[int | None, SizeText(), Range(min=1), Doc("Memory per node.")] = None
    shared_memory: Annotated[int | None, SizeText(), Range(min=1), Doc("Shared memory per node.")] = None
    disk: Annotated[int | None, SizeText(), Range(min=1), Doc("Scratch disk per node.")] = None
    hosts: Annotated[tuple[str, ...], OneOrMany(), Doc("Only these hosts.")] = ()
    features: Annotated[tuple[str, ...], OneOrMany(), Doc("Features that every node must have.")] = ()
    cluster: Annotated[
        Literal["none", "torchrun", "accelerate", "srun", "mpi", "ray"],
        Doc("Launcher that starts `run` on the nodes."),
    ] = "none"
    procs_per_node: Annotated[int | None, Range(min=1), Doc("Processes per node; default: one per GPU, or 1.")] = None
    bundles: Annotated[
        Mapping[Annotated[str, Name(is_dotted=False)], Bundle],
        Doc("Bundles that the task itself places on its nodes, in this order; `plan` checks that they fit."),
    ] = field(default_factory=dict)
    vars: Annotated[Variables, Doc("Environment variables of this task.")] = field(default_factory=dict)
    checkpoints: Annotated[Checkpoints, Doc("Saving and resuming.")] = Checkpoints()
    evaluate: Annotated[
        Evaluate | None, Doc("Makes the task evaluate checkpoints of another task, once for each of them.")
    ] = None
    stall: Annotated[Stall, Doc("Stall watchdog.")] = Stall()
    ready_timeout: Annotated[float, DurationText(), Range(min=1), Doc("Maximum wait until all replicas are ready.")] = (
        600.0
    )
    grace: Annotated[float, DurationText(), Range(min=0), Doc("Time between TERM and KILL.")] = 30.0
    compat: Annotated[
        tuple[Literal["beaker"], ...], OneOrMany(), Doc("Variables of other systems to set as well.")
    ] = ()
    beaker: Annotated[
        Mapping[str, JsonValue], Doc("Keys of a task in Beaker's spec without an equivalent here, only for Beaker.")
    ] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes, which is 1 by default."""
        return self.nodes or 1

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs per node; 0 if none are requested."""
        return self.gpus.count if self.gpus is not None else 0

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        if not self.run:
            yield "run", "`run` is empty", "invalid-value", "write the command, such as `python train.py`"
        if self.total_gpus is not None and self.gpus is not None:
            hint = "keep `gpus` (per node) or `total_gpus` (of all nodes together)"
            yield "total_gpus", "both `gpus` and `total_gpus` are set", "conflicting-options", hint
        if self.procs_per_node is not None and self.cluster in ("none", "ray"):
            message = f"`procs_per_node` has no effect with `cluster: {self.cluster}`"
            yield (
                "procs_per_node",
                message,
                "setting-unused",
                "use `cluster: torchrun` or `cluster: accelerate`, or remove it",
            )
