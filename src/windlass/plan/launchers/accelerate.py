"""Launcher `accelerate`: adds the multi-node options to the user's `accelerate launch`."""

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

__all__ = ["launch_accelerate"]


def launch_accelerate(context: LaunchContext) -> Launch:
    """Add the number of machines, rank, address, port and number of processes to `accelerate launch`.

    `--num_processes N` counts one node, as in existing single-node commands, and is multiplied by the number of nodes.
    Source: accelerate 1.x, commands/launch.py and utils/launch.py.
    """
    line = ShellLine.parse(context.command, context.path)
    found = [(program, skip) for program in line.programs if (skip := _accelerate_words(program))]
    if len(found) != 1:
        count = "several" if found else "no"
        message = f"{context.path}.run has {count} `accelerate launch`"
        raise spec_error(message, "launcher-command", "write `accelerate launch train.py` once; windlass adds the rest")
    program, skip = found[0]
    options = scan_options(program, program.head + skip, _ACCELERATE_SWITCHES)
    procs = num_procs(options.value("num-processes"), context, "--num_processes")
    _check_accelerate(options, procs, context)
    ours = [word.text for word in program.words[program.head : program.head + skip]]
    ours += ["--num_machines", str(context.shape.nodes), "--machine_rank", RANK, "--main_process_ip", ADDRESS]
    ours += ["--main_process_port", PORT, "--num_processes", str(procs * context.shape.nodes)]
    ours += _accelerate_mode(options, procs, context)
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


def _accelerate_words(program: ShellProgram) -> int:
    first = program.value(0).rpartition("/")[2]
    if first == "accelerate" and program.value(1) == "launch":
        return 2
    if first == "accelerate-launch":
        return 1
    is_module = is_python(first) and program.value(1) == "-m" and program.value(2) == "accelerate.commands.launch"
    return 3 if is_module else 0


def _check_accelerate(options: LauncherOptions, procs: int, context: LaunchContext) -> None:
    accepted = {
        "num-machines": str(context.shape.nodes),
        "machine-rank": RANK,
        "main-process-ip": ADDRESS,
        "main-process-port": PORT,
    }
    for option in options.found:
        if option.name in accepted and option.value != accepted[option.name]:
            refuse_owned("--" + option.name.replace("-", "_"), option.value, context)
        if option.name == "max-restarts" and option.value != "0":
            refuse_restarts("max_restarts", option.value, context)
    is_on_cpus = not context.shape.gpus or "cpu" in options.names
    if procs * context.shape.nodes > 1 and is_on_cpus and not options.names & _ACCELERATE_MODES:
        message = f"accelerate starts one process per node on CPUs, and {context.path} asks for {procs * context.shape.nodes} in one group"
        hint = "use `cluster: torchrun` with the script itself, and `Accelerator(cpu=True)` in it"
        raise spec_error(message, "launcher-command", hint)


def _accelerate_mode(options: LauncherOptions, procs: int, context: LaunchContext) -> list[str]:
    """Return the options that accelerate would otherwise derive from the node or a host file."""
    if "use-deepspeed" in options.names:
        is_needed = context.shape.nodes > 1 and "deepspeed-multinode-launcher" not in options.names
        return ["--deepspeed_multinode_launcher", "standard"] if is_needed else []
    is_plain = not options.names & (_ACCELERATE_MODES | {"cpu"})
    return ["--multi_gpu"] if is_plain and procs * context.shape.nodes > 1 else []
