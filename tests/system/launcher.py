"""A launching command that a test can kill: `python launcher.py FILE [--on=SITE] [OVERRIDE...]`."""

from __future__ import annotations

import sys
from pathlib import Path

from windlass import Options, launch
from windlass.launcher.prepare import prepare_file

if __name__ == "__main__":
    on = next((word[5:] for word in sys.argv[2:] if word.startswith("--on=")), "")
    overrides = [word for word in sys.argv[2:] if not word.startswith("--on=")]
    launch(prepare_file(Path(sys.argv[1]), overrides, Options(allow_dirty=True, on=on)))
