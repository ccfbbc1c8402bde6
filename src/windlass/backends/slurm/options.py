"""Options of sbatch(1): what a queue asks for, and how a script and a command line say it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from windlass.supervise.job import Queue

__all__ = ["gpu_options", "option_lines", "share_options", "time_option", "where_options"]

_MIB = 1 << 20


def option_lines(options: Iterable[str]) -> list[str]:
    """The lines of a batch script that say these options."""
    return [f"#SBATCH {_quoted(option)}" for option in options]


def where_options(queue: Queue) -> list[str]:
    """Where a job may run, and on whose account."""
    words = {
        "partition": queue.partition,
        "qos": queue.qos,
        "account": queue.account,
        "nice": str(queue.nice or ""),
        "nodelist": ",".join(queue.nodelist),
        "exclude": ",".join(queue.exclude),
        "constraint": queue.constraint,
    }
    return [f"--{name}={value}" for name, value in words.items() if value]


def share_options(queue: Queue) -> list[str]:
    """How many nodes, and what of each."""
    found = [f"--nodes={queue.nodes}", "--ntasks-per-node=1"]
    if queue.cpus_per_node:
        found += [f"--cpus-per-task={queue.cpus_per_node}"]
    found += gpu_options(queue.gpus_per_node, queue.gpu_option, queue.gres_type)
    if queue.memory_bytes:
        found += [f"--mem={math.ceil(queue.memory_bytes / _MIB)}M"]
    if queue.tmp_bytes:
        found += [f"--tmp={math.ceil(queue.tmp_bytes / _MIB)}M"]
    return [*found, "--exclusive"] if queue.exclusive else found


def gpu_options(per_node: int, option: str, gres_type: str) -> list[str]:
    """How a site wants GPUs asked for; see `Queue.gpu_option`."""
    if not per_node or option == "none":
        return []
    name = "gres=gpu:" if option == "gres" else "gpus-per-node="
    return [f"--{name}{gres_type}{':' if gres_type else ''}{per_node}"]


def time_option(seconds: float) -> list[str]:
    """A walltime in whole minutes, rounded up as Slurm does (sbatch(1), --time); 0: nothing is said."""
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    return [f"--time={days}-{hours:02}:{minutes:02}:00"] if seconds else []


def _quoted(option: str) -> str:
    """An option as a line of the script says it; sbatch takes blanks between double quotes."""
    name, equals, value = option.partition("=")
    if not any(letter in value for letter in " \t\"'\\#"):
        return option
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{escaped}"'
