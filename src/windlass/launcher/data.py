"""Python interface for `windlass data`, and the versions of data that runs need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError, UsageError, WindlassError
from windlass.pin.data.fetched import fetch_source
from windlass.pin.data.pinned import DataPlaces
from windlass.record.state import State
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, run_ids
from windlass.store.collecting import Collected, collect, collect_remote
from windlass.store.data_version import Version
from windlass.store.local import LocalStore, check_alias
from windlass.store.placing import sweep_placed
from windlass.store.remote import RemoteStore
from windlass.store.remote_files import full_url

__all__ = ["Data", "NamedVersion", "Pinned", "data_places", "pinned_versions"]

_DAY_S = 86400.0
_FETCHED = ("s3", "gs", "http", "https", "hf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Versions of data that runs use, each with one run that uses it.

    Attributes:
        by_live: used by runs that may continue, which are all that did not succeed.
        by_succeeded: used by runs that succeeded and still have a record.
    """

    by_live: dict[str, str]
    by_succeeded: dict[str, str]


def data_places(home: Home) -> DataPlaces:
    """Return the folders for data in a home, with access to its vault for sources that need a token."""

    def find_secret(name: str) -> str:
        from windlass.secrets.lookup import open_secrets  # lazy: few sources need a token

        secret = open_secrets(home.path).find(name)
        return secret.value.decode(errors="replace") if secret is not None else ""

    return DataPlaces.of(home.path, find_secret=find_secret)


class NamedVersion(NamedTuple):
    """Version of data in a store, with the names that point to it."""

    version: Version
    names: list[str]


class Data:
    """Datasets: immutable versions identified by digest, and names that can be reassigned.

    Every method blocks, can be repeated after any failure, and raises WindlassError.

    Args:
        store: a folder or a URL such as `s3://bucket/store`; this machine's store if empty.
        progress: called with the number of bytes of each transferred piece.
    """

    def __init__(
        self, store: str = "", *, home: Home | None = None, progress: Callable[[int], None] = lambda num_bytes: None
    ) -> None:
        self._home = home or Home.default()
        self._progress = progress
        self.local = LocalStore.of(self._home.path)
        self.store: LocalStore | RemoteStore = _open(store, self.local)

    def add(self, source: str, *, name: str = "") -> Version:
        """Add a file, folder or remote source as a version, and let a name point to it."""
        scheme, colon, rest = source.partition(":")
        store = self._here("add")
        if name:
            check_alias(name)  # fail before fetching
        if colon and scheme in _FETCHED and not Path(source).exists():
            version, _ = fetch_source(
                name or source,
                source,
                store,
                needs_digest=False,
                find_secret=data_places(self._home).find_secret,
                progress=self._progress,
            )
            if name:
                store.set_alias(name, version.digest)
            return version
        path = Path(rest if scheme == "file" else source).expanduser()
        if not path.exists() and "://" in source and scheme != "file":
            raise UsageError(
                f"`{scheme}:` is not supported as a source of data (`{source}`)",
                hint=f"supported: a path, {', '.join(f'{each}:' for each in _FETCHED)}; for anything else, download it first and add its path",
                code="unsupported-source",
            )
        if not path.exists():
            raise NotFoundError(
                f"no such file or folder: {path}",
                hint="windlass data add PATH, or an address such as s3://bucket/prefix/",
                code="file-not-found",
            )
        return store.add(path, name=name, cache=self._home.cache / "digests")

    def ls(self) -> Iterator[NamedVersion]:
        """Yield every version, with its names."""
        names: dict[str, list[str]] = {}
        for alias in self.store.aliases():
            names.setdefault(alias.digest, []).append(alias.name)
        for digest in self.store.versions():
            yield NamedVersion(self.store.read(digest), names.get(digest, []))

    def show(self, ref: str) -> Version:
        """Return the version with this name or digest; a local store also accepts the beginning of a digest."""
        return self.store.read(self.store.resolve(ref))

    def pull(self, ref: str, *, url: str, name: str = "") -> Version:
        """Fetch a version from a store at a URL; it keeps the name used as `ref` unless `name` is given."""
        remote = RemoteStore(url)
        digest = remote.resolve(ref)
        return remote.pull(self._here("pull"), digest, name=name or _as_name(ref), progress=self._progress)

    def push(self, ref: str, *, url: str, name: str = "") -> Version:
        """Send a version to a store at a URL; it keeps the name used as `ref` unless `name` is given."""
        store = self._here("push")
        digest = store.resolve(ref)
        is_name = store.alias(ref) is not None
        return RemoteStore(url).push(store, digest, name=name or (ref if is_name else ""), progress=self._progress)

    def rm(self, ref: str, *, force: bool = False) -> str:
        """Remove a name, or a version with all its names; return the digest. `gc` frees the space.

        Raises:
            PreconditionError: a run needs the version (`data-pinned`); with `force`, succeeded runs are ignored.
        """
        if (alias := self.store.alias(ref)) is not None:
            self.store.remove_alias(ref)
            return alias.digest
        digest = self.store.resolve(ref)
        pinned = pinned_versions(self._home)
        run = pinned.by_live.get(digest, "") or ("" if force else pinned.by_succeeded.get(digest, ""))
        if run:
            is_live = digest in pinned.by_live
            hint = "the run may continue; `windlass gc --runs --older-than TIME` removes runs that ended"
            hint = hint if is_live else "remove it anyway with --force"
            raise PreconditionError(f"run {run} needs data {digest[:12]}", hint=hint, code="data-pinned")
        self.store.forget(digest)
        return digest

    def gc(self, *, older_than_s: float = 7 * _DAY_S, drop_pinned: bool = False, dry_run: bool = False) -> Collected:
        """Remove versions that have no name, are needed by no run, and were not used recently.

        Args:
            older_than_s: keep versions used in this time.
            drop_pinned: also remove versions that only succeeded runs use.
            dry_run: only list what would be removed.
        """
        pinned = pinned_versions(self._home)
        needed = pinned.by_live if drop_pinned else {**pinned.by_succeeded, **pinned.by_live}
        if isinstance(self.store, RemoteStore):
            return collect_remote(self.store, pinned=needed, now=time.time(), older_than_s=older_than_s, is_dry=dry_run)
        done = collect(self.store, pinned=needed, older_than_s=older_than_s, is_dry=dry_run)
        if not dry_run and self.store is self.local:
            placed = DataPlaces.of(self._home.path).placed
            sweep_placed(placed, lambda: {*self.local.versions(), *needed})
        return done

    def _here(self, verb: str) -> LocalStore:
        if isinstance(self.store, LocalStore):
            return self.store
        raise UsageError(
            f"`{verb}` needs the local store, not {self.store}",
            hint=f"windlass data push NAME --to {self.store}",
            code="usage",
        )


def pinned_versions(home: Home) -> Pinned:
    """Return the versions that a home's runs use; a run with an unreadable record counts as active."""
    found = Pinned(by_live={}, by_succeeded={})
    for run_id in run_ids(home):
        run = RunFolder(home.runs / run_id)
        digests = list(_digests(run))
        if digests:
            kept = found.by_succeeded if _has_succeeded(run) else found.by_live
            kept.update(dict.fromkeys(digests, run_id))
    return found


def _digests(run: RunFolder) -> Iterator[str]:
    try:
        pins = run.plan().get("pins", {})
    except WindlassError:
        return
    data = pins.get("data", {}) if isinstance(pins, dict) else {}
    for pin in data.values() if isinstance(data, dict) else ():
        if isinstance(pin, dict):
            yield str(pin.get("digest", ""))


def _has_succeeded(run: RunFolder) -> bool:
    try:
        facts = run.facts()
    except (WindlassError, OSError):
        return False
    return bool(facts.tasks) and facts.state is State.SUCCEEDED


def _open(store: str, local: LocalStore) -> LocalStore | RemoteStore:
    if not store:
        return local
    is_url = "://" in full_url(store)
    return RemoteStore(store) if is_url else LocalStore(Path(store).expanduser().absolute())


def _as_name(ref: str) -> str:
    from windlass.store.data_version import is_digest  # lazy: imported where it is used once

    return "" if is_digest(ref.removeprefix("sha256:")) else ref
