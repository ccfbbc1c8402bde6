"""`python -m tests.golden.renew [FILE...]`: make golden files again; look at `git diff` before you commit them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden.make import FOLDER, GOLDEN
from tests.golden.stage import opened


def main(names: list[str]) -> int:
    """Write the files named (`plans` or `plans.yaml`), or all of them."""
    known = {Path(name).stem: name for name in GOLDEN}
    chosen = [known.get(name, name) for name in names] or list(GOLDEN)
    if unknown := sorted(set(chosen) - set(GOLDEN)):
        sys.stderr.write(f"unknown golden file {unknown[0]}: use {', '.join(known)}\n")
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as stage:
            text = GOLDEN[name](stage)
        path = FOLDER / name
        is_new = not path.exists() or path.read_text() != text
        path.write_text(text)
        sys.stdout.write(f"{'changed' if is_new else 'same   '}  {path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
