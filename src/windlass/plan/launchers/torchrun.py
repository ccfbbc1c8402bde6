"""Launcher `torchrun`: runs the user's command with `torch.distributed.run` on every node."""

from __future__ import annotations

from windlass.plan.diagnostics import spec_error
from windlass.plan.launchers.context import (
    ADDRESS,
    PORT,
    RANK,
    Launch,
    LaunchContext,
    num_procs,
    refuse_owned,
    refuse_restarts,
)
from windlass.plan.launchers.options import LauncherOptions, scan_options
from windlass.plan.tokens.command_line import ShellLine, ShellProgram, is_python

__all__ = ["launch_torchrun"]


def launch_torchrun(context: LaunchContext) -> Launch:
    """Start `torch.distributed.run` on every node, with a static rendezvous.

    The rendezvous is static, not c10d: node ranks are windlass's ranks, MASTER_ADDR is the leader's address and not a
    host name that may not resolve, the only port is the one that the leader published, and the agents share their store
    with the workers. What c10d adds (elastic membership, restarts across nodes) is the supervisor's task.
    Source: torch 2.13, torch/distributed/run.py and elastic/rendezvous/static_tcp_rendezvous.py.
    """
    line = ShellLine.parse(context.command, context.path)
    program, skip, python = _torchrun_program(line, context)
    options = (
        scan_options(program, program.head + skip, _TORCHRUN_SWITCHES)
        if skip
        else LauncherOptions(start=0, stop=0, found=())
    )
    if skip and options.stop >= len(program.words):
        raise spec_error(
            f"{context.path}.run starts torchrun without a script", "launcher-command", "write `torchrun train.py`"
        )
    procs = _torchrun_procs(options, context)
    for option in options.found:
        _check_torchrun_option(option.name, option.value, context)
    ours = [python, "-m", "torch.distributed.run", "--nnodes", str(context.shape.nodes), "--nproc-per-node", str(procs)]
    ours += ["--node-rank", RANK, "--master-addr", ADDRESS, "--master-port", PORT, "--max-restarts", "0"]
    if skip:
        kept = [text for option in options.found if option.name not in _TORCHRUN_OWNED for text in option.texts]
        argv, is_shell = line.replace(program, options.stop, [*ours, *kept])
    else:
        stop, extra = _wrapped(program, context)
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


def _torchrun_program(line: ShellLine, context: LaunchContext) -> tuple[ShellProgram, int, str]:
    """Return the program, the number of words that call torchrun (0 if none), and the interpreter."""
    found = [(program, skip) for program in line.programs if (skip := _torchrun_words(program, context))]
    if len(found) == 1:
        program, skip = found[0]
        return program, skip, program.words[program.head].text if skip > 1 else "python"
    if not line.programs:
        raise spec_error(f"{context.path}.run contains no command", "launcher-command", "write `python train.py`")
    if found or len(line.programs) != 1:
        count = "several times" if found else "not at all"
        message = f"{context.path}.run has several commands and names torchrun {count}"
        raise spec_error(
            message, "launcher-command", "write `torchrun` before the command that should run in several processes"
        )
    program = line.programs[0]
    first = program.words[program.head]
    return program, 0, first.text if is_python(first.value) else "python"


def _torchrun_words(program: ShellProgram, context: LaunchContext) -> int:
    first = program.value(0)
    if first.rpartition("/")[2] == "torchrun":
        return 1
    offset = 2 if program.value(1) == "-u" else 1
    if not is_python(first) or program.value(offset) != "-m":
        return 0
    if program.value(offset + 1) == "torch.distributed.launch":
        hint = "use `torchrun`; the script then reads LOCAL_RANK instead of --local-rank"
        raise spec_error(f"{context.path}.run uses torch.distributed.launch", "launcher-command", hint)
    return offset + 2 if program.value(offset + 1) == "torch.distributed.run" else 0


def _torchrun_procs(options: LauncherOptions, context: LaunchContext) -> int:
    written = options.value("nproc-per-node")
    if written in ("gpu", "auto") and context.shape.gpus:
        written = str(context.shape.gpus)
    return num_procs(written, context, "--nproc-per-node")


def _check_torchrun_option(name: str, value: str, context: LaunchContext) -> None:
    accepted = {
        "nnodes": (str(context.shape.nodes), f"{context.shape.nodes}:{context.shape.nodes}"),
        "node-rank": (RANK,),
        "master-addr": (ADDRESS,),
    }
    accepted |= {"master-port": (PORT,), "max-restarts": ("0",), "rdzv-backend": ("static",)}
    accepted |= {"rdzv-endpoint": (f"{ADDRESS}:{PORT}",), "local-addr": ()}
    if name == "max-restarts" and value != "0":
        refuse_restarts(name, value, context)
    if name == "standalone" and context.shape.nodes > 1:
        hint = "remove it: windlass sets the leader's address and port"
        raise spec_error(
            f"`--standalone` in {context.path}.run contradicts nodes={context.shape.nodes}", "launcher-command", hint
        )
    if name in _TORCHRUN_OWNED - {"nproc-per-node", "standalone"} and value not in accepted.get(name, ()):
        refuse_owned(f"--{name}", value, context)


def _wrapped(program: ShellProgram, context: LaunchContext) -> tuple[int, list[str]]:
    """Return where the replaced words end, and the words that must follow torchrun's."""
    head = program.head
    if not is_python(program.value(0)):
        return head + 1, ["--no-python", program.words[head].text]
    offset = 2 if program.value(1) == "-u" else 1
    if not program.value(offset):
        raise spec_error(
            f"{context.path}.run starts python without a script", "launcher-command", "write `python train.py`"
        )
    if program.value(offset) == "-m":
        return head + offset, []
    if program.value(offset).startswith("-"):
        return head + 1, ["--no-python", program.words[head].text]
    return head + offset, []
