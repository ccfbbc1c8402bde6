"""`[tool.gantry]` of the project's pyproject.toml: defaults of workspace, budget, the token's secret."""

from __future__ import annotations

from pathlib import Path

from windlass.config.foreign_text import load_toml
from windlass.core.dataclass import dataclass
from windlass.core.errors import Place, PreconditionError
from windlass.core.names import nearest

__all__ = ["GantrySettings", "read_settings"]

_TEXTS = ("workspace", "budget", "gh_token_secret")
_SILENT = ("log_level", "quiet")
"""How gantry itself talks; windlass does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GantrySettings:
    """Defaults of a project; empty where it says nothing."""

    workspace: str = ""
    budget: str = ""
    gh_token_secret: str = ""
    notes: tuple[str, ...] = ()


def read_settings(folder: Path) -> GantrySettings:
    """The settings of the project in `folder`; none where it has no pyproject.toml.

    Raises:
        PreconditionError: the file is no TOML, or a setting is no text.
    """
    path = folder / "pyproject.toml"
    try:
        table = load_toml(path.read_text(encoding="utf-8")).get("tool", {}).get("gantry", {})
    except (FileNotFoundError, NotADirectoryError):
        return GantrySettings()
    except (ValueError, AttributeError, OSError) as error:
        hint = "it is TOML: https://toml.io"
        raise PreconditionError(f"cannot read {path}: {error}", hint=hint, code="bad-settings") from error
    place = Place(f"{path}: [tool.gantry]")
    if not isinstance(table, dict):
        raise PreconditionError(
            "`tool.gantry` is not a table", hint="write [tool.gantry]", code="bad-settings", place=place
        )
    for key in _TEXTS:
        if not isinstance(table.get(key, ""), str):
            message = f"`{key}` is `{table[key]}`, not a string"
            raise PreconditionError(message, hint=f'{key} = "..."', code="bad-settings", place=place)
    return GantrySettings(**{key: table[key] for key in _TEXTS if key in table}, notes=tuple(_notes(table)))


def _notes(table: dict[str, object]) -> list[str]:
    notes = []
    for key in table:
        if key == "callback_modules":
            notes.append("[tool.gantry] callback_modules: callbacks of gantry are not run")
        elif key not in (*_TEXTS, *_SILENT):
            close = nearest(key, _TEXTS)
            notes.append(f"[tool.gantry] {key} is not known" + (f"; did you mean `{close}`?" if close else ""))
    return notes
