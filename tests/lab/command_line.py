"""`python -m tests.lab.slurm`: labs for people. A lab that is started here stays until it is taken down."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tests.lab.slots import claimed, dismantle, find
from tests.lab.slurm import SlurmLab
from tests.lab.slurm_conf import Options

__all__ = ["main"]

EPILOG = """\
python -m tests.lab.slurm up                        four nodes, n1 to n4, and a host `login`
eval "$(python -m tests.lab.slurm env)"             squeue, sbatch, srun ... in this shell use the lab
python -m tests.lab.slurm run n2 hostname -I        a command inside a node
python -m tests.lab.slurm --name b up --accounting  a second one, with sacct and QOS
ssh -F "$(python -m tests.lab.slurm ssh-config)" login
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    asked = _parser().parse_args(argv)
    if asked.verb == "list":
        for slot in claimed():
            kind = "left over" if slot.is_left_over else "in use" if slot.owner else "kept"
            _say(f"{slot.name}  {kind}  {slot.network}.0/24  {slot.folder}")
        return 0
    if asked.verb == "up":
        _up(asked)
        return 0
    try:
        if asked.verb == "down":
            dismantle(find(asked.name))
            return 0
        return _on(SlurmLab.open(asked.name), asked)
    except KeyError as error:
        sys.stderr.write(f"error: {error.args[0]}\n")
        return 4


def _up(asked: argparse.Namespace) -> None:
    if asked.name in {slot.name for slot in claimed()}:
        return
    settings = dict(line.split("=", 1) for line in asked.set)
    lab = SlurmLab(
        Options(
            num_nodes=asked.nodes,
            gpus=asked.gpus,
            cpus=asked.cpus,
            has_accounting=asked.accounting,
            signals_preempted=asked.signals_preempted,
            requeue_delay_s=asked.requeue_delay,
            dead_s=asked.dead,
            grace_s=asked.grace,
            own=tuple(asked.own.split()),
            settings=settings,
        ),
        name=asked.name,
    )
    lab.up(is_kept=True)


def _on(lab: SlurmLab, asked: argparse.Namespace) -> int:
    if asked.verb == "env":
        _say("\n".join(f"export {key}={value}" for key, value in lab.env.items()))
    elif asked.verb == "ssh-config":
        _say(str(lab.hosts.ssh_config))
    elif asked.verb == "ip":
        _say(lab.ip(asked.node))
    elif asked.verb == "run":
        os.execvpe("nsenter", lab.hosts.inside(asked.node, asked.argv), {**os.environ, **lab.env})
    elif asked.verb in ("kill", "start", "cut", "join"):
        getattr(lab, asked.verb)(asked.node)
    else:
        getattr(lab, asked.verb.replace("-", "_"))()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.slurm",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--name", default="mine", help="of the lab, when there are several (default: mine)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_up(verbs.add_parser("up", help="start a lab that stays until `down`"))
    verbs.add_parser("down", help="end it at once, with all that runs in it")
    verbs.add_parser("list", help="all labs of this machine")
    verbs.add_parser("env", help="print what a shell needs to use it")
    verbs.add_parser("ssh-config", help="print the file for `ssh -F`")
    for verb, what in {
        "kill": "cut a node's power",
        "start": "boot it again",
        "cut": "unplug its network cable",
        "join": "plug it in again",
        "ip": "print its address",
    }.items():
        verbs.add_parser(verb, help=what).add_argument("node")
    run = verbs.add_parser("run", help="run a command inside a node")
    run.add_argument("node")
    run.add_argument("argv", nargs=argparse.REMAINDER)
    verbs.add_parser("kill-controller", help="SIGKILL slurmctld")
    verbs.add_parser("start-controller", help="start it again with the state it had on disk")
    verbs.add_parser("heal", help="cancel all jobs and bring everything back")
    return parser


def _add_up(parser: argparse.ArgumentParser) -> None:
    usual = Options()
    parser.add_argument("--nodes", type=int, default=usual.num_nodes)
    parser.add_argument("--gpus", type=int, default=usual.gpus, help="of a node, fake ones")
    parser.add_argument("--cpus", type=int, default=usual.cpus, help="of a node, claimed")
    parser.add_argument("--accounting", action="store_true", help="slurmdbd and MariaDB: sacct, QOS, accounts")
    parser.add_argument("--signals-preempted", action="store_true", help="preempt_send_user_signal")
    parser.add_argument("--requeue-delay", type=int, default=usual.requeue_delay_s, metavar="S")
    parser.add_argument("--dead", type=int, default=usual.dead_s, metavar="S", help="silence until a node is DOWN")
    parser.add_argument("--grace", type=int, default=usual.grace_s, metavar="S", help="of a preempted job")
    parser.add_argument("--own", default=" ".join(usual.own), help="folders each host has for itself: '/tmp /dev/shm'")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a line of slurm.conf")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
