"""Environment variables as a user writes them: names are checked, values are not changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from windlass.config.annotations import Pattern, ScalarText

__all__ = ["VariableName", "Variables"]

VariableName: TypeAlias = Annotated[
    str,
    Pattern(
        "[A-Za-z_][A-Za-z0-9_]*",
        "a variable's name consists of letters, digits and '_', the first not a digit",
        "invalid-name",
    ),
]
Variables: TypeAlias = Mapping[VariableName, Annotated[str, ScalarText()]]
