"""Build the site: stage the pages, run Sphinx with warnings as errors, check what was built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from scripts.tree import ROOT
from scripts.website.built_pages import check_site
from scripts.website.staging import stage

SITE = ROOT / "build" / "site"
WORK = ROOT / "build" / "site-work"
CONFIGURATION = Path(__file__).parent


def main() -> int:
    """Build everything anew, so that a warning about an unchanged page is not missed; exit 1 on any problem."""
    for folder in (SITE, WORK):
        shutil.rmtree(folder, ignore_errors=True)
    problems = stage(WORK / "source")
    if not problems:
        problems = build(WORK / "source", SITE, WORK / "doctrees") or check_site(SITE)
    for problem in problems:
        print(problem)
    if not problems:
        num_pages = sum(1 for _ in SITE.rglob("*.html"))
        print(f"{SITE.relative_to(ROOT)}: {num_pages} pages, no warnings, no dead links, no requests to other hosts")
    return 1 if problems else 0


def build(source: Path, site: Path, doctrees: Path) -> list[str]:
    """Run Sphinx; returns its warnings, each of which is an error. The front page is README.md."""
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--conf-dir", str(CONFIGURATION)]
    command += ["--fail-on-warning", "--quiet", "--jobs", "2", "--doctree-dir", str(doctrees)]
    done = subprocess.run([*command, str(source), str(site)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        return [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    shutil.copy(site / "README.html", site / "index.html")
    return []


if __name__ == "__main__":
    sys.exit(main())
