"""Garbage collection of images, prepared data and data versions.

Items that a run needs to continue are always kept. Items that only finished runs pin are kept unless `drops_pinned`.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.core.files import disk_bytes, lock
from windlass.core.names import new_token
from windlass.core.phrases import count
from windlass.core.units import format_duration
from windlass.launcher.gc.removable import Kept, Removal
from windlass.record.state import State
from windlass.runs.home import Home
from windlass.runs.index import Index
from windlass.runs.store import RunFolder

if TYPE_CHECKING:
    from windlass.pin.image.engine import ImageEngine
    from windlass.pin.image.records import ImageRecord

__all__ = [
    "Needs",
    "clear",
    "collect_data",
    "needs_of",
    "old_built_data",
    "old_images",
    "remove_built_data",
    "remove_image",
]

_BUILT = "data/built"
_LEFT_S = 86400.0


@dataclass(frozen=True, slots=True)
class Needs:
    """Text of all runs' plans, to be searched for keys and digests.

    Attributes:
        plans: text of each run's plan, and whether the run may still continue, by run.
    """

    plans: dict[str, tuple[str, bool]]

    def user_of(self, key: str, *, drops_pinned: bool) -> str:
        """Return the reason to keep a key, or an empty string if no run pins it."""
        pinned = ""
        for run, (text, is_live) in self.plans.items():
            if key not in text:
                continue
            if is_live:
                return f"{run} may continue with it"
            pinned = pinned or ("" if drops_pinned else f"{run} pins it (--drop-pinned)")
        return pinned


def clear(
    home: Home, *, has_images: bool, has_data: bool, older_than_s: float, drops_pinned: bool, is_dry: bool
) -> Iterator[Removal | Kept]:
    """Remove images and data that no run needs.

    Yield what was removed and what was kept. With `is_dry`, remove nothing. Blocking.
    """
    seen: list[Removal | Kept] = []
    if has_images:
        seen += old_images(home, older_than_s, drops_pinned=drops_pinned)
    if has_data:
        seen += old_built_data(home, older_than_s, drops_pinned=drops_pinned)
    for each in seen:
        carry_out = remove_image if each.kind == "image" else remove_built_data
        if isinstance(each, Kept) or is_dry or carry_out(each, home):
            yield each
        else:
            kind: Literal["image", "built data"] = "image" if each.kind == "image" else "built data"
            why = f"{each.why}, but it has been used since, or its engine is missing or did not remove it"
            yield Kept(path=each.path, why=why, kind=kind)
    if has_data:
        yield from collect_data(home, older_than_s, drops_pinned=drops_pinned, is_dry=is_dry)


def needs_of(home: Home) -> Needs:
    """Read the plans of a home's runs; an unreadable run is assumed to be resumable."""
    index = Index(home)
    index.refresh()
    plans = {}
    for row in index.dump():
        path = RunFolder(home.runs / row.id).path / "plan.json"
        if path.exists():
            plans[row.id] = (path.read_text(errors="replace"), row.state != State.SUCCEEDED)
    return Needs(plans)


def old_images(home: Home, older_than_s: float, *, drops_pinned: bool = False) -> Iterator[Removal | Kept]:
    """Yield every image that windlass built on this machine, from its records."""
    from windlass.pin.image.records import (
        list_records,  # lazy: most homes have no images
        record_path,
    )

    needs, now = needs_of(home), time.time()
    for record in list_records(home.cache):
        if not record.commits:
            continue  # used by name, not built: the record only lists its packages
        path = record_path(home.cache, record.key, record.engine)
        used_at = path.stat().st_mtime
        why = needs.user_of(record.key, drops_pinned=drops_pinned)
        if not why and record.digest:
            why = needs.user_of(record.digest, drops_pinned=drops_pinned)
        why = why or _used(used_at, now, older_than_s)
        name = record.tags[0] if record.tags else record.image_id
        if why:
            yield Kept(path=path, why=f"{name}: {why}", kind="image")
        else:
            yield Removal(
                kind="image", path=path, num_bytes=record.size_bytes, why=f"{name}: no run pins it", used_at=used_at
            )


def _is_used_since(marker: Path, removal: Removal) -> bool:
    """Return whether an item has been used since it was listed; a launch touches its marker."""
    return bool(removal.used_at) and marker.exists() and marker.stat().st_mtime != removal.used_at


def _used(used_at: float, now: float, older_than_s: float) -> str:
    return "" if now - used_at >= older_than_s else f"used {format_duration(max(0, int(now - used_at)))} ago"


def remove_image(removal: Removal, home: Home) -> bool:
    """Remove an image and its record; return False if it is in use or its engine is missing."""
    from windlass.pin.image.engine import find_engine  # lazy: as above
    from windlass.pin.image.records import list_records, record_path

    for record in list_records(home.cache):
        if record_path(home.cache, record.key, record.engine) != removal.path:
            continue
        try:
            engine = find_engine(record.engine)
        except WindlassError:
            return False
        with lock(removal.path.with_name(f"{record.key}.lock")):
            if _is_used_since(removal.path, removal):
                return False
            for name in (*_own_names(record, engine), record.image_id):
                engine.remove(name)
            if engine.find(record.image_id) is not None:
                return False
            removal.path.unlink(missing_ok=True)
            return True
    return False


def _own_names(record: ImageRecord, engine: ImageEngine) -> Iterator[str]:
    """Yield the names that windlass gave an image; an engine keeps an image that still has a name."""
    yield from record.tags
    facts = engine.find(record.image_id)
    for tag in facts.tags if facts is not None else ():
        name = tag.removeprefix("localhost/").rpartition(":")[0]
        if name in (record.name, record.registry) and tag.removeprefix("localhost/") not in record.tags:
            yield tag


def old_built_data(home: Home, older_than_s: float, *, drops_pinned: bool = False) -> Iterator[Removal | Kept]:
    """Yield every folder of prepared data on this machine, and what killed builders left behind."""
    from windlass.supervise.builds.once import READY, is_being_built  # lazy: most homes have none

    folder = home.path / _BUILT
    needs, now = needs_of(home), time.time()
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not place.is_dir():
            continue
        if place.name.startswith("."):
            key = place.name.split(".")[1]
            is_busy = is_being_built(place.with_name(key)) or now - place.stat().st_mtime < _LEFT_S
            if not is_busy:
                yield Removal(kind="left-over", path=place, num_bytes=disk_bytes(place), why="its builder was killed")
            continue
        why = "it is being built" if is_being_built(place) else needs.user_of(place.name, drops_pinned=drops_pinned)
        ready = place / READY
        used_at = (ready if ready.exists() else place).stat().st_mtime
        why = why or _used(used_at, now, older_than_s)
        if why:
            yield Kept(path=place, why=why, kind="built data")
        else:
            yield Removal(
                kind="built data", path=place, num_bytes=disk_bytes(place), why="no run pins it", used_at=used_at
            )


def remove_built_data(removal: Removal, _home: Home) -> bool:
    """Remove a folder of prepared data while holding its builders' lock; idempotent.

    Returns False if a launch has used it since it was listed.
    """
    from windlass.supervise.builds.once import READY  # lazy: as above

    place = removal.path
    is_left = place.name.startswith(".")
    gate = place.with_name((place.name.split(".")[1] if is_left else place.name) + ".lock")
    with lock(gate) if gate.exists() or not is_left else nullcontext():
        if not place.exists():
            return True
        if _is_used_since(place / READY, removal):
            return False
        gone = place.with_name(f".gone.{new_token()[:12]}")
        os.rename(place, gone)
    for root, _, _ in os.walk(gone):
        os.chmod(root, stat.S_IRWXU)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def collect_data(home: Home, older_than_s: float, *, drops_pinned: bool, is_dry: bool) -> Iterator[Removal | Kept]:
    """Remove versions of data that no run needs from the store, or only list them with `is_dry`.

    Named versions stay.
    """
    from windlass.launcher.data import Data  # lazy: most homes have no store

    data = Data(home=home)
    found = data.gc(older_than_s=older_than_s, drop_pinned=drops_pinned, dry_run=is_dry)
    if found.versions or found.num_objects:
        why = f"{count(len(found.versions), 'version')} and {count(found.num_objects, 'file')} without a name and without a run"
        yield Removal(kind="data", path=data.local.root, num_bytes=found.num_bytes, why=why)
    for digest, why in found.kept.items():
        yield Kept(path=data.local.root, why=f"{digest[:12]}: {why}", kind="data")
