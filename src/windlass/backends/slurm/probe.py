"""Probe of a machine with Slurm: one script, run in one round trip, whose output becomes a profile."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from windlass.backends.site_shell import SiteShell
from windlass.backends.slurm.inventory import (
    parse_associations,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_qualities,
    partition_of,
    priorities_of,
)
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.sites.consistency import fact_exists
from windlass.sites.profile import (
    Containers,
    FileSystem,
    Partition,
    Profile,
    ProfileSource,
    SiteEnvironment,
    SiteNetwork,
    SiteScheduler,
)

__all__ = ["SCRIPT", "Section", "probe", "profile_of", "sections_of"]

_TIMEOUT_S = 180.0
_NOT_THERE = 127
_MIN_PYTHON = (3, 9)
_MAX_DIGITS = 6
_NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "fuse.ceph",
        "wekafs",
        "panfs",
        "cvmfs",
        "fuse.juicefs",
        "pvfs2",
    }
)
# `ask NAME COMMAND` prints a command's output between two marker lines; a command that hangs is timed out.
SCRIPT = r"""
ask() { n=$1; shift; printf '\n@@windlass begin %s\n' "$n"; timeout 40 "$@" </dev/null; printf '\n@@windlass end %s\n' "$?"; }
me=$(id -un)
export me
ask user id -un
ask machine uname -m
ask partitions sh -c 'scontrol show partition -o 2>&1'
ask nodes sh -c 'scontrol show node -o 2>&1'
ask config sh -c 'scontrol show config 2>&1'
ask qos sh -c 'sacctmgr -nP show qos format=name,priority,preempt,maxwall 2>/dev/null'
ask assoc sh -c 'sacctmgr -nP show assoc where user="$me" format=account,qos,defaultqos 2>/dev/null'
ask account sh -c 'sacctmgr -nP show user "$me" format=defaultaccount 2>/dev/null'
ask programs sh -c 'for p in scontrol sbatch apptainer singularity enroot uv; do
  f=$(command -v $p) && echo "$p $f"; done; true'
ask pythons sh -c 'for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
  v=$($p -c "import sys; print(*sys.version_info[:3], sep=chr(46))" 2>/dev/null) && echo "$p $v"; done; true'
ask module_init bash -lc 'for f in /etc/profile.d/*lmod*.sh /etc/profile.d/*modules*.sh "$LMOD_PKG/init/sh" "$MODULESHOME/init/sh"; do
  [ -r "$f" ] && env -i HOME="$HOME" PATH="$PATH" sh -c ". \"\$0\"; command -v module && test -n \"\$MODULEPATH\"" "$f" \
  >/dev/null 2>&1 && echo "$f" && break; done; true'
ask folders sh -c 'for v in SCRATCH PSCRATCH WORK PROJECT PROJECTDIR HOME TMPDIR; do
  eval "d=\$$v"; [ -n "$d" ] && [ -d "$d" ] && echo "$v $(df -PT "$d" | tail -n 1 | awk "{print \$2, \$5}") $d"; done
  echo "/tmp $(df -PT /tmp | tail -n 1 | awk "{print \$2, \$5}") /tmp"'
ask network sh -c 'ls /sys/class/net; ls /sys/class/infiniband 2>/dev/null; true'
"""
_SECTION = re.compile(r"^@@windlass begin (\S+)\n(.*?)\n?^@@windlass end (\d{1,3})$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Section:
    """Exit code and output of one of the script's commands."""

    code: int
    text: str


def probe(shell: SiteShell, name: str, *, ssh: str = "", today: str, base: Profile | None = None) -> Profile:
    """Probe a site and return its profile. Takes seconds, in one round trip; changes nothing there.

    Args:
        ssh: `user@host` of the shell, for the profile; empty for this machine.
        today: YYYY-MM-DD, the date of the probe.
        base: a profile whose handwritten parts (variables, modules, overrides) are kept; measured facts replace the rest.

    Raises:
        UnreachableError: the site or its Slurm does not respond.
        PreconditionError: there is no Slurm there.
    """
    answer = shell.run(["sh"], stdin=SCRIPT.encode(), timeout_s=_TIMEOUT_S)
    return profile_of(sections_of(answer.out), name, ssh=ssh, today=today, base=base)


def sections_of(text: str) -> dict[str, Section]:
    """Return the output of each of the script's commands, by name."""
    return {match[1]: Section(int(match[3]), match[2]) for match in _SECTION.finditer(text)}


def profile_of(
    sections: Mapping[str, Section], name: str, *, ssh: str = "", today: str, base: Profile | None = None
) -> Profile:
    """Return the profile that a probe's output describes; pure. See `probe`."""
    _require_slurm(sections, ssh)
    base = base or Profile(name=name)
    partitions = _partitions(sections, base)
    user = _text(sections, "user").strip()
    profile = replace(
        base,
        name=name,
        ssh=ssh,
        partitions=partitions,
        scheduler=_scheduler(sections, partitions, base.scheduler),
        net=_network(sections, base.net),
        fs=_files(sections, user, base.fs),
        env=_software(sections, base.env, partitions),
        containers=_containers(sections, base.containers),
    )
    return replace(profile, sources=(*_still_true(base, profile), *_measured(profile, base, ssh, today)))


def _require_slurm(sections: Mapping[str, Section], ssh: str) -> None:
    where = ssh or "this machine"
    if "scontrol" not in _programs(sections):
        hint = (
            "name its login node: windlass site add NAME --ssh USER@HOST"
            if not ssh
            else "check that it is a login node"
        )
        raise PreconditionError(f"no Slurm on {where}: `scontrol` is not on the PATH", hint=hint, code="no-slurm")
    for name in ("partitions", "nodes", "config"):
        section = sections.get(name, Section(_NOT_THERE, ""))
        if section.code:
            said = (section.text.strip().splitlines() or ["nothing"])[-1]
            hint = "run it there yourself: scontrol show partition"
            raise UnreachableError(f"Slurm on {where} does not respond: {said}", hint=hint, code="slurm-down")


def _partitions(sections: Mapping[str, Section], base: Profile) -> dict[str, Partition]:
    config = parse_config(_text(sections, "config"))
    nodes = parse_nodes(_text(sections, "nodes"))
    records = parse_partitions(_text(sections, "partitions"))
    qualities = parse_qualities(_text(sections, "qos"))
    return {
        record.name: _laid_over(
            base.partitions.get(record.name, Partition()), partition_of(record, nodes, records, qualities, config)
        )
        for record in records
        if record.is_open
    }


def _laid_over(base: Partition, found: Partition) -> Partition:
    """Return the values that the probe found, or the old ones where it found nothing."""
    values = {field.name: getattr(found, field.name) or getattr(base, field.name) for field in fields(Partition)}
    gpus = base.gpus if found.gpus is None else found.gpus
    # Gres may say `h100` for a GPU known as `gh200`: a name that a user wrote is kept.
    return Partition(**{**values, "gpus": gpus, "gpu_type": base.gpu_type or found.gpu_type})


def _scheduler(
    sections: Mapping[str, Section], partitions: Mapping[str, Partition], base: SiteScheduler
) -> SiteScheduler:
    config = parse_config(_text(sections, "config"))
    records = {record.name: record for record in parse_partitions(_text(sections, "partitions")) if record.is_open}
    accounting = config.get("AccountingStorageType", "").endswith("slurmdbd")
    qualities = parse_qualities(_text(sections, "qos")) if accounting else []
    associations = parse_associations(_text(sections, "assoc")) if accounting else []
    usable = sorted({qos for association in associations for qos in association.qos})
    accounts = tuple(sorted({association.account for association in associations}))
    default = next((record.name for record in records.values() if record.is_default), "")
    partition = base.partition if base.partition in records else default
    account = _text(sections, "account").strip() if accounting else ""
    priority, preemptible = priorities_of(partitions, qualities, usable, config)
    kill_wait = re.match(r"(\d+) sec", config.get("KillWait", ""))
    return replace(
        base,
        version=config.get("SLURM_VERSION", base.version),
        partition=partition,
        account=account if account in accounts else base.account,
        accounts=accounts,
        qos=base.qos if base.qos in usable else "",
        qos_known=tuple(usable or sorted(quality.name for quality in qualities)),
        accounting=accounting,
        exclusive=base.exclusive or (partition in records and records[partition].is_exclusive),
        submits_in_jobs=records[partition].is_submitting if partition in records else base.submits_in_jobs,
        asks_memory=base.asks_memory and "MEMORY" in config.get("SelectTypeParameters", "MEMORY").upper(),
        kill_wait=float(kill_wait[1]) if kill_wait else base.kill_wait,
        priority=base.priority or priority,
        preemptible=base.preemptible or preemptible,
    )


def _network(sections: Mapping[str, Section], base: SiteNetwork) -> SiteNetwork:
    """Return network settings guessed from the login node's devices; `site check` verifies them on compute nodes."""
    names = _text(sections, "network").split()
    if any(name.startswith("hsn") for name in names):
        return replace(base, interface=base.interface or "hsn", interconnect=base.interconnect or "slingshot")
    if any(re.match(r"ib\d", name) for name in names):
        return replace(base, interface=base.interface or "ib", interconnect=base.interconnect or "infiniband")
    return base


def _files(sections: Mapping[str, Section], user: str, base: FileSystem) -> FileSystem:
    rows = [line.split(maxsplit=3) for line in _text(sections, "folders").splitlines() if len(line.split()) >= 4]
    found = {row[0]: (row[1], row[3]) for row in rows}
    order = [name for name in found if name not in ("TMPDIR", "/tmp")]  # noqa: S108 - a name in a listing
    shared = [name for name in order if found[name][0] in _NETWORK_FILE_SYSTEMS]
    chosen = (shared or order[-1:] or [""])[0]
    local = found.get("TMPDIR") or found.get("/tmp")  # noqa: S108 - the same
    is_memory = local is not None and local[0] in ("tmpfs", "ramfs")
    return replace(
        base,
        shared=base.shared or (_for_everybody(found[chosen][1], user) if chosen else ""),
        node_local=_for_everybody(local[1], user) if local and base == FileSystem() else base.node_local,
        node_local_is_memory=base.node_local_is_memory or is_memory,
    )


def _for_everybody(path: str, user: str) -> str:
    """Replace the user's name in a path with `${user}`, so that colleagues can use the profile."""
    parts = posixpath.normpath(path).split("/")
    return "/".join("${user}" if part == user and index > 1 else part for index, part in enumerate(parts))


def _software(
    sections: Mapping[str, Section], base: SiteEnvironment, partitions: Mapping[str, Partition]
) -> SiteEnvironment:
    pythons = [line.split() for line in _text(sections, "pythons").splitlines() if len(line.split()) == 2]
    fit = [name for name, version in pythons if _version(version) >= _MIN_PYTHON]
    machine = _text(sections, "machine").strip()
    others = {partition.arch for partition in partitions.values() if partition.arch}
    is_alien = bool(machine and others) and machine not in others
    return replace(
        base,
        python=fit[0] if fit and base.python == "python3" else base.python,
        build="compute" if is_alien else base.build,
        module_init=base.module_init or _text(sections, "module_init").strip(),
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal() and len(part) < _MAX_DIGITS)


def _containers(sections: Mapping[str, Section], base: Containers) -> Containers:
    programs = _programs(sections)
    if base.kind != "none":
        return base
    if "apptainer" in programs:
        return Containers(kind="apptainer")
    if "singularity" in programs:
        return Containers(kind="apptainer", program="singularity")
    return Containers(kind="enroot") if "enroot" in programs else base


_ASKED = "as reported by Slurm, asked "


def _still_true(base: Profile, profile: Profile) -> list[ProfileSource]:
    """Return the base's sources, without fields that no longer exist and without those of an earlier probe."""
    kept = [
        replace(source, facts=tuple(fact for fact in source.facts if fact_exists(profile, fact)))
        for source in base.sources
        if not (source.status == "measured" and source.note.startswith(_ASKED))
    ]
    return [source for source in kept if source.facts]


def _measured(profile: Profile, base: Profile, ssh: str, today: str) -> list[ProfileSource]:
    where = f"by `windlass site add` at {ssh}" if ssh else "by `windlass site add` on the machine itself"
    asked = ProfileSource(
        facts=("partitions", "scheduler"),
        seen=today,
        status="measured",
        note=f"{_ASKED}{where}; the rest is from the other sources",
    )
    guessed = []
    if profile.fs != base.fs:
        guessed.append("fs")
    if profile.net != base.net:
        guessed.append("net.interface")
    if not guessed:
        return [asked]
    note = "guessed from the login node; `windlass site check` verifies it on compute nodes"
    return [asked, ProfileSource(facts=tuple(guessed), seen=today, status="unverified", note=note)]


def _programs(sections: Mapping[str, Section]) -> Sequence[str]:
    return [line.split()[0] for line in _text(sections, "programs").splitlines() if line.strip()]


def _text(sections: Mapping[str, Section], name: str) -> str:
    section = sections.get(name)
    return section.text if section is not None and section.code == 0 else ""
