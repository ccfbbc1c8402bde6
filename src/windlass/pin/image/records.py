"""Records of locally built images: one small file each, below `<home>/cache/images`.

    <key>.<engine>.json    the image's record, written when it is complete
    <key>.lock             held while it is built
    <key>.log              output of its last build
    <key>.building/        its context while it is built

Deleting them only loses the mapping from commits to images: images are found in the engine by tag and label.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError
from windlass.core.files import is_locked, write_json
from windlass.core.json_text import read_json
from windlass.core.names import nearest
from windlass.pin.image.pinned import BuiltImage

__all__ = [
    "ImageRecord",
    "find_record",
    "images_folder",
    "list_records",
    "read_record",
    "sweep_unfinished",
    "touch_record",
    "write_record",
]

_SCHEMA = 1
_BUILDING = ".building"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecord:
    """Record of an image that was built on this machine, or found by its content.

    Attributes:
        commits: commits of the code that it serves, oldest first, including those of snapshots.
        tags: its tags, one for each commit.
        built_at: seconds since 1970.
    """

    key: str
    engine: str
    name: str
    image_id: str
    commits: tuple[str, ...]
    tags: tuple[str, ...]
    built_at: float
    digest: str = ""
    registry: str = ""
    workdir: str = "/"
    platform: str = ""
    dockerfile: str = ""
    variant: str = ""
    size_bytes: int = 0
    bases: Mapping[str, str]
    packages: tuple[str, ...] = ()
    sbom: str = ""

    def built(self, *, is_hit: bool) -> BuiltImage:
        """Return the image from which containers are started."""
        return BuiltImage(
            reference=self.image_id,
            image_id=self.image_id,
            digest=self.digest,
            workdir=self.workdir,
            packages=self.packages,
            sbom=self.sbom,
            is_hit=is_hit,
        )

    def with_commit(self, commit: str, tag: str) -> ImageRecord:
        """Return a copy with one more commit."""
        return replace(self, commits=(*self.commits, commit), tags=tuple(dict.fromkeys((*self.tags, tag))))


def images_folder(cache: Path) -> Path:
    """Return the path of the folder with the records, which is created if missing."""
    folder = cache / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def record_path(cache: Path, key: str, engine: str) -> Path:
    """Return the path of a key's record."""
    return images_folder(cache) / f"{key}.{engine}.json"


def read_record(cache: Path, key: str, engine: str) -> ImageRecord | None:
    """Return the record stored under a key, or None."""
    return _read(record_path(cache, key, engine))


def write_record(cache: Path, record: ImageRecord) -> None:
    """Write a record atomically."""
    write_json(record_path(cache, record.key, record.engine), {"schema": _SCHEMA, **asdict(record)})


def touch_record(cache: Path, record: ImageRecord) -> None:
    """Record that an image is used, which protects it from `windlass gc` for a while."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(record_path(cache, record.key, record.engine))


def list_records(cache: Path) -> list[ImageRecord]:
    """Return all records, newest first."""
    found = [record for path in images_folder(cache).glob("*.json") if (record := _read(path)) is not None]
    return sorted(found, key=lambda record: record.built_at, reverse=True)


def find_record(cache: Path, word: str) -> ImageRecord:
    """Return the newest image with this commit, tag, key, id or digest, or a prefix of one with at least six
    characters.

    Raises:
        NotFoundError: none matches.
    """
    records = list_records(cache)
    bare = word.removeprefix("sha256:")
    for record in records:
        ids = (
            record.key,
            record.image_id.removeprefix("sha256:"),
            record.digest.removeprefix("sha256:"),
            *record.commits,
        )
        if word in (*record.tags, record.name) or (len(bare) >= 6 and any(each.startswith(bare) for each in ids)):
            return record
    names = [tag for record in records for tag in record.tags]
    close = nearest(word, names)
    raise NotFoundError(
        f"no image `{word}` was built on this machine",
        hint=f"did you mean `{close}`?"
        if close
        else "`windlass image ls` lists them; `windlass image build FILE` builds one",
        code="image-not-found",
    )


def sweep_unfinished(cache: Path, key: str) -> None:
    """Remove what killed builders left behind: unlocked contexts, and that of `key`, whose lock the caller holds."""
    for folder in images_folder(cache).glob(f"*{_BUILDING}"):
        if folder.stem == key or not is_locked(folder.with_suffix(".lock")):
            shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> ImageRecord | None:
    try:
        data: Any = read_json(path)
        known = {field.name for field in fields(ImageRecord)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name in known
        }
        return ImageRecord(**values) if data.get("schema") == _SCHEMA else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # the next build writes it again
