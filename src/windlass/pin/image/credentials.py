"""Logins for registries, from where `docker login` keeps them; nothing is stored here.

Source: Docker CLI reference, "docker login", "Credential stores"; containers-auth.json(5).
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_json, read_json
from windlass.core.process import run

__all__ = ["Login", "find_login"]

_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io")
_HELPER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user's name and password (or, without a name, an identity token) at one registry."""

    user: str
    password: str = field(repr=False)


def find_login(registry: str, environ: Mapping[str, str] = os.environ) -> Login | None:
    """The login for a registry (`ghcr.io`), or None; may start a credential helper, blocks up to 30 s."""
    for config in _configs(environ):
        found = _from_config(config, registry)
        if found is not None:
            return found
    return None


def _configs(environ: Mapping[str, str]) -> Iterator[Mapping[str, object]]:
    home = Path(environ.get("HOME") or Path.home())
    places = [Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"]
    if environ.get("REGISTRY_AUTH_FILE"):
        places.insert(0, Path(environ["REGISTRY_AUTH_FILE"]))
    if environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(environ["XDG_RUNTIME_DIR"]) / "containers" / "auth.json")
    for place in places:
        try:
            found = read_json(place)
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            yield found


def _from_config(config: Mapping[str, object], registry: str) -> Login | None:
    keys = _HUB_KEYS if registry == "docker.io" else (registry, f"https://{registry}", f"https://{registry}/v1/")
    helpers, default = config.get("credHelpers"), config.get("credsStore")
    for key in keys:
        helper = helpers.get(key) if isinstance(helpers, dict) else None
        if helper or default:
            found = _ask(str(helper or default), key)
            if found is not None:
                return found
    logins = config.get("auths")
    for key in keys if isinstance(logins, dict) else ():
        entry = logins.get(key) if isinstance(logins, dict) else None
        found = _decoded(entry) if isinstance(entry, dict) else None
        if found is not None:
            return found
    return None


def _ask(helper: str, key: str) -> Login | None:
    """Source: docker-credential-helpers, README, "get"."""
    try:
        done = run([f"docker-credential-{helper}", "get"], stdin=key.encode(), timeout_s=_HELPER_TIMEOUT_S)
        answer = decode_json(done.stdout) if done.code == 0 else {}
    except (WindlassError, ValueError):
        return None  # then the registry says what is missing
    if not isinstance(answer, dict) or not answer.get("Secret"):
        return None
    user = str(answer.get("Username", ""))
    return Login(user="" if user == "<token>" else user, password=str(answer["Secret"]))


def _decoded(entry: Mapping[str, object]) -> Login | None:
    if entry.get("identitytoken"):
        return Login(user="", password=str(entry["identitytoken"]))
    try:
        user, _, password = base64.b64decode(str(entry.get("auth", ""))).decode().partition(":")
    except ValueError:  # of base64, of UTF-8, or of letters that base64 has not
        return None
    return Login(user=user, password=password) if user else None
