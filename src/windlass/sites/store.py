"""Profiles on disk: the user's, in WINDLASS_HOME/sites, and those that windlass ships."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.config.yaml_reader.parser import decode_text
from windlass.core.errors import AccessError, PreconditionError, UsageError
from windlass.core.files import write_atomic
from windlass.core.names import NAME_RULE, is_name, nearest
from windlass.sites.consistency import unknown_facts
from windlass.sites.profile import Fabric, Profile, SiteNetwork, SiteVariable

__all__ = [
    "fabric_names",
    "find_site",
    "load_profile",
    "profile_path",
    "save_site",
    "shipped_names",
    "site_names",
    "sites_folder",
    "unknown_site",
]

T = TypeVar("T")

_SHIPPED = Path(__file__).with_name("shipped")
_LOCAL = "local"
_SUFFIX = ".yaml"
_DIGEST = re.compile(r"\A# windlass site profile ([0-9a-f]{16})\n")
_MAX_BYTES = 1 << 20


def sites_folder(home: Path) -> Path:
    """Return the path of the folder with the user's profiles, which may not exist; `home` is WINDLASS_HOME."""
    return home / "sites"


def site_names(home: Path) -> list[str]:
    """Return the names of the user's and the shipped sites, sorted."""
    return sorted({*_names_in(sites_folder(home)), *shipped_names()})


def shipped_names() -> list[str]:
    """Return the names of the shipped profiles."""
    return sorted(_names_in(_SHIPPED))


def fabric_names() -> list[str]:
    """Return the names that `net.fabric` accepts."""
    return sorted(_names_in(_SHIPPED / "fabrics"))


def find_site(name: str, home: Path) -> Profile:
    """Return a site's profile, the user's or else the shipped one, merged with its fabric.

    Raises:
        UsageError: there is no site with this name; the hint has the closest name.
        SpecError: the profile is invalid; contains every problem with its position.
        AccessError: the file cannot be read.
    """
    path = profile_path(name, home)
    if path is None:
        raise unknown_site(name, home)
    return load_profile(path)


def unknown_site(name: str, home: Path) -> UsageError:
    """Return the error for an unknown site."""
    names = [_LOCAL, *site_names(home)]
    close = nearest(name, names)
    meant = f"did you mean `{close}`? Sites: {', '.join(names)}" if close else f"sites: {', '.join(names)}"
    hint = f"{meant}; `windlass site add {name} --ssh USER@HOST` adds one"
    return UsageError(f"no site `{name}`", hint=hint, code="unknown-site")


def profile_path(name: str, home: Path | None) -> Path | None:
    """Return the path of a site's file, or None. Without a home, only shipped sites are found."""
    if not is_name(name):
        return None
    for folder in ([sites_folder(home)] if home is not None else []) + [_SHIPPED]:
        path = folder / f"{name}{_SUFFIX}"
        if path.is_file():
            return path
    return None


def load_profile(path: Path, *, merges_fabric: bool = True) -> Profile:
    """Read the profile in a file; with `merges_fabric`, merge it with its fabric.

    Raises:
        SpecError: it is invalid; contains every problem with its position.
        AccessError: the file cannot be read.
        UsageError: its name differs from the file name, or its fabric does not exist.
    """
    profile = _load(Profile, path)
    if profile.name != path.stem:
        hint = f"write `name: {path.stem}`, or rename the file"
        message = f"the profile in {path.name} is named `{profile.name}`"
        raise UsageError(message, hint=hint, code="conflicting-options")
    return _with_fabric(profile) if profile.net.fabric and merges_fabric else profile


def save_site(profile: Profile, home: Path, *, replaces_edits: bool = False) -> Path:
    """Write a profile to the user's folder, atomically, and return the path of its file.

    A file that was not edited since windlass wrote it is overwritten.

    Raises:
        PreconditionError: the file was edited, and `replaces_edits` is not set.
        UsageError: the name is invalid.
    """
    if not is_name(profile.name) or profile.name == _LOCAL:
        rule = "`local` is this machine" if profile.name == _LOCAL else f"a name consists of {NAME_RULE}"
        raise UsageError(f"a site cannot be called `{profile.name}`", hint=rule, code="invalid-name")
    folder = sites_folder(home)
    path = folder / f"{profile.name}{_SUFFIX}"
    if path.exists() and not replaces_edits and _is_edited(path):
        hint = f"--replace overwrites it but keeps your settings where the machine reports none; look at {path} first"
        raise PreconditionError(f"{path} was edited since windlass wrote it", hint=hint, code="site-edited")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, _text(profile).encode())
    return path


def _names_in(folder: Path) -> list[str]:
    try:
        return [path.stem for path in folder.iterdir() if path.suffix == _SUFFIX and is_name(path.stem)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _load(schema: type[T], path: Path) -> T:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
    except OSError as error:
        message = f"cannot read the site profile {path}: {error.strerror or error}"
        raise AccessError(message, hint=f"check its permissions: ls -l {path}", code="file-unreadable") from error
    return load_config(schema, decode_text(content, source=str(path)), source=str(path)).value


def _with_fabric(profile: Profile) -> Profile:
    """Merge a profile with its fabric; the profile's settings take precedence. Idempotent."""
    name = profile.net.fabric
    path = _SHIPPED / "fabrics" / f"{name}{_SUFFIX}"
    if not is_name(name) or not path.is_file():
        names = fabric_names()
        close = nearest(name, names)
        hint = f"did you mean `{close}`?" if close else f"known: {', '.join(names)}"
        raise UsageError(f"site `{profile.name}`: unknown fabric `{name}`", hint=hint, code="unknown-name")
    fabric = _load(Fabric, path)
    own, base = profile.net, fabric.net
    net = SiteNetwork(
        fabric=name,
        interface=own.interface or base.interface,
        interconnect=own.interconnect or base.interconnect,
        vars=_merged(base.vars, own.vars),
    )
    sources = (*(source for source in fabric.sources if source not in profile.sources), *profile.sources)
    return replace(profile, net=net, sources=sources)


def _merged(base: tuple[SiteVariable, ...], own: tuple[SiteVariable, ...]) -> tuple[SiteVariable, ...]:
    """Merge variables; a variable that the site sets under any condition replaces the fabric's."""
    names = {variable.name for variable in own}
    return (*(variable for variable in base if variable.name not in names), *own)


def _text(profile: Profile) -> str:
    body = [
        "# You can edit this file; `windlass site check` tests it, `windlass site show` prints it. Keys and values:",
        "# docs/reference/site.md. Keys that are left out have their defaults.",
    ]
    unknown = unknown_facts(profile)
    if unknown:
        body.append("# Unknown so far:")
        body += [f"#   {path}" for path in unknown]
    text = "\n".join(body) + "\n\n" + to_yaml(profile)
    return f"# windlass site profile {_digest(text)}\n{text}"


def _is_edited(path: Path) -> bool:
    text = path.read_text(errors="replace")
    match = _DIGEST.match(text)
    return match is None or match.group(1) != _digest(text[match.end() :])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
