from __future__ import annotations

from tests.config.shapes import Bounds, Config, Point
from windlass.config.completion import override_paths
from windlass.config.difference import ABSENT, Change, diff


def test_a_change_names_its_path_and_both_sides() -> None:
    before = Config(wait=60.0, points={"a.b": Point(x=1)}, free={"lr": 1})
    after = Config(wait=90.0, points={"a.b": Point(x=2)}, free={"lr": 1.0, "seed": None}, maybe_bounds=Bounds())
    assert {(change.path, change.before, change.after) for change in diff(before, after)} == {
        ("wait", "1m", "1m30s"),
        ("maybe_bounds.low", ABSENT, 0),
        ("maybe_bounds.high", ABSENT, 10),
        ('points."a.b".x', 1, 2),
        ("free.lr", 1, 1.0),
        ("free.seed", ABSENT, None),
        ("maybe_bounds", None, ABSENT),
    }
    assert diff(before, after)[0] == Change("maybe_bounds.low", ABSENT, 0)
    assert [str(change) for change in diff(Config(), Config(whole=4))] == ["~ whole: 3 -> 4"]
    assert "+ free.a: None" in [str(change) for change in diff(Config(), Config(free={"a": None}))]
    assert "- free.a: 1" in [str(change) for change in diff(Config(free={"a": 1}), Config())]


def test_override_paths_of_a_schema_and_of_a_file() -> None:
    paths = override_paths(Config)
    assert paths[:3] == ["text", "whole", "small"]
    assert {
        "bounds.low",
        "maybe_bounds.high",
        "points.NAME.x",
        "optimizer.momentum",
        "optimizer.beta",
        "origin",
        "class",
    } <= set(paths)
    assert len(paths) == len(set(paths))
    own = override_paths(Config, {"points": {"a.b": {"x": 1}}, "free": {"lr": 1}})
    assert {'points."a.b".x', "free.lr"} <= set(own)
    assert "points.NAME.x" not in own


def test_override_paths_follow_the_lists_of_a_file() -> None:
    assert {"path_of_points.0.x", "path_of_points.1.y"} <= set(
        override_paths(Config, {"path_of_points": [1, {"x": 2}]})
    )
    assert not any(path.startswith("path_of_points.") for path in override_paths(Config))
