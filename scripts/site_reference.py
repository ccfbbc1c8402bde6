"""docs/reference/site.md, made from the dataclasses of `windlass.sites.profile`: every key of a site profile.

python -m scripts.site_reference --write     after a change of windlass.sites.profile
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from scripts.experiment_reference import default_text, record_in, takes_text
from scripts.tree import ROOT
from windlass.config.field_types import fields_of
from windlass.sites.profile import Profile

PAGE = ROOT / "docs" / "reference" / "site.md"

_INTRODUCTION = """\
# The site profile

Made by `python -m scripts.site_reference --write` from what windlass itself reads; a test holds that it is current. How to
write one, and what to believe: [sites](../concepts/sites.md). Every key can be set by its path when a site is added:
`windlass site add mine scheduler.account=abc123`.

Durations have a unit: `90s`, `20m`, `24h`. Sizes too: `95GiB`; `460GB` is a power of 1000. NAME stands for a name, and a
number for the place in a list. Where one item is enough, a list may be written as its one item: `modules: cuda/12.6`.
"""


def reference() -> str:
    """The page."""
    return "\n".join([_INTRODUCTION, *_sections(Profile, ())]).rstrip("\n") + "\n"


def _sections(cls: type[object], path: tuple[str, ...]) -> Iterator[str]:
    """The table of one mapping, then those of the mappings in it."""
    yield f"## `{'.'.join(path)}`" if path else "## Top level"
    yield ""
    yield (cls.__doc__ or "").split("\n", maxsplit=1)[0]
    yield ""
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    for key, field in fields_of(cls).items():
        meaning = field.doc.replace("|", "\\|")
        yield f"| `{key}` | {takes_text(field.type)} | {default_text(field)} | {meaning} |"
    yield ""
    for key, field in fields_of(cls).items():
        inner = record_in(field.type)
        if inner is not None:
            record, steps = inner
            yield from _sections(record, (*path, key, *steps))


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(reference())
    else:
        print(reference(), end="")
