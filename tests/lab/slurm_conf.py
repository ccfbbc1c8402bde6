"""What a lab's Slurm is like: its options, and the slurm.conf that they make. Source: slurm.conf(5) of 22.05."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.hosts import Hosts
from tests.lab.slots import Slot

__all__ = ["CONTROLLER_PORT", "DBD_PORT", "Options", "write_conf"]

# Offsets into the slot's ports.
CONTROLLER_PORT, DBD_PORT = 0, 1
NODE_PORT = 16818  # each node has its own network

PARTITIONS = {
    "main": "Nodes=ALL Default=YES PriorityTier=10 MaxTime=24:00:00 DefaultTime=1:00:00",
    "low": "Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s} MaxTime=24:00:00",
    "lowcancel": "Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime={grace_s} MaxTime=24:00:00",
    "short": "Nodes=ALL PriorityTier=10 MaxTime=2 DefaultTime=1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A lab's Slurm.

    Attributes:
        gpus: fake ones of a node; jobs get CUDA_VISIBLE_DEVICES.
        cpus: of a node, claimed whatever this machine has.
        has_accounting: slurmdbd and MariaDB; preemption is then by QOS (low < normal < high) instead of by partition.
        signals_preempted: `--signal=B:USR1@60` reaches a job when it is preempted (preempt_send_user_signal).
        requeue_delay_s: how long a requeued job is held back; Slurm's own default is 120.
        dead_s: how long a node may be silent before it is DOWN.
        grace_s: between the signal and the kill of a preempted job; Slurm looks only every 30 s.
        has_login: one more host, `login`, that is no node: SLURM_CONF is set in its ssh sessions.
        own: folders that each host has for itself; add "/tmp" to share less.
        settings: lines of slurm.conf to add or to put in place of the lab's.
    """

    num_nodes: int = 4
    gpus: int = 4
    cpus: int = 8
    memory_mb: int = 8000
    has_accounting: bool = False
    signals_preempted: bool = False
    requeue_delay_s: int = 10
    dead_s: int = 10
    grace_s: int = 5
    has_login: bool = True
    own: tuple[str, ...] = ("/dev/shm",)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.num_nodes + 1))


def write_conf(folder: Path, slot: Slot, options: Options, hosts: Hosts) -> None:
    """Write slurm.conf and gres.conf into a folder that has `log`, `spool`, `state` and `gpu`."""
    settings = {**_settings(folder, slot, options), **_bookkeeping(folder, slot, options), **options.settings}
    lines = [f"{key}={value}" for key, value in settings.items()]
    has = f"CPUs={options.cpus} RealMemory={options.memory_mb}" + (f" Gres=gpu:{options.gpus}" if options.gpus else "")
    lines += [
        f"NodeName={name} NodeHostname={name} NodeAddr={hosts.ip(name)} Port={NODE_PORT} {has} State=UNKNOWN"
        for name in options.nodes
    ]
    lines += [f"PartitionName={name} {rules.format(grace_s=options.grace_s)}" for name, rules in PARTITIONS.items()]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    gpus = f"Name=gpu File={folder}/gpu/gpu[0-{options.gpus - 1}]\n" if options.gpus else ""
    (folder / "gres.conf").write_text(gpus)


def _settings(folder: Path, slot: Slot, options: Options) -> dict[str, str]:
    controller = ["preempt_send_user_signal"] if options.signals_preempted else []
    return {
        "ClusterName": "lab",
        "SlurmctldHost": f"{socket.gethostname().partition('.')[0]}({slot.network}.1)",
        "SlurmctldPort": str(slot.port(CONTROLLER_PORT)),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket,cred_expire={options.requeue_delay_s}",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd.%n.pid",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "StateSaveLocation": f"{folder}/state",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/slurmd.%n.log",
        **({"SlurmctldParameters": ",".join(controller)} if controller else {}),
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": "500",
        "GresTypes": "gpu",
        "SlurmdParameters": "config_overrides",
        "SchedulerParameters": "sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0",
        "ReturnToService": "2",
        "SlurmdTimeout": str(options.dead_s),
        "KillWait": str(options.grace_s),
        "MinJobAge": "3600",
        "JobRequeue": "1",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=1",
        "PreemptMode": "REQUEUE",
    }


def _bookkeeping(folder: Path, slot: Slot, options: Options) -> dict[str, str]:
    if not options.has_accounting:
        return {
            "PreemptType": "preempt/partition_prio",
            "AccountingStorageType": "accounting_storage/none",
            "JobCompType": "jobcomp/filetxt",
            "JobCompLoc": f"{folder}/log/jobcomp.txt",
        }
    return {
        "PreemptType": "preempt/qos",
        "PriorityType": "priority/multifactor",
        "PriorityWeightQOS": "100000",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(slot.port(DBD_PORT)),
        "AccountingStoragePass": f"{folder}/munge.socket",
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStorageEnforce": "associations,limits,qos",
        "JobCompType": "jobcomp/none",
    }
