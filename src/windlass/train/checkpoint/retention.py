"""Which checkpoints stay when a new one is there; pure."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.train.checkpoint.protocol import Committed

__all__ = ["to_remove"]


def to_remove(found: Sequence[Committed], newest: Committed, *, keep: int | None) -> list[Committed]:
    """What goes now that `newest` is committed, oldest first.

    An ephemeral checkpoint goes as soon as a later one is there. Of permanent ones the newest `keep` stay; None: all.
    What lies at later steps than `newest` is from a run that went on from elsewhere, and stays.

    Args:
        found: all that are committed; `newest` may be among them.
    """
    earlier = sorted((item for item in found if item.step < newest.step), key=lambda item: item.step)
    permanent = [item for item in earlier if item.is_permanent]
    gone = [item for item in earlier if not item.is_permanent]
    if keep is not None:
        num_kept = max(0, keep - int(newest.is_permanent))
        gone += permanent[: max(0, len(permanent) - num_kept)]
    return sorted(gone, key=lambda item: item.step)
