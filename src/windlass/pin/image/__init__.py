"""Container images, pinned by content before a launch, built once and used by digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names
from windlass.pin.image.pinned import NO_IMAGE, BuiltImage, ImagePin

if TYPE_CHECKING:
    from windlass.pin.image.engine import ImageEngine, find_engine
    from windlass.pin.image.ensuring import ImageMaker, ensure_image, has_image
    from windlass.pin.image.pinning import ImageSource, pin_built, pin_named
    from windlass.pin.image.records import ImageRecord, find_record, list_records
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.pin.image.engine": ("ImageEngine", "find_engine"),
            "windlass.pin.image.ensuring": ("ImageMaker", "ensure_image", "has_image"),
            "windlass.pin.image.pinning": ("ImageSource", "pin_built", "pin_named"),
            "windlass.pin.image.records": ("ImageRecord", "find_record", "list_records"),
        },
    )

__all__ = [
    "NO_IMAGE",
    "BuiltImage",
    "ImageEngine",
    "ImageMaker",
    "ImagePin",
    "ImageRecord",
    "ImageSource",
    "ensure_image",
    "find_engine",
    "find_record",
    "has_image",
    "list_records",
    "pin_built",
    "pin_named",
]
