"""Common interface to checkpoint folders in a file system or, through fsspec, in a bucket."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from windlass.core.errors import PreconditionError
from windlass.core.files import fsync_directory

__all__ = ["BucketFolder", "Files", "LocalFolder", "open_files"]


class Files(Protocol):
    """Folder with files. Names are relative and use `/`. All methods block; missing files raise FileNotFoundError."""

    @property
    def path(self) -> str:
        """Absolute path or URL."""

    @property
    def can_rename(self) -> bool:
        """Return whether whole folders can be renamed atomically."""

    def at(self, name: str) -> Files:
        """Return a subfolder, which need not exist."""

    def names(self) -> list[str]:
        """Return the sorted names directly in the folder, or an empty list if the folder is missing."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read bytes from a file; return fewer at its end."""

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        """Fill a buffer with the bytes of a file from `start` on; return the number of bytes read."""

    def create(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Write a new file, complete and durable once the block ends without an error. Creates folders."""

    def sync(self, *, is_deep: bool = False) -> None:
        """Make the folder's entries durable; with `is_deep`, also those of its subfolders."""

    def rename(self, old: str, new: str) -> None:
        """Rename a folder. Requires `can_rename`."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its contents. Idempotent."""


def open_files(path: str) -> Files:
    """Open the folder at a local path or an fsspec URL, such as `s3://bucket/run`.

    Raises:
        PreconditionError: a package for this kind of URL is not installed.
    """
    if "://" in path and not path.startswith("file://"):
        return BucketFolder.open(path)
    return LocalFolder(Path(os.path.abspath(os.path.expanduser(path.removeprefix("file://")))))


class LocalFolder:
    """Folder in a file system that all processes share."""

    can_rename = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def path(self) -> str:
        return str(self.folder)

    def at(self, name: str) -> LocalFolder:
        return LocalFolder(self.folder / name)

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, name: str) -> int:
        return os.stat(self.folder / name).st_size

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        with open(self.folder / name, "rb", buffering=0) as file:
            file.seek(start)
            return file.readall() if end is None else file.read(end - start)

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        place = 0
        with open(self.folder / name, "rb", buffering=0) as file:
            file.seek(start)
            while place < len(buffer) and (
                count := file.readinto(buffer[place:])
            ):  # a single read returns at most 2 GiB
                place += count
        return place

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "wb", buffering=0) as file:
                yield _Whole(file)  # type: ignore[misc]
                os.fsync(file.fileno())
        except OSError as error:
            if error.filename is None:  # a disk-full error has no file name
                error.filename = str(path)
            raise

    def sync(self, *, is_deep: bool = False) -> None:
        for folder in [folder for folder, _, _ in os.walk(self.folder, topdown=False)] if is_deep else [self.folder]:
            fsync_directory(Path(folder))

    def rename(self, old: str, new: str) -> None:
        os.rename(self.folder / old, self.folder / new)

    def remove(self, name: str) -> None:
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


class _Whole:
    """Raw file whose `write` either writes everything or raises."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, content: Any) -> int:
        rest = memoryview(content)
        while rest:
            rest = rest[self._file.write(rest) :]
        return len(content)


class BucketFolder:
    """Folder in an fsspec store, where a file exists once it is closed and folders are never renamed."""

    can_rename = False

    def __init__(self, system: Any, root: str, path: str) -> None:
        self._system, self._root, self.path = system, root.rstrip("/"), path.rstrip("/")

    @classmethod
    def open(cls, url: str) -> BucketFolder:
        """Open the folder at a URL."""
        kind = url.partition("://")[0]
        try:
            import fsspec  # lazy: only for URLs

            system, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise PreconditionError(
                f"cannot open {url}: {error}",
                hint=f"`pip install fsspec` and its package for `{kind}:`, such as `s3fs` or `gcsfs`",
                code="checkpoint-storage",
            ) from error
        return cls(system, str(root), url)

    def at(self, name: str) -> BucketFolder:
        return BucketFolder(self._system, f"{self._root}/{name}", f"{self.path}/{name}")

    def names(self) -> list[str]:
        self._system.invalidate_cache()  # a cached listing misses other processes' saves
        try:
            found = self._system.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:  # each storage has different errors, such as for missing credentials
            raise PreconditionError(
                f"cannot list {self.path}: {error}",
                hint="check the URL and the credentials of this storage",
                code="checkpoint-storage",
            ) from error
        return sorted({str(entry).rstrip("/").rpartition("/")[2] for entry in found} - {""})

    def size(self, name: str) -> int:
        return int(self._system.info(self._full(name))["size"])

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            return b""
        content = self._system.cat_file(self._full(name), start=start or None, end=end)
        return bytes(content)

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        content = self.read(name, start, start + len(buffer))
        buffer[: len(content)] = content
        return len(content)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        try:
            file = self._system.open(self._full(name), "wb")
        except FileNotFoundError:  # for a store with real folders; buckets have none, and some cannot be listed
            self._system.makedirs(self._full(name).rpartition("/")[0], exist_ok=True)
            file = self._system.open(self._full(name), "wb")
        try:
            yield file
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
            raise
        file.close()

    def sync(self, *, is_deep: bool = False) -> None:
        """Do nothing, because an object is durable once its upload has been acknowledged."""

    def rename(self, old: str, new: str) -> None:
        raise NotImplementedError(f"{self.path} cannot rename {old} to {new}")

    def remove(self, name: str) -> None:
        self._system.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            self._system.rm(self._full(name), recursive=True)

    def _full(self, name: str) -> str:
        return f"{self._root}/{name}"
