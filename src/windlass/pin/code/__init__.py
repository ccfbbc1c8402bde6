"""Code pins: a folder to a commit or an exact snapshot, and back to files."""

from windlass.pin.code.checkouts import checkout, resolve_code_folder
from windlass.pin.code.pinned import NO_CODE, CodeKind, CodePin
from windlass.pin.code.pinning import pin_code, strip_credentials

__all__ = ["NO_CODE", "CodeKind", "CodePin", "checkout", "pin_code", "resolve_code_folder", "strip_credentials"]
