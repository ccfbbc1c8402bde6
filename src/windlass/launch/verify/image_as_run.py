"""The image that a run used, as its record says, beside what the engine of its place has now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.plan import Plan
from windlass.runs.archive.origin import is_imported
from windlass.runs.store import RunFolder

__all__ = ["ImageAsRun", "image_as_run"]

_SHORT = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAsRun:
    """What became of an image.

    Attributes:
        state: `there`; `pullable`: not here, and a registry has it by its digest; `rebuilt`: another image has its name;
            `missing`: neither it nor another is here.
        engine: `docker` or `podman`.
        used: id of the image that the run's containers were started from, shortened.
        now: id of the one that has its name, shortened; empty where there is none.
    """

    state: Literal["there", "pullable", "rebuilt", "missing"]
    engine: str
    used: str
    now: str = ""

    @property
    def sentence(self) -> str:
        """What a person should know; empty for an image that is there."""
        if self.state == "rebuilt":
            return f"rebuilt: the run used {self.used}, which {self.engine} no longer has; its name is {self.now} now"
        if self.state == "missing":
            return f"missing: {self.engine} no longer has {self.used}, which the run used"
        if self.state == "pullable":
            return f"{self.engine} no longer has {self.used}; it is pulled again by its digest"
        return ""


def image_as_run(run: RunFolder, plan: Plan) -> ImageAsRun | None:
    """Compare them by one or two calls of the engine; None where this machine's engine ran nothing of the run.

    Raises:
        WindlassError: the engine does not answer.
    """
    pin, record = plan.pins.image, _record(run)
    used = str(record.get("image_id", ""))
    if pin.kind == "none" or plan.site.backend != "docker" or not used or is_imported(run):
        return None
    from windlass.pin.image import find_engine  # lazy: only runs in containers
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
    """What the run's provenance says of its image."""
    try:
        record = run.provenance().get("image")
    except WindlassError:
        return {}  # its own finding
    return record if isinstance(record, Mapping) else {}
