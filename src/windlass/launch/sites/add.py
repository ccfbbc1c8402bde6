"""Make a site's profile: what is known of it already, what the machine says, what the user says; the last one wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from windlass import config
from windlass.backends.site_shell import LocalShell, SshShell
from windlass.sites import Profile, save_site
from windlass.sites.store import load_profile, profile_path, unknown_site

__all__ = ["add_site"]


def add_site(
    name: str,
    home: Path,
    *,
    ssh: str = "",
    base: str = "",
    overrides: Sequence[str] = (),
    today: str,
    is_probed: bool = True,
    replaces_edits: bool = False,
) -> Path:
    """Write the profile of a site; returns its file. Blocking: asks the machine in one round trip, or Beaker.

    Args:
        home: WINDLASS_HOME.
        ssh: login node; empty: this machine.
        base: site whose written parts are kept; empty: the user's own of this name, or else the shipped one, if there is one.
        overrides: fields of the profile, `scheduler.account=abc`.
        today: YYYY-MM-DD, for the sources.

    Raises:
        UsageError: no site is called `base`; or none may be called `name`.
        SpecError: an override, or the base, is refused.
        PreconditionError: there is no Slurm there, or somebody edited the file.
        UnreachableError: the machine does not answer.
    """
    known = _known(name, base, home)
    ssh = ssh or (known.ssh if known is not None and known.name == name else "")
    is_beaker = "kind=beaker" in overrides or (known is not None and known.kind == "beaker")
    if is_beaker:
        profile = _beaker(replace(known or Profile(name=name), name=name, kind="beaker", ssh=ssh), overrides)
        if is_probed:
            from windlass.launch.beaker.site import ask_beaker  # lazy: few sites are Beaker's

            profile = ask_beaker(profile, today=today)
    elif is_probed:
        from windlass.backends.slurm.probe import probe  # lazy: not where nothing is asked

        profile = probe(SshShell(ssh) if ssh else LocalShell(), name, ssh=ssh, today=today, base=known)
    else:
        known = known or Profile(name=name)
        profile = replace(known, name=name, ssh=ssh or known.ssh)
    # Read as a file would be, so that an override is checked, and explained, as one of an experiment is.
    loaded = config.load(Profile, config.to_yaml(profile), source=f"site {name}", overrides=overrides)
    return save_site(loaded.value, home, replaces_edits=replaces_edits)


def _beaker(profile: Profile, overrides: Sequence[str]) -> Profile:
    """The profile with what the user says, so that nothing is asked that is said already."""
    return config.load(Profile, config.to_yaml(profile), source=f"site {profile.name}", overrides=overrides).value


def _known(name: str, base: str, home: Path) -> Profile | None:
    path = profile_path(base or name, home)
    if path is None and base:
        raise unknown_site(base, home)
    return load_profile(path, merges_fabric=False) if path is not None else None
