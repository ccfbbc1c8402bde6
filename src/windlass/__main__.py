"""`python -m windlass`, for launchers that start modules: `torchrun -m windlass train RECIPE`."""

from __future__ import annotations

import sys

from windlass.cli import main

if __name__ == "__main__":
    sys.exit(main())
