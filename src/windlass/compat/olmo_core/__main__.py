"""Entry point of `python -m windlass.compat.olmo_core`; see `command_line`."""

from __future__ import annotations

import sys

from windlass.compat.olmo_core.command_line import main

sys.exit(main())
