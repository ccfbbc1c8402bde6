"""Times, sizes and counts as a person says them; made in `windlass.core.phrases`, for the layers below too."""

from __future__ import annotations

from windlass.core.phrases import ago, brief, count, duration, local_time, number, size

__all__ = ["ago", "brief", "count", "duration", "local_time", "number", "size"]
