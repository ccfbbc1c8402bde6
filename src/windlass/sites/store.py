"""Where profiles are: the user's own in WINDLASS_HOME/sites, and those that windlass ships."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from windlass import config
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
    """Where the user's profiles are; `home` is WINDLASS_HOME. Not made here."""
    return home / "sites"


def site_names(home: Path) -> list[str]:
    """Names of the user's sites and of those that are shipped, sorted."""
    return sorted({*_names_in(sites_folder(home)), *shipped_names()})


def shipped_names() -> list[str]:
    """Names of the profiles that windlass brings."""
    return sorted(_names_in(_SHIPPED))


def fabric_names() -> list[str]:
    """Names of the fabrics that a profile may say in `net.fabric`."""
    return sorted(_names_in(_SHIPPED / "fabrics"))


def find_site(name: str, home: Path) -> Profile:
    """The profile of a site: the user's own, else the shipped one; its fabric's facts are merged in.

    Raises:
        UsageError: there is no site of that name; the hint has the nearest one.
        SpecError: the profile is broken; holds every problem, with its place in the file.
        AccessError: the file cannot be read.
    """
    path = profile_path(name, home)
    if path is None:
        raise unknown_site(name, home)
    return load_profile(path)


def unknown_site(name: str, home: Path) -> UsageError:
    """The error for a name that no site has."""
    names = [_LOCAL, *site_names(home)]
    close = nearest(name, names)
    meant = f"did you mean `{close}`? There are: {', '.join(names)}" if close else f"there are: {', '.join(names)}"
    hint = f"{meant}; `windlass site add {name} --ssh USER@HOST` makes one"
    return UsageError(f"no site `{name}`", hint=hint, code="unknown-site")


def profile_path(name: str, home: Path | None) -> Path | None:
    """The file of a site, without a home a shipped one; None where there is none."""
    if not is_name(name):
        return None
    for folder in ([sites_folder(home)] if home is not None else []) + [_SHIPPED]:
        path = folder / f"{name}{_SUFFIX}"
        if path.is_file():
            return path
    return None


def load_profile(path: Path, *, merges_fabric: bool = True) -> Profile:
    """The profile in a file; without `merges_fabric` exactly what the file says.

    Raises:
        SpecError: it is broken; holds every problem, with its place in the file.
        AccessError: it cannot be read.
        UsageError: it is called otherwise than its file, or names a fabric that there is not.
    """
    profile = _load(Profile, path)
    if profile.name != path.stem:
        hint = f"a site is called like its file: write `name: {path.stem}`, or rename the file"
        message = f"the profile in {path.name} is called `{profile.name}`"
        raise UsageError(message, hint=hint, code="site-contradiction")
    return _with_fabric(profile) if profile.net.fabric and merges_fabric else profile


def save_site(profile: Profile, home: Path, *, replaces_edits: bool = False) -> Path:
    """Write a profile to the user's folder, whole or not at all; returns the file.

    A file that windlass wrote and nobody changed since is overwritten without a word.

    Raises:
        PreconditionError: somebody edited the file, and `replaces_edits` is not set.
        UsageError: no site may have this name.
    """
    if not is_name(profile.name) or profile.name == _LOCAL:
        rule = "`local` is this machine" if profile.name == _LOCAL else f"a name consists of {NAME_RULE}"
        raise UsageError(f"a site cannot be called `{profile.name}`", hint=rule, code="bad-name")
    folder = sites_folder(home)
    path = folder / f"{profile.name}{_SUFFIX}"
    if path.exists() and not replaces_edits and _is_edited(path):
        hint = f"--replace asks again and keeps what you wrote where the machine says nothing: look first: less {path}"
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
        message = f"the site profile {path} cannot be read: {error.strerror or error}"
        raise AccessError(message, hint=f"look at it: ls -l {path}", code="file-unreadable") from error
    return config.load(schema, config.decode_text(content, source=str(path)), source=str(path)).value


def _with_fabric(profile: Profile) -> Profile:
    """The profile with the facts of its fabric, which its own facts override; merging twice changes nothing."""
    name = profile.net.fabric
    path = _SHIPPED / "fabrics" / f"{name}{_SUFFIX}"
    if not is_name(name) or not path.is_file():
        names = fabric_names()
        close = nearest(name, names)
        hint = f"did you mean `{close}`?" if close else f"there are: {', '.join(names)}"
        raise UsageError(f"site `{profile.name}`: no fabric `{name}`", hint=hint, code="unknown-name")
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
    """A variable that the site names at all, in whatever case, is the site's alone."""
    names = {variable.name for variable in own}
    return (*(variable for variable in base if variable.name not in names), *own)


def _text(profile: Profile) -> str:
    body = [
        "# Edit it as you like; `windlass site check` proves it, `windlass site show` reads it. Keys and what they take:",
        "# docs/reference/site.md. What is left out has its default.",
    ]
    unknown = unknown_facts(profile)
    if unknown:
        body.append("# Not known yet:")
        body += [f"#   {path}" for path in unknown]
    text = "\n".join(body) + "\n\n" + config.to_yaml(profile)
    return f"# windlass site profile {_digest(text)}\n{text}"


def _is_edited(path: Path) -> bool:
    text = path.read_text(errors="replace")
    match = _DIGEST.match(text)
    return match is None or match.group(1) != _digest(text[match.end() :])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
