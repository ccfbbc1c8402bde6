"""The Dockerfile of this repository, as far as no builder is needed to judge it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_all_extras_are_all_of_them() -> None:
    """A requirement on the project's own extra `all` would be looked for in an index, so the file lists what is in it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = re.search(r"s/all/([a-z,]+)/", (ROOT / "Dockerfile").read_text())
    assert listed is not None
    assert set(listed.group(1).split(",")) == set(extras) - {"all"}
