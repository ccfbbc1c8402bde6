"""Comparison of the image that a run used with the images that the engine has now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.runs.archive.origin import is_imported
from windlass.runs.store import RunFolder

__all__ = ["ImageAsRun", "image_as_run"]

_SHORT = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAsRun:
    """Current state of an image that a run used.

    Attributes:
        state: `there`; `pullable`: missing, but a registry has it by digest; `rebuilt`: another image has its name;
            `missing`: no image has its name.
        engine: `docker` or `podman`.
        used: shortened id of the image that the run used.
        now: shortened id of the image that now has its name; empty if there is none.
    """

    state: Literal["there", "pullable", "rebuilt", "missing"]
    engine: str
    used: str
    now: str = ""

    @property
    def sentence(self) -> str:
        """Return a sentence for the user; empty if the image exists."""
        if self.state == "rebuilt":
            return f"rebuilt: the run used {self.used}, which is no longer in {self.engine}; its name now refers to {self.now}"
        if self.state == "missing":
            return f"missing: the run used {self.used}, which is no longer in {self.engine}"
        if self.state == "pullable":
            return f"{self.used} is no longer in {self.engine}; it is pulled again by digest"
        return ""


def image_as_run(run: RunFolder, plan: Plan) -> ImageAsRun | None:
    """Look up a run's image with one or two calls of the engine; None if no local engine ran it.

    Raises:
        WindlassError: the engine cannot be reached.
    """
    pin, record = plan.pins.image, _record(run)
    used = str(record.get("image_id", ""))
    if pin.kind == "none" or plan.site.backend != "docker" or not used or is_imported(run):
        return None
    from windlass.pin.image.engine import find_engine  # lazy: only needed for runs in containers
    from windlass.pin.image.ensuring import name_of

    engine = find_engine(plan.site.name)
    name = name_of(pin)
    facts = engine.look(used, name)
    if used in facts:
        return ImageAsRun(state="there", engine=engine.kind, used=used[:_SHORT])
    other = facts.get(name)
    if other is not None:
        return ImageAsRun(state="rebuilt", engine=engine.kind, used=used[:_SHORT], now=other.image_id[:_SHORT])
    is_pullable = (
        bool(record.get("registry_digest")) if pin.kind == "built" else "@" in str(record.get("reference", ""))
    )
    return ImageAsRun(state="pullable" if is_pullable else "missing", engine=engine.kind, used=used[:_SHORT])


def _record(run: RunFolder) -> Mapping[str, object]:
    """Return the image section of a run's provenance."""
    try:
        record = run.provenance().get("image")
    except WindlassError:
        return {}  # another check reports this
    return record if isinstance(record, Mapping) else {}
