"""`make check`: run every static check, show each one's verdict, fail if any failed."""

from __future__ import annotations

import subprocess
import sys
import time

from scripts.tree import ROOT

CHECKS: dict[str, list[str]] = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy"],
    "layers": ["lint-imports", "--no-logo"],
    "in-job": [sys.executable, "-m", "scripts.check_in_job"],
    "docs": [sys.executable, "-m", "scripts.check_docs"],
    "committed": [sys.executable, "-m", "scripts.check_committed"],
    "language": [sys.executable, "-m", "scripts.language"],
    "lines": [sys.executable, "-m", "scripts.count_lines"],
}


def main() -> int:
    """Run all checks, or those named on the command line."""
    chosen = sys.argv[1:] or list(CHECKS)
    failed = []
    for name in chosen:
        start = time.monotonic()
        print(f"--- {name}: {' '.join(CHECKS[name])}", flush=True)
        if subprocess.run(CHECKS[name], cwd=ROOT).returncode != 0:
            failed.append(name)
        print(f"--- {name}: {'FAILED' if name in failed else 'ok'} ({time.monotonic() - start:.1f} s)", flush=True)
    print(
        f"check: {len(chosen) - len(failed)} of {len(chosen)} ok" + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
