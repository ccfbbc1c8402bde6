"""Short names of well-known images: `windlass:pytorch` in `env.image`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError
from windlass.core.names import nearest

__all__ = ["PREFIX", "NamedImage", "catalogue", "expand"]

PREFIX = "windlass:"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedImage:
    """Entry in the catalogue: the image's tag and what it contains."""

    image: str
    about: str


@cache
def catalogue() -> dict[str, NamedImage]:
    """Return all entries by name."""
    import tomllib  # lazy: few images have such a name

    entries = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
    return {name: NamedImage(**entry) for name, entry in entries.items()}


def expand(name: str) -> str:
    """Return the image that `windlass:<name>` stands for; other names are returned unchanged.

    Raises:
        NotFoundError: the catalogue has no such name.
    """
    if not name.startswith(PREFIX):
        return name
    short = name.removeprefix(PREFIX)
    entries = catalogue()
    if short in entries:
        return entries[short].image
    close = nearest(short, entries)
    raise NotFoundError(
        f"no image `{short}` in windlass's catalogue",
        hint=f"did you mean `{PREFIX}{close}`?" if close else f"available: {', '.join(entries)}",
        code="image-not-found",
    )
