"""Post-training: supervised fine-tuning, reward models, preference learning, reinforcement learning, distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.post.samples.frames import StoredSample
    from windlass.post.samples.reader import read_samples
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.post.samples.frames": ("StoredSample",),
            "windlass.post.samples.reader": ("read_samples",),
        },
    )

__all__ = ["StoredSample", "read_samples"]
