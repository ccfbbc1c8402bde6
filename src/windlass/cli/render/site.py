"""Pages of `windlass site`: facts about a site, unknown facts, and the last check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from windlass.cli.screen import paint, printable, table
from windlass.config.encode import to_data
from windlass.core.phrases import duration, size
from windlass.launcher.sites.check_history import SiteCheck
from windlass.sites.consistency import stale_sources, unknown_facts
from windlass.sites.profile import Mapped, Profile

__all__ = ["STATUS_STYLES", "check_data", "check_lines", "check_word", "site_data", "site_lines"]

STATUS_STYLES = {"ok": "green", "failed": "red", "not-tried": "dim"}


def site_lines(profile: Profile, path: Path, last: SiteCheck | None, today: str) -> Iterator[str]:
    """Yield the page of a site; `today` is YYYY-MM-DD."""
    yield paint(profile.name, "bold") + (f"  {profile.about}" if profile.about else "")
    for key, text in _facts(profile, path):
        if text:
            yield f"  {key:<12} {printable(text)}"
    yield from _partitions(profile)
    yield from _sources(profile, today)
    unknown = unknown_facts(profile)
    if unknown:
        yield ""
        yield "unknown: " + ", ".join(unknown)
    yield ""
    if last is None:
        yield f"never checked: windlass site check {profile.name}"
        return
    yield f"last check {last.at}: {check_word(last)}"
    yield from check_lines(last, nowhere="beaker" if profile.kind == "beaker" else "login")


def _facts(profile: Profile, path: Path) -> Iterator[tuple[str, str]]:
    scheduler, net, fs, env = profile.scheduler, profile.net, profile.fs, profile.env
    yield "file", str(path)
    if profile.kind == "beaker":
        yield from _beaker_facts(profile)
        return
    yield "access", f"ssh {profile.ssh}" if profile.ssh else "local commands"
    yield "slurm", scheduler.version + (", with accounting" if scheduler.accounting else "")
    default = {"partition": scheduler.partition, "QOS": scheduler.qos, "account": scheduler.account}
    yield "default", ", ".join(f"{what} {name}" for what, name in default.items() if name)
    wishes = {**scheduler.priority, **({"preemptible": scheduler.preemptible} if scheduler.preemptible else {})}
    yield "wishes", "; ".join(f"{wish}: {_mapped(mapped)}" for wish, mapped in wishes.items())
    yield "accounts", ", ".join(scheduler.accounts)
    yield "avoided", ", ".join(exclusion.host for exclusion in scheduler.exclude)
    yield (
        "network",
        ", ".join(text for text in (net.interconnect, net.interface and f"interface {net.interface}") if text),
    )
    yield "shared", fs.shared
    yield "node-local", fs.node_local + (" (memory)" if fs.node_local_is_memory else "")
    yield "modules", ", ".join(env.modules)
    yield "overrides", ", ".join(override.package for override in env.overrides)
    yield "variables", _variables(profile)
    yield "preflight", ", ".join(profile.health.preflight)
    yield "containers", profile.containers.kind if profile.containers.kind != "none" else ""


def _beaker_facts(profile: Profile) -> Iterator[tuple[str, str]]:
    place, net = profile.beaker, profile.net
    yield "access", "Beaker" + (f"; storage over ssh {profile.ssh}" if profile.ssh else "")
    yield "workspace", place.workspace + (f", budget {place.budget}" if place.budget else "")
    yield "clusters", ", ".join(place.clusters)
    yield "default", ", ".join(text for text in (f"priority {place.priority}", place.image) if text)
    yield "groups", ", ".join(place.groups)
    yield "mounts", ", ".join(f"{mount.path} ({mount.weka or mount.host_path})" for mount in place.mounts)
    yield "shared", profile.fs.shared
    yield "results", place.results
    yield "network", ", ".join(filter(None, (net.interconnect, net.interface and f"interface {net.interface}")))
    yield "variables", _variables(profile)


def _mapped(mapped: Mapped) -> str:
    parts = [
        f"partition {mapped.partition}" if mapped.partition else "",
        f"QOS {mapped.qos}" if mapped.qos else "",
        f"nice {mapped.nice}" if mapped.nice else "",
    ]
    return ", ".join(part for part in parts if part) or "default"


def _variables(profile: Profile) -> str:
    count = len({variable.name for variable in (*profile.net.vars, *profile.env.vars)})
    return f"{count}, in net.vars and env.vars" if count else ""


def _partitions(profile: Profile) -> Iterator[str]:
    if not profile.partitions:
        return
    rows = []
    for name, there in profile.partitions.items():
        gpus = "?" if there.gpus is None else str(there.gpus) + (f" x {there.gpu_type}" if there.gpu_type else "")
        gpus += f" of {size(there.gpu_memory)}" if there.gpu_memory else ""
        nodes = str(there.num_nodes or "?") + (f" (at most {there.max_nodes})" if there.max_nodes else "")
        note = "preemptible" if there.is_preempted else ""
        memory = size(there.memory) if there.memory else "?"
        longest = duration(there.time_max) if there.time_max else "?"
        rows.append((name, nodes, gpus, str(there.cpus or "?"), memory, there.arch or "?", longest, note))
    yield ""
    yield from table(("partition", "nodes", "gpus", "cpus", "memory", "arch", "longest", ""), rows, indent="  ")


def _sources(profile: Profile, today: str) -> Iterator[str]:
    if not profile.sources:
        return
    stale = stale_sources(profile, today)
    rows = []
    for source in profile.sources:
        what = ", ".join(source.facts[:3]) + (f" and {len(source.facts) - 3} more" if len(source.facts) > 3 else "")
        seen = (source.seen or "?") + (" (outdated; run `windlass site add --replace`)" if source in stale else "")
        rows.append((source.status, seen, what, source.url))
    yield ""
    yield from table(("source", "seen", "covers", "where"), rows, indent="  ")


def check_word(check: SiteCheck) -> str:
    """Return the result of a check in one or two words."""
    failed = [finding.name for finding in check.results if finding.status == "failed"]
    return f"failed: {', '.join(dict.fromkeys(failed))}" if failed else "ok"


def check_lines(check: SiteCheck, *, nowhere: str = "login") -> Iterator[str]:
    """Yield the table of a check's results, with hints; `nowhere` is the label for checks that need no job."""
    for finding in check.results:
        where = f"{finding.nodes} node{'s' if finding.nodes > 1 else ''}" if finding.nodes else nowhere
        status = paint(f"{finding.status:<9}", STATUS_STYLES[finding.status])
        yield f"{status} {where:<8} {finding.name:<11} {printable(finding.message)}".rstrip()
        if finding.hint and finding.status == "failed":
            yield f"{'':<31}{paint('hint:', 'cyan')} {printable(finding.hint)}"


def site_data(profile: Profile, path: Path, last: SiteCheck | None, today: str) -> dict[str, object]:
    """Return the data about a site for `--json`."""
    return {
        "name": profile.name,
        "path": str(path),
        "profile": to_data(profile),
        "unknown": unknown_facts(profile),
        "stale": [list(source.facts) for source in stale_sources(profile, today)],
        "last_check": None if last is None else check_data(last),
    }


def check_data(check: SiteCheck) -> dict[str, object]:
    """Return the data about a check for `--json`."""
    return {**asdict(check), "ok": check.is_ok}
