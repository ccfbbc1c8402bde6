from __future__ import annotations

import pytest

from windlass.pin.image.context import ignoring


@pytest.mark.parametrize(
    ("patterns", "path", "is_out"),
    [
        ("", "a", False),
        ("# a", "a", False),
        ("a", "a", True),
        ("a", "a/b", True),
        ("a", "b/a", False),
        ("/a", "a", True),
        ("./a/", "a", True),
        ("**/a", "b/c/a", True),
        ("**/a", "a", True),
        ("a/**", "a/b/c", True),
        ("a/**/z", "a/z", True),
        ("*.log", "x.log", True),
        ("*.log", "d/x.log", False),
        ("*/x", "d/x", True),
        ("*/x", "d/e/x", False),
        ("a?", "ab", True),
        ("a?", "a/", False),
        ("[ab]c", "bc", True),
        ("[!ab]c", "bc", True),  # Go knows `^` alone; `!` is one of the letters... of which `b` is one
        ("[^ab]c", "bc", False),
        ("\\*", "*", True),
        ("\\*", "a", False),
        ("a.c", "abc", False),
        ("*\n!keep", "keep", False),
        ("*\n!keep\nkeep", "keep", True),
        ("*\n!src/**", "src/a.py", False),
        ("a/../b", "b", True),
        ("\ufeffa", "a", True),
        (" a ", "a", True),
    ],
)
def test_patterns(patterns: str, path: str, is_out: bool) -> None:
    assert ignoring(patterns)(path) is is_out


def test_a_broken_pattern_is_named() -> None:
    with pytest.raises(ValueError, match=r"`\[a` has no closing"):
        ignoring("[a")
