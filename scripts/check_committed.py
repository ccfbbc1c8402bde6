"""Nothing committed names a package registry's host, this machine's checkout, or brings a lock that would."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from scripts.tree import ROOT, tracked_files

# In two parts, so that this file passes its own check.
REGISTRY_HOSTS = tuple(
    f"{name}.{zone}"
    for name, zone in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("download.pytorch", "org"),
        ("anaconda", "org"),
        ("crates", "io"),
    )
)
# A lock that records where each file was downloaded from.
LOCKS_WITH_HOSTS = ("uv.lock", "pdm.lock", "poetry.lock", "yarn.lock")
OPTIONS_OF_PIP = re.compile(r"^\s*(--(extra-)?index-url|--find-links|-[if]\s)")


def main() -> int:
    """Exit 1 when something is found; print where."""
    files = tracked_files()
    problems = [problem for path in files for problem in check(path)]
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{len(files)} files: none names a registry host or a path of this machine")
    return 1 if problems else 0


def check(path: Path) -> list[str]:
    """Problems of one file."""
    name = str(path.relative_to(ROOT))
    if path.name in LOCKS_WITH_HOSTS:
        return [f"{name}: such a lock names the registry it came from; use hashed requirements (docs/decisions/0003)"]
    text = path.read_bytes().decode(errors="replace")
    is_requirements = name.startswith("requirements/")
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        found = [host for host in REGISTRY_HOSTS if host in line.lower()]
        if str(ROOT) in line:
            found.append(f"the path of this checkout, {ROOT}")
        if is_requirements and (OPTIONS_OF_PIP.match(line) or "://" in line or "file:" in line):
            found.append("where packages come from")
        problems += [f"{name}:{number}: names {what}" for what in found]
    return problems


if __name__ == "__main__":
    sys.exit(main())
