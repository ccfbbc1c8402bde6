"""Data from `hf:` sources: a model or dataset repository on the Hugging Face hub, pinned to a commit.

    hf:ORG/NAME[@REVISION][/PATH]            a model
    hf:datasets/ORG/NAME[@REVISION][/PATH]   a dataset

The token is the variable HF_TOKEN, else the vault's secret HF_TOKEN, else the token of `hf auth login`.

Source: https://huggingface.co/docs/hub/api. HF_ENDPOINT, HF_TOKEN and HF_HOME have the same meaning as for the hub's own tools.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError
from windlass.core.json_text import decode_json
from windlass.pin.data.listing import Listing, RemoteFile
from windlass.pin.data.pinned import no_secret
from windlass.store.fetching import retry
from windlass.store.remote_files import HttpBlob, open_http

__all__ = ["list_hub"]

_TOKEN = "HF_TOKEN"  # noqa: S105 - a variable's name, and a secret's
_ENDPOINT = "https://huggingface.co"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_BYTES = 256 << 20
"""Size limit of a list of files; a million files take about 200 MB."""


def list_hub(name: str, source: str, *, find_secret: Callable[[str], str] = no_secret) -> Listing:
    """List a repository's files at the current commit of its revision.

    Args:
        find_secret: see `DataPlaces`.

    Raises:
        NotFoundError, AccessError, UnreachableError: as the hub reports.
        PreconditionError: the source does not name a repository.
    """
    kind, repository, revision, inner = _parts(name, source)
    endpoint = os.environ.get("HF_ENDPOINT", _ENDPOINT).rstrip("/")
    headers = _authorisation(find_secret)
    address = f"{endpoint}/api/{kind}/{repository}/revision/{quote(revision, safe='')}?blobs=true"
    answer = _ask(address, headers)
    commit, siblings = answer.get("sha"), answer.get("siblings", [])
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise UnreachableError(f"{address} returned no commit", hint="check HF_ENDPOINT", code="remote-unreachable")
    prefix = f"{endpoint}/{'datasets/' if kind == 'datasets' else ''}{repository}/resolve/{commit}"
    try:
        files = [_file(each, prefix, commit, headers) for each in siblings]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"{address} did not return a list of files in the hub's format: {error!r:.200}"
        raise UnreachableError(message, hint="check HF_ENDPOINT", code="remote-unreachable") from error
    if inner:
        single = [file for file in files if file.path == inner]
        if single:
            only = RemoteFile(path="", blob=single[0].blob, sha256=single[0].sha256)
            return Listing(kind="file", files=(only,), revision=commit)
        files = [
            RemoteFile(path=file.path.removeprefix(f"{inner}/"), blob=file.blob, sha256=file.sha256)
            for file in files
            if file.path.startswith(f"{inner}/")
        ]
    if not files:
        raise NotFoundError(
            f"data `{name}`: no `{inner}` in {repository} at {commit[:12]}",
            hint=f"{endpoint}/{repository}/tree/{commit} lists its files",
            code="file-not-found",
        )
    return Listing(kind="folder", files=tuple(files), revision=commit)


def _parts(name: str, source: str) -> tuple[str, str, str, str]:
    """Split a source into (models or datasets, ORG/NAME, revision, path)."""
    text = source.removeprefix("hf:").strip("/")
    kind = "datasets" if text.startswith("datasets/") else "models"
    text = text.removeprefix("datasets/").removeprefix("models/")
    organisation, _, rest = text.partition("/")
    repository, at, rest_of_revision = rest.partition("@")
    if at:
        revision, _, inner = rest_of_revision.partition("/")
    else:
        repository, _, inner = rest.partition("/")
        revision = "main"
    if not organisation or not repository or not revision:
        raise PreconditionError(
            f"data `{name}`: `{source}` does not name a repository",
            hint="write `hf:ORG/NAME`, `hf:datasets/ORG/NAME`, `hf:ORG/NAME@REVISION/PATH`",
            code="invalid-value",
        )
    return kind, f"{quote(organisation)}/{quote(repository)}", revision, inner


def _file(sibling: dict[str, Any], prefix: str, commit: str, headers: dict[str, str]) -> RemoteFile:
    """Convert an entry of the hub's list.

    Raises KeyError, TypeError, ValueError or AttributeError for anything else.
    """
    path = sibling["rfilename"]
    stored = sibling.get("lfs") or {}
    size, sha256 = stored.get("size", sibling.get("size", -1)), stored.get("sha256", "")
    size = -1 if size is None else size
    if type(size) is not int or size < -1:
        raise ValueError(f"{size!r} is not a size")
    if not isinstance(sha256, str) or (sha256 and not _SHA256.fullmatch(sha256)):
        raise ValueError(f"{sha256!r} is not a sha256")
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not a path in the repository")
    blob = HttpBlob(url=f"{prefix}/{quote(path)}", size_bytes=size, tag=commit, headers=headers)
    return RemoteFile(path=path, blob=blob, sha256=sha256)


def _authorisation(find_secret: Callable[[str], str]) -> dict[str, str]:
    token = os.environ.get(_TOKEN, "").strip() or find_secret(_TOKEN).strip()
    if not token:
        home = os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface"
        try:
            token = (Path(home) / "token").read_text().strip()
        except OSError:
            return {}
    return {"Authorization": f"Bearer {token}"}


def _ask(address: str, headers: dict[str, str]) -> dict[str, Any]:
    answers: list[Any] = []

    def ask() -> None:
        with open_http(address, headers) as answer:
            content = answer.read(_MAX_BYTES + 1)
        try:
            answers.append(decode_json(content, max_bytes=_MAX_BYTES))
        except ValueError as error:
            message = f"{address} does not respond like the Hugging Face hub: {error}"
            raise UnreachableError(message, hint="check HF_ENDPOINT", code="remote-unreachable") from error

    retry(address, ask)
    if not isinstance(answers[-1], dict):
        raise UnreachableError(f"{address} does not respond like the Hugging Face hub", code="remote-unreachable")
    return answers[-1]
