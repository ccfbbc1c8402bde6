"""docs/errors.md, made from docs/errors.toml: every error code, what it means and what to do.

python -m scripts.error_reference --write     after a change of the table
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping

from scripts.tree import ROOT
from windlass.cli.error_table import GROUPS, ErrorCode, Table, parse

__all__ = ["PAGE", "TABLE", "check_table", "read_table", "reference"]

TABLE = ROOT / "docs" / "errors.toml"
PAGE = ROOT / "docs" / "errors.md"
_FIELDS = {"meaning", "remedy", "more"}

_INTRODUCTION = """\
# Errors

Made by `python -m scripts.error_reference --write` from [errors.toml](errors.toml). Every error of windlass ends with a
code in brackets:

    error: unknown key `nodez` in tasks.train                     [unknown-key]
      exp.yaml:24:5   nodez: 10
    hint: did you mean `nodes`?

`windlass explain CODE` prints its entry, `windlass explain --search WORD` searches them, and `windlass explain groups`
lists the groups below. The codes of the first group also say why a run ended, in `windlass show RUN`.
"""


def read_table() -> Table:
    """The table as TOML has it."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def reference(table: Table) -> str:
    """The page."""
    entries = parse(table).values()
    lines = [_INTRODUCTION]
    for group, title in table[GROUPS].items():
        lines += [f"## {title}", ""]
        lines += [line for entry in entries if entry.group == group for line in _section(entry)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(entry: ErrorCode) -> Iterator[str]:
    yield from (f"### {entry.code}", "", entry.meaning, "", f"What to do: {entry.remedy}", "")
    if entry.more:
        yield from (entry.more.rstrip("\n"), "")


def check_table(table: Table) -> list[str]:
    """Entries that are incomplete, out of order or in two groups."""
    name = TABLE.relative_to(ROOT)
    titles = table.get(GROUPS, {})
    problems = [f"{name}: group {group!r} has no title" for group in table if group not in (GROUPS, *titles)]
    seen: dict[str, str] = {}
    for group, members in table.items():
        if group == GROUPS:
            continue
        if list(members) != sorted(members):
            problems.append(f"{name}: the codes of {group!r} are not in alphabetical order")
        for code, fields in members.items():
            problems += [f"{name}: {code}: {problem}" for problem in _problems(fields)]
            if code in titles or code == GROUPS:
                problems.append(f"{name}: {code} is the name of a group")
            if code in seen:
                problems.append(f"{name}: {code} is in the groups {seen[code]!r} and {group!r}")
            seen[code] = group
    return problems


def _problems(fields: Mapping[str, str]) -> Iterator[str]:
    for field in ("meaning", "remedy"):
        if not fields.get(field, "").endswith("."):
            yield f"`{field}` is missing or does not end with a full stop"
    for field in sorted(set(fields) - _FIELDS):
        yield f"unknown field `{field}`"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(reference(read_table()), encoding="utf-8")
    else:
        print(reference(read_table()), end="")
