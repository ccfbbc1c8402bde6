"""Creation of a site profile from a template, the machine's facts and the user's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from windlass.backends.site_shell import LocalShell, SshShell
from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.sites.profile import Profile
from windlass.sites.store import load_profile, profile_path, save_site, unknown_site

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
    """Write a site profile and return its path. Blocking: one round trip to the site or Beaker.

    Args:
        home: WINDLASS_HOME.
        ssh: login node; this machine if empty.
        base: site whose settings are copied; if empty, the user's site of this name, else the shipped one.
        overrides: fields of the profile, such as `scheduler.account=abc`.
        today: YYYY-MM-DD, recorded with each source.

    Raises:
        UsageError: there is no site `base`, or `name` is invalid.
        SpecError: an override or the base is invalid.
        PreconditionError: Slurm is missing there, or the file was edited.
        UnreachableError: the machine cannot be reached.
    """
    known = _known(name, base, home)
    ssh = ssh or (known.ssh if known is not None and known.name == name else "")
    is_beaker = "kind=beaker" in overrides or (known is not None and known.kind == "beaker")
    if is_beaker:
        profile = _beaker(replace(known or Profile(name=name), name=name, kind="beaker", ssh=ssh), overrides)
        if is_probed:
            from windlass.launcher.beaker.site import ask_beaker  # lazy: few sites use Beaker

            profile = ask_beaker(profile, today=today)
    elif is_probed:
        from windlass.backends.slurm.probe import probe  # lazy: only needed for a probe

        profile = probe(SshShell(ssh) if ssh else LocalShell(), name, ssh=ssh, today=today, base=known)
    else:
        known = known or Profile(name=name)
        profile = replace(known, name=name, ssh=ssh or known.ssh)
    # Load it like a file, so that overrides are checked like those of an experiment.
    loaded = load_config(Profile, to_yaml(profile), source=f"site {name}", overrides=overrides)
    return save_site(loaded.value, home, replaces_edits=replaces_edits)


def _beaker(profile: Profile, overrides: Sequence[str]) -> Profile:
    """Return the profile with the user's settings filled in, so that Beaker is not asked for them."""
    return load_config(Profile, to_yaml(profile), source=f"site {profile.name}", overrides=overrides).value


def _known(name: str, base: str, home: Path) -> Profile | None:
    path = profile_path(base or name, home)
    if path is None and base:
        raise unknown_site(base, home)
    return load_profile(path, merges_fabric=False) if path is not None else None
