"""Resolution of a tag at a registry, without an engine.

Source: OCI Distribution Specification 1.1, "Pulling manifests"; CNCF Distribution, "Token Authentication
Specification" and "Oauth2 Token Authentication".
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, NotFoundError, UnreachableError, WindlassError
from windlass.core.json_text import decode_json, read_json
from windlass.core.process import run
from windlass.pin.image.naming import Reference

__all__ = ["Login", "fetch_digest", "find_login"]

_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ACCEPT = ", ".join(_KINDS)
_CHALLENGE = re.compile(r'\b(\w{1,64})="([^"]*)"')
_MAX_CHALLENGE = 8192
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HUB_HOST = "registry-1.docker.io"
_MAX_BYTES = 8 << 20
"""Size limit of a response; registries accept manifests of at most 4 MiB (specification, "Pushing Manifests")."""


def fetch_digest(reference: Reference, *, timeout_s: float = 10.0) -> str:
    """Return the digest (`sha256:...`) that a registry has for a tag or digest.

    This takes one to three requests, each of at most `timeout_s`.

    Raises:
        NotFoundError: the registry has no such image (`image-not-found`).
        AccessError: it requires another login (`remote-forbidden`).
        UnreachableError: it does not respond, or not as a registry (`remote-unreachable`).
    """
    host = _HUB_HOST if reference.registry == "docker.io" else reference.registry
    address = f"{_scheme(host)}://{host}/v2/{reference.repository}/manifests/"
    address += reference.digest or reference.tag or "latest"
    login = find_login(reference.registry)
    status, headers, body = _get(address, {"Accept": _ACCEPT}, reference, timeout_s)
    if status == 401:
        proof = _proof(headers.get("www-authenticate", ""), reference, login, timeout_s)
        status, headers, body = _get(address, {"Accept": _ACCEPT, "Authorization": proof}, reference, timeout_s)
    if status in (401, 403):
        raise _no_access(reference, login)
    if status == 404:
        raise NotFoundError(
            f"the registry {reference.registry} has no image `{reference}`",
            hint="check the name and the tag; an image that was never pushed exists only in its builder's engine",
            code="image-not-found",
        )
    if status != 200:
        raise _unreachable(reference, f"it answered {status}")
    digest = headers.get("docker-content-digest") or f"sha256:{hashlib.sha256(body).hexdigest()}"
    if not _DIGEST.fullmatch(digest):
        raise _unreachable(reference, f"its digest is {digest[:80]!r}, not `sha256:` and 64 hex digits")
    return digest


def _scheme(host: str) -> str:
    """Return `https`, or `http` for a registry on this machine."""
    return "http" if re.match(r"(?:localhost|127\.[0-9.]+)(?::|\Z)", host) else "https"


def _proof(challenge: str, reference: Reference, login: Login | None, timeout_s: float) -> str:
    """Return the Authorization header that answers a challenge; an identity token is exchanged for a registry token."""
    basic = "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode() if login else ""
    if not challenge.lower().startswith("bearer"):
        if login is None:
            raise _no_access(reference, login)
        return basic
    asked = dict(_CHALLENGE.findall(challenge[:_MAX_CHALLENGE]))
    scope = asked.get("scope") or f"repository:{reference.repository}:pull"
    wanted = {"service": asked.get("service", ""), "scope": scope}
    realm = asked.get("realm", "")
    if not _is_address(realm):
        raise _unreachable(reference, f"its token server has the address {realm[:80]!r}, not an https one")
    if login is not None and not login.user:
        form = urlencode(
            {"grant_type": "refresh_token", "client_id": "windlass", "refresh_token": login.password} | wanted
        )
        status, _, body = _get(realm, {}, reference, timeout_s, form.encode())
    else:
        headers = {"Authorization": basic} if login else {}
        status, _, body = _get(f"{realm}?{urlencode(wanted)}", headers, reference, timeout_s)
    if status != 200:
        raise _no_access(reference, login)
    try:
        answer = decode_json(body)
        token = answer.get("token") or answer["access_token"]
    except (ValueError, KeyError, AttributeError) as error:
        raise _unreachable(reference, "its token server answered without a token") from error
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise _unreachable(reference, "its token server answered with a token that is not plain text")
    return f"Bearer {token}"


def _is_address(realm: str) -> bool:
    """Return True if a token server may be called; never `file:`, and no login over plain HTTP."""
    try:
        parts = urlsplit(realm)
        return bool(parts.hostname) and parts.scheme in ("https", _scheme(parts.netloc))
    except ValueError:
        return False


def _get(
    address: str, headers: Mapping[str, str], reference: Reference, timeout_s: float, form: bytes | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send a request and return the status, headers and body; a form is sent with POST."""
    from http.client import HTTPException  # lazy: imports ssl, and an engine mostly has the digest
    from urllib.error import HTTPError  # lazy: as above

    from windlass.store.remote_files import open_http  # lazy: as above

    try:
        with open_http(address, headers, form=form, timeout_s=timeout_s) as answer:
            body = answer.read(_MAX_BYTES + 1)
            if len(body) > _MAX_BYTES:
                raise _unreachable(reference, f"it answered with more than {_MAX_BYTES >> 20} MiB")
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, body
    except HTTPError as error:
        return error.code, {name.lower(): value for name, value in error.headers.items()}, b""
    except (OSError, ValueError, HTTPException) as error:
        why = str(getattr(error, "reason", "") or error) or type(error).__name__
        raise _unreachable(reference, why) from error


def _no_access(reference: Reference, login: Login | None) -> AccessError:
    who = "requests without a login" if login is None else f"the login `{login.user or 'token'}`"
    place = "" if reference.registry == "docker.io" else f" {reference.registry}"
    return AccessError(
        f"the registry {reference.registry} denied access to `{reference}` for {who}",
        hint=f"docker login{place}",
        code="remote-forbidden",
    )


def _unreachable(reference: Reference, why: str) -> UnreachableError:
    return UnreachableError(
        f"the registry {reference.registry} did not return the digest of `{reference}`: {why}",
        hint="try again; or name the image by digest (NAME@sha256:...), which needs no registry",
        code="remote-unreachable",
    )


_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io")
_HELPER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """User name and password for one registry; without a name, an identity token."""

    user: str
    password: str = field(repr=False)


def find_login(registry: str, environ: Mapping[str, str] = os.environ) -> Login | None:
    """Return the login for a registry (`ghcr.io`), or None; may run a credential helper for up to 30 s."""
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
    """Get a login from a credential helper; source: docker-credential-helpers, README, "get"."""
    try:
        done = run([f"docker-credential-{helper}", "get"], stdin=key.encode(), timeout_s=_HELPER_TIMEOUT_S)
        answer = decode_json(done.stdout) if done.code == 0 else {}
    except (WindlassError, ValueError):
        return None  # then the registry reports the problem
    if not isinstance(answer, dict) or not answer.get("Secret"):
        return None
    user = str(answer.get("Username", ""))
    return Login(user="" if user == "<token>" else user, password=str(answer["Secret"]))


def _decoded(entry: Mapping[str, object]) -> Login | None:
    if entry.get("identitytoken"):
        return Login(user="", password=str(entry["identitytoken"]))
    try:
        user, _, password = base64.b64decode(str(entry.get("auth", ""))).decode().partition(":")
    except ValueError:  # invalid base64 or UTF-8
        return None
    return Login(user=user, password=password) if user else None
