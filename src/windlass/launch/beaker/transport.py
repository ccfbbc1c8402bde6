"""The way to a Beaker site whose storage nobody else sees: messages go up as a dataset, records come down from the results.

It stands where a `RemoteClient` stands for a site over ssh. What the mirror would say to the site is kept as messages beside
the run, and told at once to a *staging copy*, a folder that holds what the site must hold by now. When a job is about to be
submitted, all messages so far become its bundle (`windlass.supervise.beaker.bundle`); what is said later does not reach it.
Before the mirror hears news, the staging copy takes in what the results of the run's jobs have gained.
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
from windlass.launch.remote.client import write_archive
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
    """Carries the files of one run.

    Args:
        run: the copy here; messages and staging copy are in its folder `courier`.
        state: windlass's folder as jobs see it.
        archive: the zipapp here.
        site: name of the site, for people.
    """

    def __init__(
        self, run: RunFolder, service: BeakerService, state: PurePosixPath, archive: Path, *, site: str
    ) -> None:
        self.name = site
        self.has_server = False
        self.archive_at_site = state / "archives" / archive.name
        self._run, self._service, self._archive = run, service, archive
        self._root = state / "runs" / run.id
        self._folder = run.path / "courier"
        self._staging = self._folder / "staging"
        self._looked_at = -_LOOK_EVERY_S

    # --- what a mirror asks of its carrier ---------------------------------------------------------------------

    def ask(
        self, command: str, header: Mapping[str, Any], pieces: Iterable[bytes] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        """As `RemoteClient.ask`: `sync` and `fetch`, answered by the staging copy.

        Raises:
            PreconditionError: another request, which needs somebody at the site.
            UnreachableError: Beaker does not answer.
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
        """As `RemoteClient.send_folders`, in a message; what is there already is left alone when the message is read."""
        for name in empty.get(self._root, ()):
            (self._staging / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._outbox():
            return
        with tempfile.TemporaryFile() as message:
            write_archive(message, [(str(number), path) for number, path in enumerate(folders)], folders, empty)
            message.seek(0)
            self._add_message("unpack", message)

    def with_bundle(self, document: JobDocument) -> JobDocument:
        """A job that says which dataset its folder comes in. Asks Beaker who we are."""
        from windlass.backends.beaker.render import experiment_name  # lazy: with the backend

        bundle = f"{self._service.user()}/{experiment_name(document)}-files"
        return replace(document, beaker=replace(document.beaker, bundle=bundle))

    def finish_upload(self, folder: Path) -> None:
        """Send all messages so far as the bundle of a job; one that is there already is taken as it is."""
        document = JobDocument.read(folder / "job.json")
        self._tell_pulled()
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

    # --- messages -----------------------------------------------------------------------------------------------

    def _outbox(self) -> list[tuple[str, str]]:
        """(command, file) of each, in order."""
        try:
            found = read_json(self._folder / CONTENT)
        except FileNotFoundError:
            return []
        assert isinstance(found, list)
        return [(str(command), str(name)) for command, name in found]

    def _add_message(self, command: str, message: Any) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(self._folder / "courier.lock", timeout_s=_LOCK_S):
            messages = self._outbox()
            name = f"message-{len(messages):06d}"
            write_atomic(self._folder / name, message.read(), mode=0o600)
            write_json(self._folder / CONTENT, [*messages, (command, name)])

    def _tell_pulled(self) -> None:
        """Tell what earlier jobs wrote into the journal: a job whose storage is its own does not find it there."""
        paths = sorted((self._staging / "journal").glob(f"*{SUFFIX}"))
        own = {path.name for path in paths} - self._received()
        told = [path for path in paths if path.name not in own]
        if told:
            appends = [(f"journal/{path.name}", 0) for path in told]
            header = {"root": str(self._root), "appends": appends, "puts": [], "own": [], "sizes": None}
            self._add_message("sync", io.BytesIO(pack(header, [path.read_bytes() for path in told])))

    # --- results -----------------------------------------------------------------------------------------------

    def _receive(self, prefixes: Sequence[str], *, is_whole: bool = False) -> None:
        """Let the staging copy grow by what the results of the first replicas have gained.

        Args:
            is_whole: the files may have been replaced: bring them whole where their size differs.
        """
        if not is_whole and time.monotonic() < self._looked_at + _LOOK_EVERY_S:
            return
        for dataset in list(self._datasets()):
            for prefix in prefixes:
                for file in self._service.files(dataset, prefix=f"{RESULTS}/{self._run.id}/{prefix}"):
                    try:
                        self._take_in(dataset, file, is_whole=is_whole)
                    except NotFoundError:  # a job that runs deletes its temporary files after we listed them
                        if any(now.path == file.path for now in self._service.files(dataset, prefix=file.path)):
                            raise
        self._looked_at = time.monotonic()

    def _datasets(self) -> Iterator[str]:
        """Results of every start of the first replica, the oldest first."""
        for path in sorted(self._run.jobs.glob("*/submitted.json"), key=lambda path: path.stat().st_mtime):
            submitted = read_json(path)
            assert isinstance(submitted, dict)
            for job in self._service.jobs(str(submitted["id"])):
                if job.rank == 0 and job.results:
                    yield job.results

    def _take_in(self, dataset: str, file: BeakerFile, *, is_whole: bool) -> None:
        name = PurePosixPath(file.path).relative_to(f"{RESULTS}/{self._run.id}")
        if ".." in name.parts:
            raise PreconditionError(f"`{file.path}` leads out of the run's folder", code="site-answer-broken")
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
        """Under the lock: others may receive at the same time."""
        known = self._received()
        if name not in known:
            write_json(self._folder / "received.json", sorted(known | {name}))
