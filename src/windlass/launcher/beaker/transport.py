"""Transport for Beaker sites without ssh: uploads messages as a dataset, and reads records from jobs' results.

It replaces `RemoteClient`. The mirror's messages go to an outbox beside the run and are immediately applied to a
staging copy, a folder with the expected state of the site. When a job is submitted, all messages so far become its
bundle (`windlass.supervise.beaker.bundle`); later messages do not reach it. Before a pull, the staging copy is updated
from the results of the run's jobs.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import lock, write_atomic, write_json
from windlass.core.json_text import read_json
from windlass.launcher.remote.client import write_archive
from windlass.record.journal import SUFFIX
from windlass.runs.store import RunFolder
from windlass.supervise.beaker.bundle import CONTENT, RESULTS
from windlass.supervise.job import JobDocument
from windlass.supervise.remote.framing import pack
from windlass.supervise.remote.sync import exchange_news, fetch_files

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService
    from windlass.backends.beaker.values import BeakerFile

__all__ = ["BeakerTransport"]

_LOCK_S = 300.0
_LOOK_EVERY_S = 1.0
_RECORDS = ("journal/", "jobs/")
_LOGS = "logs/"


class BeakerTransport:
    """Transport that sends and receives one run's files as datasets.

    Args:
        run: the local run folder; outbox and staging copy are in its subfolder `transport`.
        state: path of windlass's folder in jobs.
        archive: the local zipapp.
        site: name of the site, for error messages.
    """

    def __init__(
        self, run: RunFolder, service: BeakerService, state: PurePosixPath, archive: Path, *, site: str
    ) -> None:
        self.name = site
        self.has_server = False
        self.archive_at_site = state / "archives" / archive.name
        self._run, self._service, self._archive = run, service, archive
        self._root = state / "runs" / run.id
        self._folder = run.path / "transport"
        self._staging = self._folder / "staging"
        self._looked_at = -_LOOK_EVERY_S

    # --- the protocol `Transport` ------------------------------------------------------------------------------

    def request(
        self, command: str, header: Mapping[str, Any], pieces: Iterable[bytes] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Like `RemoteClient.request`, but answer `sync` and `fetch` from the local staging copy.

        Raises:
            PreconditionError: the request needs a server at the site.
            UnreachableError: Beaker cannot be reached.
        """
        held = list(pieces)
        here = io.BytesIO(pack({**header, "root": str(self._staging)}, held))
        if command == "sync":
            if held:
                self._add_message(command, io.BytesIO(pack({**header, "sizes": None}, held)))
            if header["sizes"] is not None:
                self._receive((*_RECORDS, _LOGS) if header["logs"] else _RECORDS)
            return exchange_news(here)
        if command == "fetch":
            if "under" in header:
                self._receive((str(header["under"]),), is_whole=True)
            return fetch_files(here)
        message = f"`{command}` is not supported at {self.name}: windlass has no ssh access to the site"
        raise PreconditionError(message, hint="set `ssh` in the site's profile", code="site-without-ssh")

    def send_folders(
        self,
        folders: Mapping[PurePosixPath, Sequence[tuple[str, Path]]],
        *,
        empty: Mapping[PurePosixPath, Sequence[str]],
    ) -> None:
        """Queue folders as one message, which will not replace folders that exist at the site."""
        for name in empty.get(self._root, ()):
            (self._staging / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._outbox():
            return
        with tempfile.TemporaryFile() as message:
            write_archive(message, [(str(number), path) for number, path in enumerate(folders)], folders, empty)
            message.seek(0)
            self._add_message("unpack", message)

    def with_bundle(self, document: JobDocument) -> JobDocument:
        """Return the job document with the name of its bundle's dataset added. Asks Beaker for the user's name."""
        from windlass.backends.beaker.render import experiment_name  # lazy: imported with the backend

        bundle = f"{self._service.user()}/{experiment_name(document)}-files"
        return replace(document, beaker=replace(document.beaker, bundle=bundle))

    def finish_upload(self, folder: Path) -> None:
        """Upload all messages queued so far as the bundle of a job, or reuse an existing bundle."""
        document = JobDocument.read(folder / "job.json")
        self._queue_pulled()
        with tempfile.TemporaryDirectory(prefix="windlass-bundle-") as scratch:
            bundle = Path(scratch)
            (bundle / "windlass.pyz").symlink_to(self._archive)
            messages = self._outbox()
            for _, name in messages:
                (bundle / name).symlink_to(self._folder / name)
            content = {"archive": str(self.archive_at_site), "messages": messages}
            (bundle / CONTENT).write_text(json.dumps(content))
            name = document.beaker.bundle.rpartition("/")[2]
            words = f"files of {document.run}, for its experiment"
            self._service.create_dataset(name, bundle, workspace=document.beaker.workspace, description=words)

    # --- outbox -----------------------------------------------------------------------------------------------

    def _outbox(self) -> list[tuple[str, str]]:
        """Return a (command, file) pair for each queued message, in order."""
        try:
            found = read_json(self._folder / CONTENT)
        except FileNotFoundError:
            return []
        assert isinstance(found, list)
        return [(str(command), str(name)) for command, name in found]

    def _add_message(self, command: str, message: Any) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(self._folder / "outbox.lock", timeout_s=_LOCK_S):
            messages = self._outbox()
            name = f"message-{len(messages):06d}"
            write_atomic(self._folder / name, message.read(), mode=0o600)
            write_json(self._folder / CONTENT, [*messages, (command, name)])

    def _queue_pulled(self) -> None:
        """Queue the journal files that earlier jobs wrote: a new job may start with empty storage."""
        paths = sorted((self._staging / "journal").glob(f"*{SUFFIX}"))
        own = {path.name for path in paths} - self._received()
        pulled = [path for path in paths if path.name not in own]
        if pulled:
            appends = [(f"journal/{path.name}", 0) for path in pulled]
            header = {"root": str(self._root), "appends": appends, "puts": [], "own": [], "sizes": None}
            self._add_message("sync", io.BytesIO(pack(header, [path.read_bytes() for path in pulled])))

    # --- results -----------------------------------------------------------------------------------------------

    def _receive(self, prefixes: Sequence[str], *, is_whole: bool = False) -> None:
        """Append new bytes from the first replicas' results to the staging copy.

        Args:
            is_whole: files may have been replaced; fetch a file completely if its size differs.
        """
        if not is_whole and time.monotonic() < self._looked_at + _LOOK_EVERY_S:
            return
        for dataset in list(self._datasets()):
            for prefix in prefixes:
                for file in self._service.files(dataset, prefix=f"{RESULTS}/{self._run.id}/{prefix}"):
                    try:
                        self._take_in(dataset, file, is_whole=is_whole)
                    except NotFoundError:  # a running job may delete a temporary file after it was listed
                        if any(now.path == file.path for now in self._service.files(dataset, prefix=file.path)):
                            raise
        self._looked_at = time.monotonic()

    def _datasets(self) -> Iterator[str]:
        """Yield the results dataset of each of the first replica's jobs, oldest first."""
        for path in sorted(self._run.jobs.glob("*/submitted.json"), key=lambda path: path.stat().st_mtime):
            submitted = read_json(path)
            assert isinstance(submitted, dict)
            for job in self._service.jobs(str(submitted["id"])):
                if job.rank == 0 and job.results:
                    yield job.results

    def _take_in(self, dataset: str, file: BeakerFile, *, is_whole: bool) -> None:
        name = PurePosixPath(file.path).relative_to(f"{RESULTS}/{self._run.id}")
        if ".." in name.parts:
            raise PreconditionError(f"`{file.path}` is outside the run's folder", code="invalid-reply")
        target = self._staging / name
        have = target.stat().st_size if target.exists() else 0
        if have == file.size or (have > file.size and not is_whole):
            return
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_whole:
            write_atomic(target, self._service.read(dataset, file.path))
            return
        with lock(self._folder / "receive.lock", timeout_s=_LOCK_S), open(target, "ab") as sink:
            begin = sink.tell()
            sink.write(self._service.read(dataset, file.path, begin, file.size - begin) if begin < file.size else b"")
            if name.parts[0] == "journal":
                self._note_received(name.name)

    def _received(self) -> set[str]:
        try:
            found = read_json(self._folder / "received.json")
        except FileNotFoundError:
            return set()
        assert isinstance(found, list)
        return set(map(str, found))

    def _note_received(self, name: str) -> None:
        """Record that a file was received. Call this with the lock held: other processes may receive too."""
        known = self._received()
        if name not in known:
            write_json(self._folder / "received.json", sorted(known | {name}))
