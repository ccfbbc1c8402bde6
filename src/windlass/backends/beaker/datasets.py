"""Datasets: folders stored at Beaker, created from local folders and read file by file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from windlass.backends.beaker.connection import BeakerConnection
from windlass.backends.beaker.values import BeakerFile
from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError

if TYPE_CHECKING:
    from windlass.backends.beaker.client import BeakerClient

__all__ = ["Datasets"]

_UPLOAD_S = 600.0
"""Time limit for uploading one file."""

_NUM_SENDERS = 8
_NUM_ROUNDS = 3
_CHUNK = 1 << 20


class Datasets(BeakerConnection):
    """Part of the service that manages datasets."""

    def create_dataset(self, name: str, folder: Path, *, workspace: str = "", description: str = "") -> str:
        """Create a dataset from a folder's files, including empty files; its name must identify the content.

        An existing dataset of that name is reused; if its upload was interrupted, it is completed. Modes and
        links are not kept: a link becomes the file that it points to.

        Args:
            workspace: full name; empty means the account's default.

        Returns:
            The dataset's id.
        """
        with self.asking(f"creating dataset `{name}`") as client:
            dataset, is_new = self._made(client, name, workspace, description)
        if dataset.HasField("committed"):
            return str(dataset.id)
        sizes = {_inside(path, folder): path.stat().st_size for path in _files_below(folder)}
        there = {} if is_new else self._sizes(dataset.id)
        for _ in range(_NUM_ROUNDS):
            missing = [name for name, size in sizes.items() if there.get(name) != size]
            if not missing:
                break
            self._send_all(dataset, folder, missing)
            there = self._sizes(dataset.id)
        else:
            message = f"dataset `{name}` did not store the files as sent: {missing[0]} has another size"
            raise PreconditionError(
                message, hint="check whether the file changed during the upload", code="digest-mismatch"
            )
        with self.asking(f"closing dataset `{name}`") as client:
            client.dataset.commit(dataset)
        return str(dataset.id)

    def find_dataset(self, name: str) -> str:
        """Return the id of the user's dataset with this name; empty if there is none."""
        with self.asking(f"looking for dataset `{name}`") as client:
            found = self._own_dataset(client, name)
            return "" if found is None else str(found.id)

    def files(self, dataset: str, *, prefix: str = "") -> tuple[BeakerFile, ...]:
        """Return a dataset's files, sorted by path, even while it is being written; raises NotFoundError.

        Args:
            dataset: its id, or `AUTHOR/NAME`.
            prefix: return only paths that start with it.
        """
        with self.asking(f"listing dataset {dataset}") as client:
            options = client.messages.ListDatasetFilesRequest.Opts(
                dataset_id=client.dataset.resolve_dataset_id(dataset), prefix=prefix or None
            )
            pages = client.pages("ListDatasetFiles", client.messages.ListDatasetFilesRequest(options=options))
            found = [client.decoding.file_of(file) for page in pages for file in page.dataset_files]
        return tuple(sorted((file for file in found if file.path.startswith(prefix)), key=lambda file: file.path))

    def read(self, dataset: str, path: str, offset: int = 0, length: int = -1) -> bytes:
        """Return up to `length` bytes of a dataset's file from an offset; empty at or past its end.

        Args:
            dataset: its id.
            length: the maximum number of bytes; -1 for all.
        """
        return b"".join(self.read_parts(dataset, path, offset, length))

    def read_parts(self, dataset: str, path: str, offset: int = 0, length: int = -1) -> Iterator[bytes]:
        """Yield the same bytes as `read`, in chunks."""
        what = f"reading {path} of dataset {dataset}"
        with self.asking(what) as client:
            reply = self._range(client, dataset, path, offset, length)
        if reply is None or length == 0:
            return
        skip = offset if reply.status_code != 206 else 0  # a server without support for ranges sends the whole file
        parts, left = reply.iter_content(_CHUNK), length
        while left != 0:
            with self.asking(what):
                part = next(parts, None)
            if part is None:
                return
            fresh, skip = part[skip:], max(0, skip - len(part))
            if left >= 0:
                fresh = fresh[:left]
                left -= len(fresh)
            if fresh:
                yield fresh

    def download(self, dataset: str, folder: Path, *, prefix: str = "") -> tuple[Path, ...]:
        """Download a dataset's files to a folder; complete files are not downloaded again.

        Raises:
            PreconditionError: a file's name leads out of the folder, or the folder cannot be written.
        """
        brought = []
        for file in self.files(dataset, prefix=prefix):
            target = folder / file.path
            if not target.resolve().is_relative_to(folder.resolve()):
                raise PreconditionError(
                    f"`{file.path}` of dataset {dataset} is outside of {folder}", code="beaker-path"
                )
            if not target.is_file() or target.stat().st_size != file.size:
                self._fetch(dataset, file, target)
            brought.append(target)
        return tuple(brought)

    def _fetch(self, dataset: str, file: BeakerFile, target: Path) -> None:
        """Download a file, resuming where this call or an earlier one was interrupted."""
        part = target.with_name(f".{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as out:
                if out.tell() > file.size:
                    out.truncate(0)
                self._append(dataset, file, out)
            os.replace(part, target)
        except OSError as error:
            message = f"{target} cannot be written: {error.strerror or error}"
            raise PreconditionError(message, hint="name another folder", code="not-writable") from error

    def _append(self, dataset: str, file: BeakerFile, out: BinaryIO) -> None:
        """Append the rest of a file; losing the connection after some bytes have arrived is not a failure."""
        before = -1
        while out.tell() < file.size:
            try:
                out.writelines(self.read_parts(dataset, file.path, out.tell()))
                return
            except UnreachableError:
                if out.tell() <= before:
                    raise
                before = out.tell()

    def _range(self, client: BeakerClient, dataset: str, path: str, offset: int, length: int) -> Any:
        last = str(offset + length - 1) if length > 0 else ""
        headers = {"Range": f"bytes={offset}-{last}"} if offset or last else {}
        try:
            return client.dataset.http_request(
                f"datasets/{client.dataset.resolve_dataset_id(dataset)}/files/{quote(path, safe='')}",
                headers=headers,
                stream=True,
                exceptions_for_status={404: FileNotFoundError(path), 416: EOFError(path)},
            )
        except FileNotFoundError as error:
            message = f"dataset {dataset} has no file `{path}`"
            raise NotFoundError(message, hint="", code="beaker-not-found") from error
        except EOFError:
            return None

    def _made(self, client: BeakerClient, name: str, workspace: str, description: str) -> tuple[Any, bool]:
        """Create the dataset, or find it if it exists or a reply is lost; return it and whether it is new."""
        workspace_id = self._workspace_id(client, workspace)
        while True:
            try:
                reply = client.dataset.http_request(
                    "datasets",
                    method="POST",
                    query={"name": name},
                    data={"workspace": workspace_id, "description": description or None},
                    exceptions_for_status={409: client.errors.BeakerDatasetConflict(name)},
                )
                return client.dataset.get(reply.json()["id"]), True
            except (client.errors.RequestException, client.errors.BeakerDatasetConflict) as error:
                if 400 <= getattr(getattr(error, "response", None), "status_code", 0) < 500:
                    raise
                found = self._own_dataset(client, name)
                if found is not None:
                    return found, False
                if isinstance(error, client.errors.BeakerDatasetConflict):
                    raise
                time.sleep(0.5)  # the deadline ends this

    def _own_dataset(self, client: BeakerClient, name: str) -> Any:
        author = self._id("user", "", lambda: client.user.get().name)
        try:
            return client.dataset.get(f"{author}/{name}")
        except client.errors.BeakerNotFoundError:
            return None

    def _sizes(self, dataset: str) -> dict[str, int]:
        return {file.path: file.size for file in self.files(dataset)}

    def _send_all(self, dataset: Any, folder: Path, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(_NUM_SENDERS) as pool:
            for _ in pool.map(lambda name: self._send(dataset, folder / name, name), names):
                pass

    def _send(self, dataset: Any, path: Path, target: str) -> None:
        with self.asking(f"sending {path} to dataset {dataset.name}", _UPLOAD_S) as client:
            client.dataset.upload(dataset, path, quote(target))


def _files_below(folder: Path) -> Iterable[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file():
                yield path


def _inside(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
