"""Contents of a run archive: its file list, and writing and extraction of checked files.

<run>/archive.json              the list, first
<run>/ro-crate-metadata.json    the same for other tools
<run>/run/...                   the run's folder
<run>/code.pack                 git objects of the code's commit
<run>/data/<name>/...           data, if requested
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.files import sha256_file
from windlass.core.json_text import decode_json
from windlass.core.names import is_run_id
from windlass.core.tree import walk
from windlass.runs.archive.stream import damaged, member

__all__ = [
    "LIST",
    "ROCRATE",
    "Contents",
    "Item",
    "items_below",
    "read_contents",
    "take_out",
    "unchanged",
    "write_items",
]

LIST = "archive.json"
ROCRATE = "ro-crate-metadata.json"
SCHEMA = "windlass.archive/1"
_PIECE_BYTES = 1 << 20
_MAX_LIST_BYTES = 1 << 28
_MAX_LEVELS = 200
"""Maximum depth of a path; some functions recurse per level, and Python allows 1000 levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """File or symbolic link in an archive.

    Attributes:
        path: path below the archive's top folder.
        source: local file with the bytes; None if read from an archive.
        link: target of a symbolic link.
    """

    path: str
    size: int
    sha256: str
    is_executable: bool = False
    mtime: int = 0
    link: str = ""
    source: Path | None = None

    def to_data(self) -> dict[str, object]:
        """Return the JSON form, without defaults."""
        data: dict[str, object] = {"path": self.path, "size": self.size, "sha256": self.sha256, "mtime": self.mtime}
        return {**data, **({"x": True} if self.is_executable else {}), **({"link": self.link} if self.link else {})}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Item:
        """Decode `to_data`. Raises ValueError, KeyError or TypeError."""
        item = cls(
            path=data["path"],
            size=data["size"],
            sha256=data["sha256"],
            mtime=data["mtime"],
            is_executable=data.get("x", False),
            link=data.get("link", ""),
        )
        if not all(type(value) is str for value in (item.path, item.sha256, item.link)):
            raise TypeError("a path, a digest or a link is not text")
        if type(data["size"]) is not int or item.size < 0 or type(data["mtime"]) is not int:
            raise TypeError(f"{item.path}: a size or a time is not an integer")
        if abs(item.mtime) >= 1 << 40:
            raise ValueError(f"{item.path}: invalid time {item.mtime}")
        if len(PurePosixPath(item.path).parts) > _MAX_LEVELS:
            raise ValueError(f"{item.path[:60]!r}... is more than {_MAX_LEVELS} levels deep")
        if not is_safe(item.path) or (item.link and not stays_inside(item.path, item.link)):
            raise ValueError(f"{item.path!r} points outside the run's folder")
        return item


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """File list of an archive.

    Attributes:
        facts: plan hash, windlass version and code commit, only for display.
        left_out: reasons why parts of the run are missing, by path.
    """

    run_id: str
    items: tuple[Item, ...]
    facts: Mapping[str, object] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Return the total size of all files."""
        return sum(item.size for item in self.items)

    @property
    def digest(self) -> str:
        """Return the hex sha256 of the list, which is equal for equal contents."""
        return hashlib.sha256(_json([item.to_data() for item in self.items])).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the content of `archive.json`."""
        data = {
            "schema": SCHEMA,
            "run": self.run_id,
            "digest": self.digest,
            "facts": self.facts,
            "left_out": self.left_out,
            "files": [item.to_data() for item in self.items],
        }
        return _json(data) + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Contents:
        """Decode `to_bytes`. Raises ValueError, KeyError, TypeError or AttributeError."""
        data = decode_json(content)
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}, not {SCHEMA!r}")
        if not isinstance(data["run"], str) or not is_run_id(data["run"]):
            raise ValueError(f"invalid run id {data['run']!r}")
        items = tuple(Item.from_data(each) for each in data["files"])
        found = cls(run_id=data["run"], items=items, facts=dict(data["facts"]), left_out=dict(data["left_out"]))
        if found.digest != data["digest"] or len({item.path for item in items}) != len(items):
            raise ValueError("its file list was changed")
        links = {item.path for item in items if item.link}
        for item in items:
            if any(str(parent) in links for parent in PurePosixPath(item.path).parents):
                raise ValueError(f"{item.path!r} is below a link")
        return found


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def is_safe(path: str) -> bool:
    """Return whether a relative path, judged by its text, stays below its folder."""
    parts = PurePosixPath(path).parts
    is_plain = bool(parts) and not path.startswith("/") and "\0" not in path and str(PurePosixPath(path)) == path
    return is_plain and ".." not in parts


def stays_inside(path: str, link: str) -> bool:
    """Return whether a symbolic link in `run/` or `data/<name>/` stays inside that folder."""
    parts = PurePosixPath(link).parts
    num_up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if link.startswith("/") or "\0" in link or ".." in parts[num_up:]:  # `b/..` may be elsewhere if b is a link
        return False
    return num_up <= len(PurePosixPath(path).parts) - 2


def items_below(folder: Path, prefix: str, left_out: dict[str, str]) -> Iterator[Item]:
    """Yield the files below a folder with their digests; add escaping links and special files to `left_out`.

    Raises PreconditionError (`archive-changed`) if a file is deleted meanwhile.
    """
    for root, folders, names in walk(folder, onerror=_raise):
        folders.sort()
        path = f"{prefix}/{Path(root).relative_to(folder).as_posix()}"
        if folders and len(PurePosixPath(path).parts) >= _MAX_LEVELS - 1:
            left_out[path] = f"more than {_MAX_LEVELS} levels deep"
            folders.clear()
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in sorted(names + links):
            full = Path(root, name)
            path = f"{prefix}/{full.relative_to(folder).as_posix()}"
            if full.is_symlink() and not stays_inside(path, os.readlink(full)):
                left_out[path] = f"a link out of the run: {os.readlink(full)}"
            elif full.is_symlink() or full.is_file():
                with unchanged(full):
                    item = _item(full, path)
                yield item
            elif os.path.lexists(full):
                left_out[path] = "not a file or link"
            else:
                raise _changed(full)


def _raise(error: OSError) -> None:
    if isinstance(error, FileNotFoundError):
        raise _changed(Path(error.filename)) from error
    raise error


def _item(full: Path, path: str) -> Item:
    found = full.lstat()
    if full.is_symlink():
        link = os.readlink(full)
        digest = hashlib.sha256(os.fsencode(link)).hexdigest()
        return Item(path=path, size=0, sha256=digest, mtime=int(found.st_mtime), link=link, source=full)
    is_executable = bool(found.st_mode & 0o100)
    digest = sha256_file(full)
    return Item(
        path=path,
        size=found.st_size,
        sha256=digest,
        mtime=int(found.st_mtime),
        is_executable=is_executable,
        source=full,
    )


def write_items(archive: tarfile.TarFile, root: str, items: Iterable[Item]) -> None:
    """Write files to an archive, in order. Raises PreconditionError if one of them has changed."""
    for item in items:
        info = member(
            f"{root}/{item.path}",
            item.size,
            is_executable=item.is_executable,
            mtime=item.mtime,
            link=item.link,
        )
        assert item.source is not None
        if item.link:
            archive.addfile(info)
            continue
        with unchanged(item.source), open(item.source, "rb") as file:
            counted = _Counted(file)
            try:
                archive.addfile(info, counted)
            except tarfile.ReadError as error:
                raise _changed(item.source) from error
            if counted.digest.hexdigest() != item.sha256 or file.read(1):
                raise _changed(item.source)


class _Counted:
    """File wrapper that computes the digest of the bytes read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece: bytes = self._file.read(size)
        self.digest.update(piece)
        return piece


@contextmanager
def unchanged(source: Path) -> Iterator[None]:
    """Raise PreconditionError (`archive-changed`) if a file read in the block was deleted since it was listed."""
    try:
        yield
    except FileNotFoundError as error:
        raise _changed(source) from error


def _changed(source: Path) -> PreconditionError:
    message = f"{source} changed during the export"
    return PreconditionError(message, hint="try again when no process is writing to the run", code="archive-changed")


def read_contents(path: Path, archive: tarfile.TarFile) -> Contents:
    """Read the file list of an archive, which is its first file.

    Raises:
        PreconditionError: the file is not a run archive, or the list was changed.
    """
    first = archive.next()
    if first is None or not first.isreg() or PurePosixPath(first.name).name != LIST or first.size > _MAX_LIST_BYTES:
        raise damaged(path, f"it does not start with {LIST}")
    file = archive.extractfile(first)
    assert file is not None  # a plain file
    try:
        contents = Contents.from_bytes(file.read())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, str(error)) from error
    if first.name != f"{contents.run_id}/{LIST}":
        raise damaged(path, f"unexpected path {first.name}")
    return contents


def take_out(path: Path, archive: tarfile.TarFile, contents: Contents, folder: Path) -> None:
    """Extract and check every listed file into an empty folder; symbolic links are created last.

    Raises:
        PreconditionError: a member is unlisted, duplicate, missing or different.
        OSError: there is not enough space.
    """
    wanted = {f"{contents.run_id}/{item.path}": item for item in contents.items}
    links = []
    while (info := archive.next()) is not None:
        item = wanted.pop(info.name, None)
        if item is None:
            raise damaged(path, f"{info.name!r} is not in the file list")
        if item.link:
            if not info.issym() or info.linkname != item.link:
                raise damaged(path, f"{info.name!r} differs from the link in the file list")
            links.append(item)
        elif not info.isreg() or info.size != item.size:
            raise damaged(path, f"{info.name!r} differs from the file in the file list")
        else:
            _write(path, archive, info, item, folder)
    if wanted:
        raise damaged(path, f"{min(wanted)!r} is missing")
    for item in links:
        target = folder / item.path
        with _name_refused(path, item):
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.symlink(item.link, target)
        os.utime(target, (item.mtime, item.mtime), follow_symlinks=False)


@contextmanager
def _name_refused(path: Path, item: Item) -> Iterator[None]:
    """Convert the error for a name that this file system does not support to an archive error."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise damaged(path, f"{item.path!r} conflicts with another path") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise damaged(path, f"the name {item.path[:60]!r}... is too long for this file system") from error


def _write(path: Path, archive: tarfile.TarFile, info: tarfile.TarInfo, item: Item, folder: Path) -> None:
    target, digest = folder / item.path, hashlib.sha256()
    mode = 0o755 if item.is_executable else 0o644
    source = archive.extractfile(info)
    assert source is not None  # a plain file
    with _name_refused(path, item):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
            while piece := source.read(_PIECE_BYTES):
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    if digest.hexdigest() != item.sha256:
        raise damaged(path, f"{item.path} does not match its sha256 in the file list")
    os.utime(target, (item.mtime, item.mtime))
