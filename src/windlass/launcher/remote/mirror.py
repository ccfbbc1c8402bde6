"""Local mirror of a run at a site: pulls its journal and logs, and pushes local records.

Each journal and log file has one writer and only grows, so both directions send the bytes after an offset. Pulled
files are listed in `mirror.json`; all other journal files were written on this machine, and only they are pushed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from windlass.backends.site_shell import SiteShell, shell_for
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.core.files import lock, write_json
from windlass.core.json_text import read_json
from windlass.launcher.remote.client import RemoteClient, Transport
from windlass.plan.plan import Plan
from windlass.record.journal import SUFFIX
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.sites.profile import Profile
from windlass.supervise.archive import ensure_archive
from windlass.supervise.job import JobDocument
from windlass.supervise.remote.delivery import pack_delivery
from windlass.supervise.remote.sync import whole_end

__all__ = ["Mirror", "data_at_site", "has_delivered", "mirror_at", "mirror_of", "mirror_of_run", "state_at_site"]

LIMIT_BYTES = 8 << 20
_MAX_TURNS = 1000
_PLACES = "places.json"
_DELIVERED = "mirror.delivery"
_LOCK_S = 30.0
_STAYS = re.compile(r"\.|submit\.lock\Z|submitted\.json\Z|link-")
"""Files in a job's folder that are not sent to the site."""


class Mirror:
    """Local mirror of one run. Methods block for round trips to the site and can be repeated after a failure.

    Args:
        root_at_site: the run's folder at the site, `<state>/runs/<run>`.
        archive: this installation's zipapp.
        python: Python >= 3.9 at the site.
        transport: connection to use for a site without ssh.

    Every method raises UnreachableError if the connection fails, and PreconditionError if the site refuses.
    """

    def __init__(
        self,
        run: RunFolder,
        root_at_site: PurePosixPath,
        shell: SiteShell,
        *,
        archive: Path,
        python: str = "python3",
        transport: Transport | None = None,
    ) -> None:
        self.run = run
        self.root = root_at_site
        self.state = root_at_site.parent.parent
        self.transport: Transport = transport or RemoteClient(shell, self.state, archive, python)
        self._at_site: dict[str, int] | None = None
        self._closed: set[str] = set()
        self._older: set[str] = set()
        self._is_mended = False

    @property
    def archive_at_site(self) -> PurePosixPath:
        """Return the path of the zipapp at the site; valid after the first request."""
        return self.transport.archive_at_site

    def with_bundle(self, document: JobDocument) -> JobDocument:
        """Return a job document, with the name of its bundle if its files are sent in one."""
        return self.transport.with_bundle(document)

    def ship(self, data: Mapping[PurePosixPath, Path] | None = None) -> None:
        """Send the run's folder and its data as one archive, except folders that exist at the site.

        Journal and logs are not included: call `push` next.

        Args:
            data: local file or folder by path at the site (`data_at_site`).
        """
        if not self.run.is_mirrored:
            self._write_pulled(set())
        folders = {path.parent: [(path.name, local.resolve())] for path, local in (data or {}).items()}
        own = [path for path in sorted(self.run.path.iterdir()) if _is_sent(path)]
        folders[self.root] = [(path.name, path) for path in own]
        self.transport.send_folders(folders, empty={self.root: ("journal", "logs", "checkpoints", "out")})

    @property
    def reads_requests(self) -> bool:
        """Return whether requests in the journal reach running jobs."""
        return self.transport.has_server

    def put(self, paths: Iterable[Path]) -> None:
        """Send small files of the local run folder, replacing those at the site."""
        chosen = list(paths)
        names = [path.relative_to(self.run.path).as_posix() for path in chosen]
        self._turn(puts=names, pieces=[path.read_bytes() for path in chosen])

    def send_job(self, folder: Path, there: PurePath) -> None:
        """Send a job's files and records, and pull its state, before it is queued.

        Args:
            folder: the job's local folder; files that only the client needs are not sent.
            there: the same folder at the site.
        """
        assert PurePosixPath(there) == self.root / "jobs" / folder.name
        self.put(path for path in sorted(folder.iterdir()) if path.is_file() and not _STAYS.match(path.name))
        self.push()
        self.pull()
        self.transport.finish_upload(folder)

    def push(self) -> None:
        """Send local journal records; they are on the site's disk when this returns."""
        if self._at_site is None:
            self._turn()
        for _ in range(_MAX_TURNS):
            behind = self._behind()
            if not behind:
                return
            before = dict(self._at_site or {})
            appends = [(f"journal/{name}", offset) for name, offset, _ in behind]
            self._turn(appends=appends, pieces=[piece for _, _, piece in behind])
            if before == self._at_site:
                break
        raise PreconditionError(
            f"{self.transport.name} does not store more records of {self.run.id}", code="invalid-reply"
        )

    def _behind(self) -> list[tuple[str, int, bytes]]:
        """Return a (name, offset at the site, missing bytes) triple for each journal file to push."""
        found = []
        room = LIMIT_BYTES
        for name in self._own():
            offset = (self._at_site or {}).get(name, 0)
            with open(self.run.journal / name, "rb") as file:
                file.seek(offset)
                piece = file.read(room)
            piece = piece[: whole_end(piece)]
            room -= len(piece)
            if piece:
                found.append((name, offset, piece))
        return found

    def pull(self, *, logs: bool = False, is_last: bool = False) -> bool:
        """Pull other writers' journal records and the logs; return whether anything was new.

        Args:
            is_last: also pull the logs of earlier attempts.
        """
        if is_last:
            self._closed.clear()
        is_new = False
        for _ in range(_MAX_TURNS):
            self._mend()
            answer, pieces = self._turn(sizes=self._sizes(logs), logs=logs)
            is_new = self._take_in(answer["deltas"], pieces) or is_new
            if not answer["more"] or not pieces:
                break
        if logs:
            self._close_older()
        return is_new

    def deliver(self, values: Mapping[str, bytes]) -> PurePosixPath:
        """Send the run's secrets over standard input; return the path of their file, which only its owner can read."""
        self._delivery_mark.touch()
        self.transport.request("deliver", {"path": str(self._delivery)}, [pack_delivery(values)])
        return self._delivery

    def remove_delivery(self) -> None:
        """Remove the secrets that `deliver` sent, if any."""
        if self._delivery_mark.exists():
            self.transport.request("deliver", {"path": str(self._delivery)})
            self._delivery_mark.unlink()

    @property
    def _delivery(self) -> PurePosixPath:
        return self.state / "delivery" / f"{self.run.id.replace('.', '_')}.json"

    @property
    def _delivery_mark(self) -> Path:
        return self.run.path / _DELIVERED

    def fetch_outputs(self, task: str) -> Path:
        """Fetch a task's output, except unchanged files; return the path of its folder.

        Raises:
            NotFoundError: the task has no output.
        """
        from windlass.launcher.remote.fetching import fetch  # lazy: most commands fetch nothing

        folder = self.run.out(task)
        fetch(self.transport, self.root, f"out/{task}", folder)
        fetch(
            self.transport,
            self.root,
            f"out/{task}.manifest.json",
            folder.with_name(f"{task}.manifest.json"),
            is_needed=False,
        )
        return folder

    def fetch_manifest(self, task: str) -> bool:
        """Fetch only the manifest of a task's output; return False if there is none."""
        from windlass.launcher.remote.fetching import fetch  # lazy: as above

        name = f"{task}.manifest.json"
        return fetch(self.transport, self.root, f"out/{name}", self.run.out(task).with_name(name), is_needed=False)

    def _turn(
        self,
        *,
        appends: Sequence[tuple[str, int]] = (),
        puts: Sequence[str] = (),
        pieces: Iterable[bytes] = (),
        sizes: Mapping[str, int] | None = None,
        logs: bool = False,
    ) -> tuple[dict[str, Any], list[bytes]]:
        own = self._own()
        header = {
            "root": str(self.root),
            "appends": appends,
            "puts": puts,
            "own": own,
            "sizes": sizes,
            "logs": logs,
            "closed": sorted(self._closed),
            "limit": LIMIT_BYTES,
        }
        answer, found = self.transport.request("sync", header, pieces)
        self.run.heard_file.touch()
        self._at_site = answer["own"]
        lost = {name for name, size in answer["own"].items() if size > (self.run.journal / name).stat().st_size}
        if lost:  # this machine lost power: pull back records that it had sent, as another writer's
            self._write_pulled(self._pulled() | lost)
            self._is_mended = False
        return answer, found

    def _pulled(self) -> set[str]:
        try:
            content = read_json(self.run.mirror_file)
        except FileNotFoundError:
            return set()
        assert isinstance(content, dict)
        return set(content["pulled"])

    def _write_pulled(self, names: set[str]) -> None:
        write_json(self.run.mirror_file, {"pulled": sorted(names)})

    def _own(self) -> list[str]:
        pulled = self._pulled()
        names = sorted(os.listdir(self.run.journal))
        return [name for name in names if name.endswith(SUFFIX) and name[0] != "." and name not in pulled]

    def _sizes(self, logs: bool) -> dict[str, int]:
        paths = [self.run.journal / name for name in self._pulled()]
        paths += self.run.jobs.glob("*/link-*.json")
        if logs:
            paths += [path for path in self.run.logs.glob("*/*/*.log*") if _folder(path) not in self._closed]
        return {path.relative_to(self.run.path).as_posix(): path.stat().st_size for path in paths if path.exists()}

    def _mend(self) -> None:
        """Truncate partial records that a crash of this machine left in pulled journal files; once."""
        if self._is_mended:
            return
        with lock(self.run.path / "mirror.lock", timeout_s=_LOCK_S):
            for name in self._pulled():
                path = self.run.journal / name
                content = path.read_bytes() if path.exists() else b""
                if whole_end(content) < len(content):
                    os.truncate(path, whole_end(content))
        self._is_mended = True

    def _take_in(self, deltas: Sequence[tuple[str, int]], pieces: Sequence[bytes]) -> bool:
        """Write pulled pieces, logs first, so that an ended attempt's output is complete."""
        found = sorted(zip(deltas, pieces, strict=True), key=lambda item: item[0][0].startswith("journal/"))
        if not found:
            return False
        with lock(self.run.path / "mirror.lock", timeout_s=_LOCK_S):
            fresh = {path.partition("/")[2] for path, _ in deltas if path.startswith("journal/")} - self._pulled()
            if fresh:
                self._write_pulled(self._pulled() | fresh)
            for (path, offset), piece in found:
                _grow(self.run.path / path, offset, piece)
        os.utime(self.run.journal)  # the index checks this file's time first
        return True

    def _close_older(self) -> None:
        """Stop pulling logs of attempts that had a successor at the last two pulls."""
        newest: dict[str, int] = {}
        folders = [path for path in self.run.logs.glob("*/*") if path.parent.name.isdecimal()]
        for path in folders:
            newest[path.name] = max(newest.get(path.name, 0), int(path.parent.name))
        older = {f"{path.parent.name}/{path.name}" for path in folders if int(path.parent.name) < newest[path.name]}
        self._closed |= older & self._older
        self._older = older


def _is_sent(path: Path) -> bool:
    """Return whether a file in the local run folder is sent to the site."""
    return path.name in ("plan.json", "provenance.json", _PLACES, "code", "jobs")


def _folder(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.parent.name}"


def _grow(path: Path, offset: int, piece: bytes) -> None:
    """Append the part of a piece that the file lacks; do nothing if there would be a gap before `offset`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if offset <= size:
            rest = memoryview(piece)[size - offset :]
            while rest:
                num_written = os.pwrite(file.fileno(), rest, size)
                rest, size = rest[num_written:], size + num_written


def has_delivered(run: RunFolder) -> bool:
    """Return whether a run's secrets were sent to its site and not removed yet."""
    return (run.path / _DELIVERED).exists()


def state_at_site(profile: Profile, shell: SiteShell) -> PurePosixPath:
    """Return the path of windlass's folder at a site, `<fs.shared>/windlass`; may ask the site for `${user}`.

    Raises:
        PreconditionError: `fs.shared` is not set.
        UnreachableError: the site cannot be reached.
    """
    shared = profile.fs.shared
    if not shared:
        raise PreconditionError(
            f"site {profile.name} has no shared folder",
            hint=f"set `fs.shared` in its profile: windlass site show {profile.name}",
            code="site-no-shared-folder",
        )
    if "${user}" in shared:
        answer = shell.run(["id", "-un"])
        if answer.code:
            raise UnreachableError(f"{shell.name}: `id -un`: {answer.err.strip()}", code="site-unreachable")
        shared = shared.replace("${user}", answer.out.strip())
    return PurePosixPath(shared) / "windlass"


def data_at_site(state: PurePosixPath, digest: str, local: Path) -> PurePosixPath:
    """Return the path of data at a site, which contains its digest and its local name."""
    return state / "data" / digest[:40] / local.name


def mirror_of(run: RunFolder, plan: Plan, home: Home) -> Mirror | None:
    """Return the mirror for a run at a site; None if its paths at the site are not recorded."""
    profile = plan.site.profile
    if profile is None or not (profile.ssh or profile.kind == "beaker"):
        return None
    try:
        places = read_json(run.path / _PLACES)
    except FileNotFoundError:
        return None
    assert isinstance(places, dict)
    root = PurePosixPath(str(places["run_dir"]))
    return None if run.path == Path(root) else mirror_at(run, root, profile, home)  # this machine is the site


def mirror_at(run: RunFolder, root: PurePosixPath, profile: Profile, home: Home) -> Mirror:
    """Return the mirror for a run, given its folder at its site."""
    archive = ensure_archive(home.cache / "archives")
    transport = None
    if profile.kind == "beaker" and not profile.ssh:
        from windlass.backends.beaker.backend import service_of  # lazy: few sites use Beaker
        from windlass.launcher.beaker.transport import BeakerTransport

        transport = BeakerTransport(run, service_of(profile), root.parent.parent, archive, site=profile.name)
    return Mirror(run, root, shell_for(profile), archive=archive, python=profile.env.python, transport=transport)


def mirror_of_run(run: RunFolder, home: Home) -> Mirror | None:
    """Return the mirror for a run, or None; its plan is read only if the run is at a site."""
    return mirror_of(run, Plan.from_data(run.plan()), home) if run.is_mirrored else None
