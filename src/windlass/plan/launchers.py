"""Launchers: the command and variables of one replica, one function per launcher.

A replica's rank and the leader's address stay tokens (`${rank}`, `${leader.address}`), so all replicas share one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from windlass.plan.command_line import CommandLine, Program, is_python
from windlass.plan.options import Options, scan_options
from windlass.plan.refusal import refusal
from windlass.spec import Command

__all__ = ["LAUNCHERS", "Gang", "Launch"]

_ADDRESS, _PORT, _RANK = "${leader.address}", "${leader.port}", "${rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """What a launcher knows of a task.

    Attributes:
        path: the task's path in the file, for messages.
        command: the user's command; the planner's tokens are already replaced.
        procs_per_node: as the user set it; None: one per GPU, or one.
    """

    path: str
    command: Command
    nodes: int = 1
    gpus: int = 0
    procs_per_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What every replica executes; `${rank}` and `${leader...}` are filled in by its supervisor."""

    argv: tuple[str, ...]
    is_shell: bool
    procs_per_node: int
    env: Mapping[str, str] = field(default_factory=dict)


def launch_none(gang: Gang) -> Launch:
    """One process per node, started as it is; it finds its rank in the variables of `torch.distributed`."""
    env = {
        "RANK": _RANK,
        "WORLD_SIZE": str(gang.nodes),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": _RANK,
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": _PORT,
    }
    if isinstance(gang.command, str):
        return Launch(argv=("/bin/sh", "-c", gang.command), is_shell=True, procs_per_node=1, env=env)
    return Launch(argv=tuple(gang.command), is_shell=False, procs_per_node=1, env=env)


def launch_torchrun(gang: Gang) -> Launch:
    """`torch.distributed.run` on every node, with the static rendezvous.

    Static, not c10d: node ranks are windlass's ranks, MASTER_ADDR is the leader's address and not a host name that may
    not resolve, the one port is the one the leader published, and the agents share their store with the workers. What
    c10d adds, changing membership and restarts across nodes, is what the supervisor does.
    Source: torch 2.13, torch/distributed/run.py and elastic/rendezvous/static_tcp_rendezvous.py.
    """
    line = CommandLine.parse(gang.command, gang.path)
    program, skip, python = _torchrun_program(line, gang)
    options = scan_options(program, program.head + skip, _TORCHRUN_SWITCHES) if skip else Options(start=0, stop=0, found=())
    procs = _torchrun_procs(options, gang)
    for option in options.found:
        _check_torchrun_option(option.name, option.value, gang)
    ours = [python, "-m", "torch.distributed.run", "--nnodes", str(gang.nodes), "--nproc-per-node", str(procs)]
    ours += ["--node-rank", _RANK, "--master-addr", _ADDRESS, "--master-port", _PORT, "--max-restarts", "0"]
    if skip:
        kept = [text for option in options.found if option.name not in _TORCHRUN_OWNED for text in option.texts]
        argv, is_shell = line.replace(program, options.stop, [*ours, *kept])
    else:
        stop, extra = _wrapped(program, gang)
        argv, is_shell = line.replace(program, stop, [*ours, *extra])
    return Launch(argv=argv, is_shell=is_shell, procs_per_node=procs)


_TORCHRUN_SWITCHES = frozenset({"-m", "module", "no-python", "run-path", "standalone", "virtual-local-rank"})
_TORCHRUN_OWNED = frozenset(
    {
        "nnodes",
        "nproc-per-node",
        "node-rank",
        "master-addr",
        "master-port",
        "max-restarts",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "standalone",
        "local-addr",
    }
)


def _torchrun_program(line: CommandLine, gang: Gang) -> tuple[Program, int, str]:
    """The program to start in several processes, how many words are torchrun itself (0: none), the interpreter."""
    found = [(program, skip) for program in line.programs if (skip := _torchrun_words(program, gang))]
    if len(found) == 1:
        program, skip = found[0]
        return program, skip, program.words[program.head].text if skip > 1 else "python"
    if found or len(line.programs) != 1:
        count = "several times" if found else "not at all"
        message = f"{gang.path}.run has several commands and names torchrun {count}"
        raise refusal(message, "launcher-command", "write `torchrun` before the one command that is to run in several processes")
    program = line.programs[0]
    first = program.words[program.head]
    return program, 0, first.text if is_python(first.value) else "python"


def _torchrun_words(program: Program, gang: Gang) -> int:
    first = program.value(0)
    if first.rpartition("/")[2] == "torchrun":
        return 1
    offset = 2 if program.value(1) == "-u" else 1
    if not is_python(first) or program.value(offset) != "-m":
        return 0
    if program.value(offset + 1) == "torch.distributed.launch":
        hint = "use `torchrun`; the script then reads LOCAL_RANK instead of --local-rank"
        raise refusal(f"{gang.path}.run uses torch.distributed.launch", "launcher-command", hint)
    return offset + 2 if program.value(offset + 1) == "torch.distributed.run" else 0


def _torchrun_procs(options: Options, gang: Gang) -> int:
    written = options.value("nproc-per-node")
    if written in ("gpu", "auto") and gang.gpus:
        written = str(gang.gpus)
    return _procs(written, gang, "--nproc-per-node")


def _procs(written: str, gang: Gang, flag: str) -> int:
    default = gang.procs_per_node or gang.gpus or 1
    if not written:
        return default
    if not written.isdecimal() or int(written) < 1:
        message = f"`{flag} {written}` in {gang.path}.run is no number of processes"
        raise refusal(message, "launcher-flag", f"remove it, and set {gang.path}.procs_per_node")
    if gang.procs_per_node not in (None, int(written)):
        message = f"`{flag} {written}` in {gang.path}.run contradicts procs_per_node={gang.procs_per_node}"
        raise refusal(message, "launcher-flag", "keep one of them")
    return int(written)


def _check_torchrun_option(name: str, value: str, gang: Gang) -> None:
    accepted = {"nnodes": (str(gang.nodes), f"{gang.nodes}:{gang.nodes}"), "node-rank": (_RANK,), "master-addr": (_ADDRESS,)}
    accepted |= {"master-port": (_PORT,), "max-restarts": ("0",), "rdzv-backend": ("static",)}
    accepted |= {"rdzv-endpoint": (f"{_ADDRESS}:{_PORT}",), "local-addr": ()}
    if name == "max-restarts" and value != "0":
        _refuse_restarts(name, value, gang)
    if name == "standalone" and gang.nodes > 1:
        hint = "remove it: the leader's address and port are filled in"
        raise refusal(f"`--standalone` in {gang.path}.run contradicts nodes={gang.nodes}", "launcher-flag", hint)
    if name in _TORCHRUN_OWNED - {"nproc-per-node", "standalone"} and value not in accepted.get(name, ()):
        _refuse_owned(f"--{name}", value, gang)


def _refuse_owned(flag: str, value: str, gang: Gang) -> None:
    message = f"`{flag} {value}` in {gang.path}.run is filled in by windlass"
    raise refusal(message, "launcher-flag", f"remove `{flag}` from the command")


def _refuse_restarts(name: str, value: str, gang: Gang) -> None:
    message = f"`--{name} {value}` in {gang.path}.run: attempts are counted by windlass, not by the launcher"
    raise refusal(message, "launcher-flag", f"remove it, and write `retry: {{failed: {value}}}`")


def _wrapped(program: Program, gang: Gang) -> tuple[int, list[str]]:
    """Up to which word torchrun's own words replace the command, and what must follow them."""
    head = program.head
    if not is_python(program.value(0)):
        return head + 1, ["--no-python", program.words[head].text]
    offset = 2 if program.value(1) == "-u" else 1
    if not program.value(offset):
        raise refusal(f"{gang.path}.run starts python without a script", "launcher-command", "write `python train.py`")
    if program.value(offset) == "-m":
        return head + offset, []
    if program.value(offset).startswith("-"):
        return head + 1, ["--no-python", program.words[head].text]
    return head + offset, []


def launch_accelerate(gang: Gang) -> Launch:
    """`accelerate launch` with machines, rank, address, port and the processes of all nodes filled in.

    `--num_processes N` counts one node, as in the commands people already have, and is multiplied by the nodes.
    Source: accelerate 1.x, commands/launch.py and utils/launch.py.
    """
    line = CommandLine.parse(gang.command, gang.path)
    found = [(program, skip) for program in line.programs if (skip := _accelerate_words(program))]
    if len(found) != 1:
        count = "several" if found else "no"
        message = f"{gang.path}.run has {count} `accelerate launch`"
        raise refusal(message, "launcher-command", "write `accelerate launch train.py` once; the rest is filled in")
    program, skip = found[0]
    options = scan_options(program, program.head + skip, _ACCELERATE_SWITCHES)
    procs = _procs(options.value("num-processes"), gang, "--num_processes")
    _check_accelerate(options, procs, gang)
    ours = [word.text for word in program.words[program.head : program.head + skip]]
    ours += ["--num_machines", str(gang.nodes), "--machine_rank", _RANK, "--main_process_ip", _ADDRESS]
    ours += ["--main_process_port", _PORT, "--num_processes", str(procs * gang.nodes)]
    ours += _accelerate_mode(options, procs, gang)
    kept = [text for option in options.found if option.name not in _ACCELERATE_OWNED for text in option.texts]
    argv, is_shell = line.replace(program, options.stop, [*ours, *kept])
    return Launch(argv=argv, is_shell=is_shell, procs_per_node=procs)


_ACCELERATE_SWITCHES = frozenset(
    {
        "-m",
        "-q",
        "cpu",
        "debug",
        "downcast-bf16",
        "dynamo-use-dynamic",
        "dynamo-use-fullgraph",
        "dynamo-use-regional-compilation",
        "enable-cpu-affinity",
        "fp8-use-autocast-during-eval",
        "ipex",
        "module",
        "multi-gpu",
        "no-python",
        "no-tpu-cluster",
        "quiet",
        "same-network",
        "tpu",
        "tpu-cluster",
        "tpu-use-sudo",
        "use-deepspeed",
        "use-fsdp",
        "use-megatron-lm",
        "use-parallelism-config",
        "use-xpu",
    }
)
_ACCELERATE_MODES = frozenset(
    {"multi-gpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-xpu", "config-file", "mpirun-hostfile"}
)
_ACCELERATE_OWNED = frozenset({"num-machines", "machine-rank", "main-process-ip", "main-process-port", "num-processes"})


def _accelerate_words(program: Program) -> int:
    first = program.value(0).rpartition("/")[2]
    if first == "accelerate" and program.value(1) == "launch":
        return 2
    if first == "accelerate-launch":
        return 1
    is_module = is_python(first) and program.value(1) == "-m" and program.value(2) == "accelerate.commands.launch"
    return 3 if is_module else 0


def _check_accelerate(options: Options, procs: int, gang: Gang) -> None:
    accepted = {"num-machines": str(gang.nodes), "machine-rank": _RANK, "main-process-ip": _ADDRESS, "main-process-port": _PORT}
    for option in options.found:
        if option.name in accepted and option.value != accepted[option.name]:
            _refuse_owned("--" + option.name.replace("-", "_"), option.value, gang)
        if option.name == "max-restarts" and option.value != "0":
            _refuse_restarts("max_restarts", option.value, gang)
    if procs * gang.nodes > 1 and not gang.gpus and not options.names & _ACCELERATE_MODES:
        message = f"accelerate starts one process per node without GPUs, and {gang.path} asks for {procs * gang.nodes} that belong together"
        hint = "use `cluster: torchrun` with the script itself: accelerate finds torchrun's variables"
        raise refusal(message, "launcher-command", hint)


def _accelerate_mode(options: Options, procs: int, gang: Gang) -> list[str]:
    """What accelerate would otherwise guess from this node's own GPUs or from a host file."""
    if "use-deepspeed" in options.names:
        is_needed = gang.nodes > 1 and "deepspeed-multinode-launcher" not in options.names
        return ["--deepspeed_multinode_launcher", "standard"] if is_needed else []
    is_plain = not options.names & (_ACCELERATE_MODES | {"cpu"})
    return ["--multi_gpu"] if is_plain and procs * gang.nodes > 1 else []


def launch_unsupported(gang: Gang) -> Launch:
    """A launcher that this version does not have; refused, never dropped in silence."""
    hint = f"use `cluster: torchrun`, `accelerate` or `none`: --on local {gang.path}.cluster=none"
    raise refusal(f"{gang.path}.cluster needs a launcher that the local backend does not have yet", "launcher-unsupported", hint)


LAUNCHERS: Mapping[str, Callable[[Gang], Launch]] = {
    "none": launch_none,
    "torchrun": launch_torchrun,
    "accelerate": launch_accelerate,
}
