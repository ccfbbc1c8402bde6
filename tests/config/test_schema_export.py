from __future__ import annotations

from typing import Any

from tests.config.shapes import Config
from windlass.config.schema_export import json_schema
from windlass.core.names import is_name


def definition(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json_schema(Config)
    found: dict[str, Any] = schema["$defs"][name]
    return found


def test_the_schema_names_its_draft_and_refers_to_definitions() -> None:
    schema = json_schema(Config)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "Config"
    assert schema["$ref"] == "#/$defs/Config"
    assert definition("Config")["additionalProperties"] is False


def test_descriptions_defaults_and_ranges_are_there() -> None:
    properties = definition("Config")["properties"]
    assert properties["text"] == {"type": "string", "description": "Any text.", "default": "default"}
    assert properties["small"] == {"type": "integer", "minimum": 1, "maximum": 9, "default": 1}
    assert properties["ratio"] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 1.0}
    assert properties["wait"]["default"] == "1m"
    assert properties["wait"]["type"] == "string"
    assert properties["memory"]["examples"] == ["16GiB"]
    assert properties["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert properties["level"] == {"enum": ["low", "high", 3, True], "default": "low"}
    assert properties["color"] == {"enum": ["red", "blue"], "default": "red"}


def test_short_forms_are_offered_beside_the_long_one() -> None:
    point = {"anyOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"$ref": "#/$defs/Point"}]}
    properties = definition("Config")["properties"]
    assert properties["points"]["additionalProperties"] == point
    assert properties["origin"] == {**point, "description": "Short for `points.origin`."}
    assert properties["one_or_many"]["anyOf"] == [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]


def test_keys_are_those_of_the_file() -> None:
    properties = definition("Config")["properties"]
    assert "class" in properties
    assert "class_" not in properties


def test_a_dataclass_may_hold_itself() -> None:
    assert definition("Node")["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert definition("Node")["description"] == "A dataclass that holds itself."
    assert definition("Sgd")["required"] == ["momentum"]


def test_the_pattern_of_names_is_the_rule_of_names() -> None:
    import re

    pattern = re.compile(definition("Config")["properties"]["name"]["pattern"])
    for text in ("a", "a-b", "a.b_c", "0", "-a", "a-", "A", "", "a" * 64, "a" * 65, "a b", "a/b", "a\n"):
        assert (pattern.fullmatch(text) is not None) == is_name(text), text
