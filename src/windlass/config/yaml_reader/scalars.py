"""Plain scalars in YAML 1.2: only the core schema, nothing from YAML 1.1.

Source: YAML 1.2.2, section 10.3.2. Thus `no`, `on`, `yes` and `24:00:00` are text, and `1e-6` is a number.
"""

from __future__ import annotations

import math
import re

__all__ = ["resolve_scalar"]

_CONSTANTS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((sign + word for sign in ("", "+") for word in (".inf", ".Inf", ".INF")), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_MAX_DIGITS = 1000


def resolve_scalar(text: str) -> bool | int | float | str | None:
    """Return the value of a plain scalar. Raises ValueError if a number is out of range."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    if len(text) > _MAX_DIGITS and (_INT.match(text) or _HEX.match(text) or _OCTAL.match(text) or _FLOAT.match(text)):
        raise ValueError(f"a number of {len(text)} characters is too long")
    if _INT.match(text):
        return int(text)
    if _OCTAL.match(text):
        return int(text, 0)
    if _HEX.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        value = float(text)
        if math.isinf(value):
            raise ValueError(f"the number `{text}` is too large")
        return value
    return text
