"""The tables for users of TRL: each of our names is a field of the recipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from windlass.config.field_types import FieldType, ListType, OneOfType, RecordType, fields_of
from windlass.post.recipe import PolicyRecipe, PostRecipe, PreferenceRecipe, RewardRecipe, SftRecipe

PAGE = Path(__file__).parents[2] / "docs/post-for-open-instruct-and-trl-users.md"
SECTIONS: dict[str, tuple[type[PostRecipe], ...]] = {
    "TRL": (SftRecipe, RewardRecipe, PreferenceRecipe, PolicyRecipe),
    "SFTConfig": (SftRecipe,),
    "RewardConfig": (RewardRecipe,),
    "DPOConfig": (PreferenceRecipe,),
    "GRPOConfig": (PolicyRecipe,),
}


def cells_of(section: str) -> list[list[str]]:
    """Return the rows of a section's table."""
    text = PAGE.read_text().split(f"# {section}\n")[1]
    text = re.split(r"\n#+ ", text)[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def has_field(field_type: FieldType, parts: list[str]) -> bool:
    if not parts:
        return True
    if isinstance(field_type, OneOfType):
        return any(has_field(option, parts) for option in field_type.options)
    if isinstance(field_type, ListType):
        return parts[0].isdigit() and has_field(field_type.item, parts[1:])
    if isinstance(field_type, RecordType):
        found = fields_of(field_type.cls).get(parts[0])
        return found is not None and has_field(found.type, parts[1:])
    return False


@pytest.mark.parametrize("section", SECTIONS)
def test_our_names_are_fields_of_the_recipe(section: str) -> None:
    rows = cells_of(section)
    assert len(rows) >= 3
    for row in rows:
        for path in re.findall(r"`([^`]+)`", row[1]):
            for recipe in SECTIONS[section]:
                assert has_field(RecordType(cls=recipe), path.split(".")), path


def test_a_name_that_is_no_field_is_found() -> None:
    assert not has_field(RecordType(cls=PolicyRecipe), ["objective", "epsilon"])
    assert has_field(RecordType(cls=PreferenceRecipe), ["objective", "losses", "0", "beta"])
