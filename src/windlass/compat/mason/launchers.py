"""Conversion of commands that start processes on several nodes: Ray, accelerate or torchrun.

Beaker starts the same shell line on every replica. The line finds the other replicas itself: with flags that contain
BEAKER_* variables, or with a script that is sourced first and starts Ray. At other sites windlass replaces both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import field

from windlass.compat.to_experiment.bash_line import BashCommand, BashFlag, BashLine
from windlass.compat.to_experiment.relocation import escaped
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem, SpecError

__all__ = ["LaunchedLine", "RequestedNodes", "start_line"]

_RAY_SETUP = re.compile(r"(?:.*/)?ray_node_setup[A-Za-z0-9_.-]*\Z")
_RAY_VARIABLES = {"PYTHONPATH": "${code}", "REPO_PATH": "${code}", "NCCL_CUMEM_ENABLE": "0"}
"""Variables that the setup script sets for the training; source: configs/beaker_configs/ray_node_setup.sh of open-instruct."""

_OWNED = {
    "accelerate": frozenset({"num-machines", "machine-rank", "main-process-ip", "main-process-port"}),
    "torchrun": frozenset(
        {"nnodes", "node-rank", "master-addr", "master-port", "max-restarts", "local-addr"}
        | {"rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"}
    ),
}
_SWITCHES = {"accelerate": frozenset[str](), "torchrun": frozenset({"standalone"})}
_PROCS = {"accelerate": "num-processes", "torchrun": "nproc-per-node"}
_FILLED = {
    "accelerate": "--num_machines $WINDLASS_NUM_REPLICAS --machine_rank $WINDLASS_RANK "
    "--main_process_ip $WINDLASS_LEADER_ADDRESS --main_process_port $WINDLASS_LEADER_PORT "
    "--num_processes $((WINDLASS_NUM_REPLICAS * {procs}))",
    "torchrun": "--nnodes $WINDLASS_NUM_REPLICAS --node_rank $WINDLASS_RANK "
    "--master_addr $WINDLASS_LEADER_ADDRESS --master_port $WINDLASS_LEADER_PORT --nproc_per_node {procs}",
}
"""Flags with values from windlass's variables, for lines that need a shell."""
_GPUS = "$WINDLASS_NUM_GPUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedNodes:
    """Number of nodes and of GPUs per node that a line was written for.

    `there` is the number of GPUs per node at the site, or None if unknown.
    """

    nodes: int
    gpus: int
    there: int | None = None
    splits_learners: bool = False
    """Rewrite `--num_learners_per_node` for smaller nodes instead of rejecting it."""

    @property
    def is_reshaped(self) -> bool:
        """Return True if the same number of GPUs is spread over more nodes at the site."""
        return bool(self.there) and self.gpus > (self.there or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedLine:
    """Converted line with its launcher, and the variables that the launcher needs.

    Attributes:
        vars: values as in an experiment file (`${code}`).
        is_placed: whether windlass gives the processes the addresses of the other nodes.
    """

    line: BashLine
    cluster: str = "none"
    is_placed: bool = False
    vars: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def start_line(line: BashLine, asked: RequestedNodes) -> LaunchedLine:
    """Detect the launcher in a line, and remove what windlass does itself.

    Raises:
        SpecError: the setup of Ray cannot be removed, or sizes in the line do not fit the nodes.
    """
    setup = next(_ray_setups(line), None)
    if setup is not None:
        return _start_ray(line, setup, asked)
    notes: tuple[str, ...] = ()
    spots = [spot for index in range(len(line.commands)) if (spot := _spot(line, index)) is not None]
    for spot in reversed(spots):
        line, procs, note = _stripped(line, spot, asked)
        notes = (*note, *notes)
        is_whole = len(spots) == 1 and spot.word == 0 and line.argv is not None
        if is_whole:
            line = _with_procs(line, spot, procs)
            return LaunchedLine(line=line, cluster=spot.launcher, is_placed=True, notes=notes)
        words = _FILLED[spot.launcher].format(procs=procs or (_GPUS if asked.gpus else 1))
        line = line.insert(line.commands[spot.index].words[spot.last].end, words)
    return LaunchedLine(line=line, is_placed=bool(spots), notes=notes)


# --- Ray ----------------------------------------------------------------------------------------------------------


def _ray_setups(line: BashLine) -> Iterator[int]:
    for index, called in enumerate(line.commands):
        if called.value(0) in ("source", ".") and _RAY_SETUP.match(called.value(1)):
            yield index


def _start_ray(line: BashLine, index: int, asked: RequestedNodes) -> LaunchedLine:
    script = line.commands[index].value(1)
    is_followed = index + 1 < len(line.commands) and line.joint(index) in ("&&", ";", "")
    if not is_followed:
        hint = f"write `source {script} && python train.py`; windlass starts Ray itself"
        raise SpecError([Problem(f"no separate command follows `source {script}`", "mason-usage", None, hint)])
    pairs = (word.value.partition("=") for word in line.commands[index].assignments)
    lifted = {name: escaped(value) for name, _, value in pairs}
    notes = [f"`source {script}` is removed: `cluster: ray` starts Ray on all nodes and stops it after the training"]
    if index and asked.nodes > 1:
        notes.append("commands before it run only on the first node; on Beaker they run on every node")
    line, split = _fit_ray_sizes(line.without_command(index), asked)
    notes += split
    variables = {**_RAY_VARIABLES, **lifted}
    return LaunchedLine(line=line, cluster="ray", is_placed=True, vars=variables, notes=tuple(notes))


def _fit_ray_sizes(line: BashLine, asked: RequestedNodes) -> tuple[BashLine, list[str]]:
    """Return the line with numbers of learners that fit the nodes, and notes.

    Raises:
        SpecError: learners or engines need more GPUs than a node has, and the learners may not be split.
    """
    if not asked.is_reshaped:
        return line, []
    there, notes = asked.there or 0, []
    for index in range(len(line.commands)):
        sizes = _sizes(line.commands[index], "vllm-tensor-parallel-size")
        if any(size > there for size in sizes.numbers):
            hint = f"--vllm_tensor_parallel_size {there}, and a larger --vllm_num_engines"
            raise _refusal("--vllm_tensor_parallel_size " + _said(sizes.numbers), there, f"write {hint}")
        sizes = _sizes(line.commands[index], "num-learners-per-node")
        if any(size > there for size in sizes.numbers):
            fits = [part for size in sizes.numbers for part in _parts(size, there)]
            before, after = ("--num_learners_per_node " + _said(each) for each in (sizes.numbers, fits))
            if not asked.splits_learners:
                raise _refusal(before, there, f"write {after}, or pass --split-learners before the `--`")
            line = line.replace(sizes.start, sizes.end, after)
            notes.append(f"`{before}` becomes `{after}` (--split-learners)")
    return line, notes


def _parts(size: int, there: int) -> list[int]:
    """Return the numbers of learners after splitting one node's over nodes with `there` GPUs."""
    return [there] * (size // there) + [size % there] * (size % there > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Integers that follow a flag; `start` and `end` are offsets in the line, of the flag and after the numbers."""

    numbers: list[int] = field(default_factory=list)
    start: int = 0
    end: int = 0


def _sizes(called: BashCommand, name: str) -> _Sizes:
    for index, word in enumerate(called.words):
        flag, equals, value = word.value.partition("=")
        if flag.replace("_", "-") != f"--{name}":
            continue
        words = (
            [] if equals else list(itertools.takewhile(lambda each: each.value.isdecimal(), called.words[index + 1 :]))
        )
        texts = [value] if equals and value.isdecimal() else [each.value for each in words]
        return _Sizes(numbers=[int(text) for text in texts], start=word.start, end=(words[-1] if words else word).end)
    return _Sizes()


def _said(sizes: list[int]) -> str:
    return " ".join(map(str, sizes))


def _refusal(flag: str, there: int, hint: str) -> SpecError:
    message = f"`{flag}` needs more than the {there} GPUs per node of the site"
    return SpecError([Problem(message, "does-not-fit", None, hint)])


# --- accelerate and torchrun --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spot:
    """Position of a launcher in a line: index of the command, and of the launcher's first and last words."""

    launcher: str
    index: int
    word: int
    last: int


def _spot(line: BashLine, index: int) -> _Spot | None:
    words = line.commands[index].words
    for at, word in enumerate(words):
        name = word.value.rpartition("/")[2]
        if name == "accelerate" and line.commands[index].value(at + 1) == "launch":
            return _Spot(launcher="accelerate", index=index, word=at, last=at + 1)
        if name in ("accelerate-launch", "torchrun"):
            return _Spot(launcher=name.partition("-")[0], index=index, word=at, last=at)
        if name.endswith(".py"):
            return None
    return None


def _stripped(line: BashLine, spot: _Spot, asked: RequestedNodes) -> tuple[BashLine, int, tuple[str, ...]]:
    """Return the line without the flags that windlass sets, the processes per node, and notes.

    The number of processes is 0 if there is one per GPU.
    """
    called = line.commands[spot.index]
    start = spot.last + 1
    owned = called.flags(_OWNED[spot.launcher], switches=_SWITCHES[spot.launcher], start=start)
    counts = [
        flag
        for flag in called.flags([_PROCS[spot.launcher]], start=start)
        if flag.value.isdecimal() and int(flag.value)
    ]
    procs = _procs_of(spot.launcher, counts[-1], owned, asked) if counts else 0
    _check_nodes(spot.launcher, owned, asked)
    notes: tuple[str, ...] = ()
    if owned:
        said = ", ".join(dict.fromkeys("--" + flag.name.replace("-", "_") for flag in owned))
        notes = (f"{spot.launcher}: windlass sets {said}",)
    if spot.launcher == "torchrun" and asked.nodes > 1 and "nnodes" not in {flag.name for flag in owned}:
        notes += (
            f"torchrun: the {asked.nodes} nodes train together; on Beaker, without --nnodes, each would train alone",
        )
    return line.without([*owned, *counts]), 0 if procs == asked.gpus else procs, notes


def _procs_of(launcher: str, count: BashFlag, owned: list[BashFlag], asked: RequestedNodes) -> int:
    """Return the number of processes per node.

    With --num_machines, accelerate's flag counts the processes on all nodes.
    """
    number = int(count.value)
    machines = next((flag.value for flag in owned if flag.name == "num-machines"), "")
    if launcher == "accelerate" and machines and asked.nodes > 1 and number % asked.nodes == 0:
        number //= asked.nodes
    if asked.is_reshaped and number != asked.gpus:
        message = f"the command starts {number} processes on each of {asked.nodes} nodes of {asked.gpus} GPUs"
        there = asked.there or 1
        hint = f"the site's nodes have {there} GPUs: write --gpus {there} --num_nodes {-(-asked.nodes * asked.gpus // there)}"
        raise SpecError(
            [Problem(f"{message}, which cannot be distributed over nodes of another size", "does-not-fit", None, hint)]
        )
    return number


def _check_nodes(launcher: str, owned: list[BashFlag], asked: RequestedNodes) -> None:
    name = "nnodes" if launcher == "torchrun" else "num-machines"
    for flag in owned:
        lowest = flag.value.partition(":")[0]
        if flag.name == name and lowest.isdecimal() and int(lowest) != asked.nodes:
            message = f"`--{name.replace('-', '_')} {flag.value}` contradicts --num_nodes {asked.nodes}"
            raise SpecError([Problem(message, "does-not-fit", None, f"remove it, or write --num_nodes {lowest}")])


def _with_procs(line: BashLine, spot: _Spot, procs: int) -> BashLine:
    """Return the line with a flag for the number of processes per node, unless it is one per GPU."""
    if not procs:
        return line
    flag = "--num_processes" if spot.launcher == "accelerate" else "--nproc_per_node"
    return line.insert(line.commands[spot.index].words[spot.last].end, f"{flag} {procs}")
