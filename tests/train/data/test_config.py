from __future__ import annotations

import pytest

from windlass.train.data.config import DataConfig, SourceConfig

ONE, OTHER = SourceConfig(path=("a",)), SourceConfig(path=("b",), ratio=1.0)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, []),
        (
            {"batch_tokens": 100},
            [("batch_tokens", "batch_tokens 100 is not a multiple of sequence_length 64", "try 128")],
        ),
        (
            {"microbatch_tokens": 192},
            [("batch_tokens", "batch_tokens 512 is not a multiple of microbatch_tokens 192", "try 576")],
        ),
        (
            {"sources": (ONE, OTHER)},
            [("sources", "source 0 has no `ratio`, others have one", "set a ratio for all of them, or for none")],
        ),
        ({"sources": ()}, [("sources", "no data source", "add `sources: [{path: FILE}]`")]),
    ],
)
def test_what_no_field_can_see(fields: dict[str, object], found: list[tuple[str, str, str]]) -> None:
    defaults: dict[str, object] = {"sources": (ONE,), "sequence_length": 64, "batch_tokens": 512}
    config = DataConfig(**{**defaults, **fields})  # type: ignore[arg-type]
    assert [(where, message, hint) for where, message, _, hint in config.check()] == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (SourceConfig(path=()), [("path", "invalid-value")]),
        (SourceConfig(path=("a", "")), [("path", "invalid-value")]),
        (SourceConfig(path=("a",), ratio=float("inf")), [("ratio", "invalid-value")]),
        (OTHER, []),
    ],
)
def test_a_source_names_something(source: SourceConfig, found: list[tuple[str, str]]) -> None:
    assert [(where, code) for where, _, code, _ in source.check()] == found
