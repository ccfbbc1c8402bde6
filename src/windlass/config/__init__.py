"""Conversion of dataclasses to and from YAML 1.2, with overrides and precise errors.

Independent of experiments: used by `spec` and by the trainer. `Doc` and `Range` annotate fields of a recipe of your own.
"""

from __future__ import annotations

from windlass.config.annotations import Doc, Range

__all__ = ["Doc", "Range"]
