from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from windlass.core.json_text import MAX_DEPTH, JsonError, decode_json, decode_object, read_json, read_object

TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def some_value(rng: random.Random, levels: int) -> Any:
    kind = rng.random()
    if levels <= 0 or kind < 0.2:
        return rng.choice(["[[[", "]\\", '"]', '\\\\"', "}{", 1, None, "\u00e9[", "\ud800[", 0.5])
    if kind < 0.6:
        return [some_value(rng, levels - 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice('ab["\\') + str(number): some_value(rng, levels - 1) for number in range(rng.randint(0, 3))}


@pytest.mark.parametrize("seed", range(300))
def test_the_limit_is_the_depth_that_the_parser_would_reach(seed: int) -> None:
    rng = random.Random(seed)
    value = some_value(rng, rng.randint(0, 8))
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
    for content in (text, text.encode("utf-8", "surrogatepass")):
        for limit in range(9):
            if depth(value) <= limit:
                assert decode_json(content, max_depth=limit) == value
            else:
                with pytest.raises(JsonError, match=f"nested more than {limit} levels deep"):
                    decode_json(content, max_depth=limit)


@pytest.mark.parametrize("unit", ["[", '{"a":', '[{"a":', '["]",', '["\\"]",', "[[]," * 3])
def test_brackets_that_never_close_are_too_deep(unit: str) -> None:
    with pytest.raises(JsonError, match=TOO_DEEP):
        decode_json(unit * 100_000)


def test_what_the_parser_would_say_is_said() -> None:
    with pytest.raises(ValueError, match=r"Expecting value: line 1 column 1 \(char 0\)"):
        decode_json(b"nonsense")
    with pytest.raises(ValueError, match="Extra data"):
        decode_json("[]" * 1000)
    with pytest.raises(UnicodeDecodeError):
        decode_json(b'"\xff"')
    assert decode_json(b"\xef\xbb\xbf[1]") == [1]
    assert decode_json('"a\tb"', strict=False) == "a\tb"


def test_size_and_kind() -> None:
    assert decode_object('{"a": 1}', max_bytes=8) == {"a": 1}
    with pytest.raises(JsonError, match="larger than 8 bytes"):
        decode_object('{"a": 12}', max_bytes=8)
    with pytest.raises(JsonError, match="larger than 4 bytes"):
        decode_json('"\u00e9\u00e9"', max_bytes=4)
    with pytest.raises(JsonError, match="not an object"):
        decode_object("[]")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_object(path) == {"a": 1}
    assert read_json(path, max_bytes=8) == {"a": 1}
    with pytest.raises(JsonError, match="larger than 7 bytes"):
        read_json(path, max_bytes=7)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "b.json")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("pipe.json", "."):
        with pytest.raises(JsonError, match="not a regular file"):
            read_json(tmp_path / name)
