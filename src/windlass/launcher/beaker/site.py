"""Beaker sites: account defaults for `site add`, and `site check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.backends.beaker.backend import service_of
from windlass.core.clock import Clock, SystemClock, format_time
from windlass.core.errors import AccessError, UnreachableError, WindlassError
from windlass.launcher.beaker.storage import Storage, storage_of
from windlass.launcher.sites.check_history import CheckResult, SiteCheck, save_check
from windlass.sites.profile import Profile, ProfileSource

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService

__all__ = ["ask_beaker", "check_beaker_site"]


def ask_beaker(profile: Profile, *, today: str) -> Profile:
    """Return the profile with the account's default workspace filled in. Queries Beaker.

    Raises:
        AccessError: the token is missing, or Beaker rejects it.
        UnreachableError: Beaker cannot be reached.
    """
    service = service_of(profile)
    user, place = service.user(), profile.beaker
    if place.workspace or not service.default_workspace():
        return profile
    facts = ("beaker.workspace",)
    source = ProfileSource(
        facts=facts, url=service.account.agent_address, seen=today, status="measured", note=f"default of {user}"
    )
    others = [known for known in profile.sources if known.facts != facts]
    return replace(
        profile,
        beaker=replace(place, workspace=service.default_workspace()),
        sources=(*others, source),
    )


def check_beaker_site(profile: Profile, *, home: Path, clock: Clock | None = None) -> SiteCheck:
    """Check a profile's settings against Beaker and record the results. Submits no job.

    Args:
        home: WINDLASS_HOME, where the history is.

    Raises:
        UnreachableError: Beaker cannot be reached.
    """
    now = (clock or SystemClock()).now()
    service = service_of(profile)
    found = [_storage(profile, home)]
    account = _found("account", lambda: f"{service.user()}, at {service.account.agent_address}")
    found.append(account)
    if account.status == "ok":
        found += _of_account(profile, service)
    run = SiteCheck(site=profile.name, at=format_time(now), results=tuple(found), facts={})
    save_check(home, run)
    return run


def _of_account(profile: Profile, service: BeakerService) -> Iterator[CheckResult]:
    place = profile.beaker
    if not place.workspace:
        hint = f"windlass site add {profile.name} --replace beaker.workspace=ORGANIZATION/NAME"
        yield CheckResult(name="workspace", nodes=0, status="failed", message="not set in the profile", hint=hint)
        return
    yield _found("workspace", lambda: _workspace(service, place.workspace))
    yield _found("secrets", lambda: _number(len(service.secrets(place.workspace)), "secret"))
    if place.image.startswith("beaker:"):
        yield _found("image", lambda: service.image(place.image.removeprefix("beaker:")).name)
    elif not place.image:
        yield CheckResult(name="image", nodes=0, status="not-tried", message="no default; experiments set their own")


def _workspace(service: BeakerService, name: str) -> str:
    seen = service.workspace(name)
    if seen.is_archived:
        hint = "set another workspace"
        raise AccessError(
            f"workspace {seen.name} is archived and accepts no experiments", hint=hint, code="beaker-forbidden"
        )
    limits = [f"{kind}: {seen.slots_used.get(kind, 0)} of {limit} slots" for kind, limit in seen.slot_limits.items()]
    return ", ".join([seen.name, *limits])


def _storage(profile: Profile, home: Path) -> CheckResult:
    """Return a check result that says where the files of runs are stored."""
    shared = profile.fs.shared
    kind = storage_of(profile, home)
    if kind is Storage.DATASETS and not shared:
        message = "fs.shared is not set: jobs have one node, and files travel as datasets"
        return CheckResult(name="storage", nodes=0, status="not-tried", message=message)
    words = {
        Storage.LOCAL: f"{shared}, on this machine",
        Storage.SSH: f"{shared}, over ssh to {profile.ssh}",
        Storage.DATASETS: f"{shared}, not on this machine: files travel as datasets",
    }
    return CheckResult(name="storage", nodes=0, status="ok", message=words[kind])


def _found(name: str, look: Callable[[], str]) -> CheckResult:
    """Run one check; a refusal becomes a failed result, an unreachable service raises."""
    try:
        return CheckResult(name=name, nodes=0, status="ok", message=look())
    except UnreachableError:
        raise
    except WindlassError as error:
        problem = error.problems[0]
        return CheckResult(name=name, nodes=0, status="failed", message=error.message, hint=problem.hint)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
