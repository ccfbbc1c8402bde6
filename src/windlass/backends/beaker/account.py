"""Beaker account and server address, read in the same way as Beaker's own tools read them.

Sources: `Config` of beaker-py 2.8 (`BEAKER_TOKEN`, `BEAKER_ADDR`, `BEAKER_CONFIG`, `~/.beaker/config.yml`). The
variables come before the file; if `BEAKER_CONFIG` is set, no other file is read; `BEAKER_ADDR` is the address of
the web server only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.config.foreign_text import load_foreign_yaml
from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, PreconditionError, SourcePlace
from windlass.core.files import write_atomic
from windlass.core.names import nearest

__all__ = ["ADDRESS", "CONFIG", "TOKEN", "BeakerAccount", "config_path", "read_account", "set_default_workspace"]

TOKEN = "BEAKER_TOKEN"  # noqa: S105 - a variable's name
ADDRESS = "BEAKER_ADDR"
CONFIG = "BEAKER_CONFIG"

_KEYS = ("user_token", "agent_address", "rpc_address", "default_org", "default_workspace", "default_image")
_SILENT = ("updater_timestamp", "updater_message")
"""Keys that only Beaker's own command line uses."""

_SERVER = "https://beaker.org"
_MAX_FILE = 1 << 20
_TOKEN_TEXT = re.compile(r"[!-~]+")
_GET_A_TOKEN = "take it from your user page of Beaker, then: export BEAKER_TOKEN=...; or run: beaker account login"  # noqa: S105


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerAccount:
    """Address, token and names needed to connect to Beaker.

    Attributes:
        rpc_address: `host:port` of most calls.
        path: the file that was read; None if there is none.
        source: where the token comes from, for messages.
        notes: sentences about entries of the file that were not understood.
    """

    token: str
    agent_address: str = _SERVER
    rpc_address: str = "beaker.org:443"
    default_org: str = "ai2"
    default_workspace: str = ""
    default_image: str = ""
    path: Path | None = None
    source: str = ""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"BeakerAccount({self.agent_address}, token of {self.source or 'nowhere'})"


def config_path(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the path of the config file, whether it exists or not; None without a home folder."""
    environ = os.environ if environ is None else environ
    if CONFIG in environ:
        return Path(environ[CONFIG])
    home = environ.get("HOME")
    return Path(home) / ".beaker" / "config.yml" if home else None


def read_account(environ: Mapping[str, str] | None = None) -> BeakerAccount:
    """Return the account that the variables and the config file define.

    Raises:
        AccessError: there is no token, an empty one, or one that cannot be sent.
        PreconditionError: the file cannot be read, or is not what Beaker's tools write.
    """
    environ = os.environ if environ is None else environ
    path = config_path(environ)
    is_there = path is not None and path.is_file()
    data = _read(path) if path is not None and is_there else {}
    token, source = data.get("user_token") or "", str(path)
    if TOKEN in environ:
        token, source = environ[TOKEN], TOKEN
    if not token:
        raise AccessError(_no_token(path, is_there=is_there, environ=environ), hint=_GET_A_TOKEN, code="beaker-token")
    if not _TOKEN_TEXT.fullmatch(token):
        message = f"the token of {source} has a blank, a line break or another character that tokens cannot have"
        raise AccessError(message, hint=_GET_A_TOKEN, code="beaker-token")
    address = environ.get(ADDRESS) or data.get("agent_address") or _SERVER
    if not address.startswith(("https://", "http://")):
        where = ADDRESS if environ.get(ADDRESS) else f"`agent_address` in {path}"
        message = f"{where} is `{address}`, which is not the address of a web server"
        raise PreconditionError(message, hint=f"write it as {_SERVER}", code="beaker-config")
    return BeakerAccount(
        token=token,
        agent_address=address.rstrip("/"),
        rpc_address=data.get("rpc_address") or "beaker.org:443",
        default_org=(data["default_org"] or "") if "default_org" in data else "ai2",
        default_workspace=data.get("default_workspace") or "",
        default_image=data.get("default_image") or "",
        path=path if is_there else None,
        source=source,
        notes=_notes(data, path),
    )


def set_default_workspace(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """Set the default workspace in the config file, as Beaker's own tool does; other entries are kept.

    Returns:
        The path of the file, which is created if missing, readable by its owner only.

    Raises:
        PreconditionError: the file cannot be read or written, or there is no home folder.
    """
    import yaml  # lazy: PyYAML costs 25 ms

    path = config_path(environ)
    if path is None:
        raise PreconditionError("HOME is not set, so Beaker's config file has no path", code="beaker-config")
    data = _read(path) if path.is_file() else {}
    data["default_workspace"] = name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, yaml.safe_dump(data).encode(), mode=_mode(path))
    except OSError as error:
        raise PreconditionError(f"{path} cannot be written: {error.strerror}", code="beaker-config") from error
    return path


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777 if path.exists() else 0o600


def _read(path: Path) -> dict[str, Any]:
    """Return the entries in a config file, including those with empty values."""
    import yaml  # lazy: PyYAML costs 25 ms

    hint = f"write a new one with: beaker account login; or point {CONFIG} at another file"
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE)
        data = load_foreign_yaml(content.decode(), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PreconditionError(f"{path} cannot be read: {said}", hint=hint, code="beaker-config") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = SourcePlace(str(path), mark.line + 1, mark.column + 1) if mark is not None else SourcePlace(str(path))
        said = getattr(error, "problem", None) or "not YAML"
        raise PreconditionError(f"{path} is not YAML: {said}", hint=hint, code="beaker-config", place=place) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        said = f"it holds a {type(data).__name__}, not keys with values"
        raise PreconditionError(f"{path} is not a Beaker config file: {said}", hint=hint, code="beaker-config")
    for key in _KEYS:
        if data.get(key) is not None and not isinstance(data[key], str):
            message = f"`{key}` in {path} is a {type(data[key]).__name__}, not a text"
            raise PreconditionError(message, hint="put it in quotes", code="beaker-config")
    return {str(key): value for key, value in data.items()}


def _notes(data: Mapping[str, Any], path: Path | None) -> tuple[str, ...]:
    """Return a sentence about each unknown key, which is misspelt or from a later version of Beaker's tools."""
    notes = []
    for key in data:
        if key not in _KEYS and key not in _SILENT:
            close = nearest(key, _KEYS)
            meant = f"; did you mean `{close}`?" if close else ""
            notes.append(f"`{key}` in {path} is an unknown key and has no effect{meant}")
    return tuple(notes)


def _no_token(path: Path | None, *, is_there: bool, environ: Mapping[str, str]) -> str:
    if TOKEN in environ:
        return f"the variable {TOKEN} is set and empty"
    if is_there:
        return f"{path} has no `user_token`, and {TOKEN} is not set"
    return f"no token for Beaker: {TOKEN} is not set, and {path or 'a config file'} does not exist"
