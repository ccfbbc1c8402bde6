"""Pinning of data by content, finding it later, and checking that it is unchanged."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from windlass.core.errors import InternalError, NotFoundError, PreconditionError
from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.core.phrases import count
from windlass.pin.data.pinned import DataPin, DataPlaces
from windlass.record.manifest import read_manifest
from windlass.store.data_version import VersionEntry, escape, manifest_digest
from windlass.store.scan import scan, unreadable

__all__ = ["check_data", "check_output", "pin_data", "place_data", "resolve_data", "resolve_output"]

_HINT = "`data:` names a file or a folder, such as `file:data/prompts.jsonl`"
_STORED = ("store", "s3", "gs", "http", "https", "hf")
_SUPPORTED = ", ".join(f"{scheme}:" for scheme in ("file", "run", *_STORED))


def pin_data(
    name: str,
    source: str,
    base: Path,
    *,
    cache: Path | None = None,
    places: DataPlaces | None = None,
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> DataPin:
    """Pin data by content; everything without a known digest is read or fetched. Blocks.

    Args:
        name: the key below `data:`; errors name it.
        source: `file:<path>`, relative to `base`, or another source.
        cache: folder for digests by (path, size, times, inode), so that the next pin reads only what changed.
        places: folders for remote data; only `file:` works without.
        progress: called with the size of every fetched chunk, from several threads.

    Raises:
        NotFoundError: the source does not exist.
        AccessError: something cannot be read, or the source does not allow it.
        UnreachableError: the source fails repeatedly.
        PreconditionError: an unknown scheme, a digest mismatch, a link that leaves the folder, a pipe or a device.
    """
    if _scheme(name, source) in _STORED:
        from windlass.pin.data.fetched import fetch_source  # lazy: most runs pin only files

        version, revision = fetch_source(
            name, source, _needed(places).store, find_secret=_needed(places).find_secret, progress=progress
        )
        return DataPin(
            name=name,
            source=source,
            digest=version.digest,
            size_bytes=version.size_bytes,
            kind=version.kind,
            num_files=len(version.entries),
            revision=revision,
        )
    path = resolve_data(name, source, base, places=places)
    entries, is_folder = scan(f"data `{name}`", path, cache=cache)
    if source.startswith("run:"):
        check_output(name, source, _needed(places).runs, entries)
    digest = manifest_digest(entries) if is_folder else entries[0].sha256
    if cache is not None and is_folder:
        _store_manifest(cache, digest, entries)
    return DataPin(
        name=name,
        source=source,
        digest=digest,
        size_bytes=sum(entry.size_bytes for entry in entries),
        kind="folder" if is_folder else "file",
        num_files=len(entries),
    )


def check_data(pin: DataPin, base: Path, *, cache: Path | None = None, places: DataPlaces | None = None) -> None:
    """Read the data again and raise if it differs from the pin, naming what changed.

    Stored data is checked in the copy placed for jobs, or in the store if it is not placed.

    Args:
        cache: only used to name a folder's changed files, by its manifest there; all data is read again.

    Raises:
        PreconditionError: `input-changed`, or `store-damaged`.
        NotFoundError: it no longer exists.
    """
    if pin.is_stored:
        _check_stored(pin, _needed(places))
        return
    path = resolve_data(pin.name, pin.source, base, places=places)
    entries, is_folder = scan(f"data `{pin.name}`", path)
    digest = manifest_digest(entries) if is_folder else entries[0].sha256
    kind = "folder" if is_folder else "file"
    if (kind, digest) == (pin.kind, pin.digest):
        return
    raise PreconditionError(
        f"data `{pin.name}` ({path}) differs from what was pinned: {_explain(pin, kind, entries, digest, cache)}",
        hint="restore it, or launch the experiment again to pin the new content",
        code="input-changed",
    )


def resolve_data(name: str, source: str, base: Path, *, places: DataPlaces | None = None) -> Path:
    """Return the path of data that is used in place (`file:`, `run:`), with a final link resolved."""
    scheme = _scheme(name, source)
    if scheme == "run":
        return resolve_output(name, source, _needed(places).runs)
    text = source.removeprefix("file:")
    text = text.removeprefix("//") if text.startswith("///") else text
    if not text or "\0" in text:
        raise PreconditionError(f"data `{name}`: `{source}` does not name a path", hint=_HINT, code="invalid-value")
    path = base / Path(text).expanduser()
    try:
        return path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(
            f"data `{name}`: no such file or folder: {os.path.normpath(path)}", hint=_HINT, code="file-not-found"
        ) from error
    except (OSError, RuntimeError) as error:
        raise unreadable(f"data `{name}`", path, error) from error


def _scheme(name: str, source: str) -> str:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", source)
    if scheme is None:
        raise PreconditionError(
            f"data `{name}`: `{source}` has no scheme",
            hint=f"write `file:{source}` for a local file or folder",
            code="unsupported-source",
        )
    if scheme.group(1) not in ("file", "run", *_STORED):
        raise PreconditionError(
            f"data `{name}`: unsupported source `{scheme.group(0)}` (`{source}`)",
            hint=f"supported: {_SUPPORTED}; or fetch it first and use the local path{_elsewhere(scheme.group(1))}",
            code="unsupported-source",
        )
    return scheme.group(1)


def _elsewhere(scheme: str) -> str:
    return ", or let its jobs mount it: `tasks.NAME.beaker.datasets`" if scheme == "beaker" else ""


def _check_stored(pin: DataPin, places: DataPlaces) -> None:
    from windlass.store.placing import check_placed, placed_path  # lazy: most runs pin only files

    version = places.store.read(pin.digest)
    path = placed_path(places.placed, pin.digest, pin.file_name)
    if not os.path.lexists(path):
        for entry in version.entries:
            if entry.mode != "l":
                places.store.verify(entry)
        return
    problems = check_placed(path, version, is_thorough=True)
    if problems:
        raise PreconditionError(
            f"data `{pin.name}` ({path}) differs from what was pinned: {_shortened(problems)}",
            hint="launch again: changed files are fetched and placed again",
            code="input-changed",
        )


def _needed(places: DataPlaces | None) -> DataPlaces:
    if places is None:
        raise InternalError("data other than `file:` needs a WINDLASS_HOME")
    return places


def _store_manifest(cache: Path, digest: str, entries: list[VersionEntry]) -> None:
    path = cache / "manifests" / f"{digest}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, [str(entry) for entry in entries], is_durable=False)


def _explain(pin: DataPin, kind: str, entries: list[VersionEntry], digest: str, cache: Path | None) -> str:
    if kind != pin.kind:
        return f"it was a {pin.kind} and is a {kind}"
    if kind == "file":
        now_bytes = entries[0].size_bytes
        return f"{count(pin.size_bytes, 'byte')}, sha256 {pin.digest[:12]}..., now {count(now_bytes, 'byte')}, sha256 {digest[:12]}..."
    stored = cache / "manifests" / f"{pin.digest}.json" if cache is not None else None
    if stored is None or not stored.is_file():
        size = sum(entry.size_bytes for entry in entries)
        return f"{count(pin.num_files, 'file')}, {count(pin.size_bytes, 'byte')}, now {count(len(entries), 'file')}, {count(size, 'byte')}"
    lines = read_json(stored)
    before = {line.split(" ", 3)[3]: line for line in lines if isinstance(line, str)} if isinstance(lines, list) else {}
    now = {escape(entry.path): str(entry) for entry in entries}
    changes = [f"{path} changed" for path in sorted(before.keys() & now.keys()) if before[path] != now[path]]
    changes += [f"{path} is gone" for path in sorted(before.keys() - now.keys())]
    changes += [f"{path} is new" for path in sorted(now.keys() - before.keys())]
    return _shortened(changes)


def _shortened(changes: list[str]) -> str:
    return ", ".join(changes[:10]) + (f" and {len(changes) - 10} more" if len(changes) > 10 else "")


def resolve_output(name: str, source: str, runs: Path) -> Path:
    """Return the path of a task's output; the source names the run by its full id.

    Raises:
        NotFoundError: no such run, task or file.
        PreconditionError: it is outside the run's output, or the task has not recorded it yet.
    """
    folder, inner = _parts(name, source, runs)
    if not folder.exists():
        raise NotFoundError(
            f"data `{name}`: no output `{folder.name}` of the run {folder.parent.parent.name} on this machine",
            hint=f"windlass show {folder.parent.parent.name}; at a site: windlass outputs fetch {folder.parent.parent.name}",
            code="file-not-found",
        )
    path = folder / inner if inner else folder
    if not path.exists():
        raise NotFoundError(f"data `{name}`: no `{inner}` in {folder}", hint=f"ls {folder}", code="file-not-found")
    resolved = path.resolve()
    if not resolved.is_relative_to(folder.resolve()):
        raise PreconditionError(
            f"data `{name}`: `{source}` is outside of its task's output",
            hint="use a path inside it",
            code="invalid-value",
        )
    return resolved


def check_output(name: str, source: str, runs: Path, entries: Sequence[VersionEntry]) -> None:
    """Raise if an output differs from what its task recorded when it succeeded.

    Raises:
        PreconditionError: `not-found`, or `input-changed` with the files that differ.
    """
    folder, inner = _parts(name, source, runs)
    try:
        manifest = read_manifest(folder, is_beside=True)
    except NotFoundError as error:
        raise PreconditionError(
            f"data `{name}`: the task `{folder.name}` of {folder.parent.parent.name} recorded no output",
            hint="only tasks that succeed record outputs; `windlass show` shows how this one ended",
            code="not-found",
        ) from error
    recorded = {
        os.path.relpath(entry.path, inner) if inner else entry.path: entry.sha256
        for entry in manifest.entries
        if not inner or entry.path == inner or entry.path.startswith(f"{inner}/")
    }
    found = {entry.path or ".": entry.sha256 for entry in entries}
    changed = sorted(path for path in recorded.keys() | found.keys() if recorded.get(path) != found.get(path))
    if changed:
        more = f" and {len(changed) - 10} more" if len(changed) > 10 else ""
        listed = ", ".join(inner if path == "." else path for path in changed[:10])
        raise PreconditionError(
            f"data `{name}`: {folder} differs from what its task recorded: {listed}{more}",
            hint=f"windlass verify {folder.parent.parent.name}",
            code="input-changed",
        )


def _parts(name: str, source: str, runs: Path) -> tuple[Path, str]:
    """Return the path of a task's output folder, and the path inside it."""
    run, _, rest = source.removeprefix("run:").strip("/").partition("/")
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if parts and parts[0] == "out" and not (runs / run / "out" / "out").exists():
        parts = parts[1:]
    if not run or not parts or ".." in (run, *parts):
        raise PreconditionError(
            f"data `{name}`: `{source}` does not name an output of a run",
            hint="write `run:RUN/TASK` or `run:RUN/TASK/PATH`, such as `run:last/train/model`",
            code="invalid-value",
        )
    return runs / run / "out" / parts[0], "/".join(parts[1:])


def place_data(pin: DataPin, base: Path, places: DataPlaces) -> Path:
    """Return the path of pinned data; stored data is placed as a read-only tree, and fetched again if missing. Blocks.

    Raises:
        PreconditionError: it changed at its source (`input-changed`), the store is damaged, no space.
        WindlassError: as `pin_data`.
    """
    if not pin.is_stored:
        return resolve_data(pin.name, pin.source, base, places=places)
    from windlass.store.placing import place  # lazy: most runs pin only files

    if not places.store.has(pin.digest):
        again = pin_data(pin.name, pin.source, base, places=places)
        if again.digest != pin.digest:
            raise PreconditionError(
                f"data `{pin.name}`: {pin.source} differs from what was pinned: "
                f"sha256 {again.digest[:12]}..., not {pin.digest[:12]}...",
                hint=f"`windlass data pull` it from a store that has {pin.digest[:12]}, or launch the experiment again",
                code="input-changed",
            )
    version = places.store.read(pin.digest)
    places.store.touch(pin.digest)
    return place(places.store, version, places.placed, name=pin.file_name)
