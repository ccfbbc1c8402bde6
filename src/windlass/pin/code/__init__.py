"""Code pins: from a folder to a commit or an exact snapshot, and back to files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names
from windlass.pin.code.pinned import NO_CODE, CodeKind, CodePin

if TYPE_CHECKING:
    from windlass.pin.code.checkouts import checkout, resolve_code_folder
    from windlass.pin.code.pinning import pin_code, strip_credentials
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.pin.code.checkouts": ("checkout", "resolve_code_folder"),
            "windlass.pin.code.pinning": ("pin_code", "strip_credentials"),
        },
    )

__all__ = ["NO_CODE", "CodeKind", "CodePin", "checkout", "pin_code", "resolve_code_folder", "strip_credentials"]
