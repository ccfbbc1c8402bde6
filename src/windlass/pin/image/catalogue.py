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
    """An entry of the catalogue: its tag, and what is in it."""

    image: str
    about: str


@cache
def catalogue() -> dict[str, NamedImage]:
    """All entries by name."""
    import tomllib  # lazy: few images are named so

    entries = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
    return {name: NamedImage(**entry) for name, entry in entries.items()}


def expand(name: str) -> str:
    """The image that `windlass:<name>` stands for; other names as they are.

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
        code="image-missing",
    )
