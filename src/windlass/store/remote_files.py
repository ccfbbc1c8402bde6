"""Remote files that can be read from any offset: over HTTP, or in buckets through fsspec."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import field
from email.message import Message
from typing import IO, Any, Protocol, Self
from urllib.parse import urlsplit

from windlass.core.dataclass import dataclass
from windlass.core.errors import UnreachableError
from windlass.core.version import VERSION
from windlass.store.faults import lacks_extra

__all__ = ["BucketBlob", "HttpBlob", "LocalFiles", "file_system", "full_url", "open_http"]

_HTTP_TIMEOUT_S = 60.0
_HTTP_PIECE_BYTES = 1 << 18
_BUCKET_PIECE_BYTES = 16 << 20
_SHORT = re.compile(r"(s3|gs):(?!//)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBlob:
    """File at an HTTP URL; a server without `Range` support sends it from the beginning."""

    url: str
    size_bytes: int = -1
    tag: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self, offset: int) -> Iterator[bytes]:
        """Yield the file's bytes from an offset."""
        headers = {**self.headers, "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        try:
            opened = open_http(self.url, headers)
        except urllib.error.HTTPError as error:
            if error.code == 416 and error.headers.get("Content-Range", "") == f"bytes */{offset}":
                return  # it is complete
            raise
        with opened as answer:
            skipped = 0 if answer.status == 206 else offset
            if answer.status == 206 and not answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                raise UnreachableError(f"{self.url} sent a different range than requested", code="remote-unreachable")
            expected = int(answer.headers.get("Content-Length", "-1"))
            received = 0
            while piece := answer.read(_HTTP_PIECE_BYTES):
                received += len(piece)
                if skipped >= len(piece):
                    skipped -= len(piece)
                    continue
                yield piece[skipped:]
                skipped = 0
            if received < expected:
                raise EOFError(f"the connection was closed after {received} of {expected} bytes")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that drops tokens when the host changes."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if made is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            made.remove_header("Authorization")
        return made


class _Answer(Protocol):
    """Those parts of urllib's response that are used."""

    status: int
    headers: Message

    def read(self, size: int = -1, /) -> bytes: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *details: object) -> None: ...


def open_http(
    url: str,
    headers: Mapping[str, str],
    *,
    method: str = "GET",
    form: bytes | None = None,
    timeout_s: float = _HTTP_TIMEOUT_S,
) -> _Answer:
    """Send an HTTP request, using proxies from the environment. Raises URLError, HTTPError.

    Args:
        form: body for a POST request.
        timeout_s: timeout for the connection and for each read.
    """
    method = method if form is None else "POST"
    known = {"User-Agent": f"windlass/{VERSION}", **headers}
    request = urllib.request.Request(url, data=form, method=method, headers=known)  # noqa: S310 - callers allow http(s) only
    answer: _Answer = urllib.request.build_opener(_Redirects).open(request, timeout=timeout_s)
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketBlob:
    """File that fsspec can read in ranges.

    Attributes:
        path: path without the scheme, as fsspec expects it.
    """

    url: str
    size_bytes: int
    tag: str
    system: Any
    path: str

    def read(self, offset: int) -> Iterator[bytes]:
        """Yield the file's bytes from an offset, one range per request."""
        while offset < self.size_bytes:
            end = min(offset + _BUCKET_PIECE_BYTES, self.size_bytes)
            piece = self.system.cat_file(self.path, start=offset, end=end)
            if not piece:
                raise EOFError(f"received nothing at byte {offset} of {self.size_bytes}")
            yield piece
            offset += len(piece)


def full_url(text: str) -> str:
    """Expand `s3:bucket/x` to `s3://bucket/x`; return anything else unchanged."""
    return _SHORT.sub(r"\1://", text, count=1) if _SHORT.match(text) else text


class LocalFiles:
    """Local folder that has the fsspec methods that a store calls, without needing fsspec."""

    protocol = "file"

    def find(self, path: str, *, detail: bool = True) -> dict[str, dict[str, Any]]:
        """Return the size and time of files below a folder, by path; empty if the folder is missing."""
        assert detail
        found = {}
        for folder, _, names in os.walk(path):
            for name in names:
                file = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    found[file] = self.info(file)
        return found

    def info(self, path: str) -> dict[str, Any]:
        """Return the size and time of a file. Raises FileNotFoundError."""
        status = os.stat(path)
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
        return {"name": path, "type": kind, "size": status.st_size, "mtime": status.st_mtime}

    def cat_file(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a file's bytes from `start` to `end`."""
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def rm_file(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""
        os.unlink(path)


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system for a URL, fsspec's or `LocalFiles`, and the path in it.

    Raises:
        PreconditionError: the library for its scheme is not installed (`extra-missing`).
    """
    url = full_url(url)
    if url.startswith("file://") or ("://" not in url and "::" not in url):
        return LocalFiles(), os.path.abspath(os.path.expanduser(url.removeprefix("file://"))).rstrip("/")
    scheme = url.partition(":")[0]
    try:
        import fsspec  # lazy: from the extra `data`

        options: dict[str, Any] = {}
        if scheme in ("s3", "gs"):  # no caching of listings or credentials
            options = {"use_listings_cache": False, "skip_instance_cache": True}
        if scheme == "s3":
            options["config_kwargs"] = {"read_timeout": 60, "connect_timeout": 20, "retries": {"total_max_attempts": 1}}
        system, path = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:  # fsspec raises ValueError for an unknown scheme
        raise lacks_extra(url, error) from error
    if scheme == "s3":
        system.retries = 2  # `retry` handles the rest
    return system, path.rstrip("/")
