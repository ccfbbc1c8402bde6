"""A launching command that a test can kill: `python launcher.py FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from windlass.launch import Options, launch, prepare_file

if __name__ == "__main__":
    launch(prepare_file(Path(sys.argv[1]), sys.argv[2:], Options(allow_dirty=True)))
