"""Data from `s3:` and `gs:` sources: an object, or everything below a prefix."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.pin.data.listing import Listing, RemoteFile
from windlass.store.fetching import retry
from windlass.store.remote_files import BucketBlob, file_system, full_url

__all__ = ["list_bucket", "tag_now"]

_TAGS = ("VersionId", "generation", "ETag", "etag", "LastModified", "updated", "mtime")


def list_bucket(name: str, url: str) -> Listing:
    """List the objects at a URL; an object takes precedence over a prefix with the same name.

    Raises:
        NotFoundError, AccessError, UnreachableError: as the store reports.
        PreconditionError: a key is not a valid file path.
    """
    url = full_url(url)
    system, path = file_system(url)
    found = _asked(url, lambda: _find(system, path, is_prefix=url.endswith("/")))
    if not found:
        raise NotFoundError(f"data `{name}`: nothing at {url}", hint="names are case-sensitive", code="file-not-found")
    if list(found) == [path]:
        blob = _blob(url, system, path, found[path])
        return Listing(kind="file", files=(RemoteFile(path="", blob=blob),), revision=blob.tag)
    files = []
    for key, info in sorted(found.items()):
        inner = key.removeprefix(f"{path}/")
        if any(part in ("", ".", "..") for part in inner.split("/")):
            raise PreconditionError(
                f"data `{name}`: the key `{key}` is not a valid file path",
                hint="rename it at the source",
                code="special-file",
            )
        files.append(RemoteFile(path=inner, blob=_blob(f"{url.rstrip('/')}/{inner}", system, key, info)))
    return Listing(kind="folder", files=tuple(files))


def tag_now(blob: BucketBlob) -> str:
    """Request the tag that identifies an object's current state."""
    return str(_asked(blob.url, lambda: _tag(blob.system.info(blob.path))))


def _find(system: Any, path: str, *, is_prefix: bool) -> dict[str, Any]:
    if not is_prefix:
        with contextlib.suppress(FileNotFoundError):
            info = system.info(path)
            if info["type"] == "file":
                return {path: info}
    found = system.find(path, detail=True)
    return {key: info for key, info in found.items() if not key.endswith("/") and info["type"] == "file"}


def _blob(url: str, system: Any, path: str, info: dict[str, Any]) -> BucketBlob:
    return BucketBlob(url=url, size_bytes=int(info["size"]), tag=_tag(info), system=system, path=path)


def _tag(info: dict[str, Any]) -> str:
    for key in _TAGS:
        if info.get(key) not in (None, "", "null"):
            return f"{str(info[key]).strip(chr(34))}/{info['size']}"
    return f"?/{info['size']}"


def _asked(url: str, ask: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    retry(url, lambda: answers.append(ask()))
    return answers[-1]
