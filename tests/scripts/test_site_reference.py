from __future__ import annotations

from scripts.site_reference import PAGE, reference


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == reference(), "python -m scripts.site_reference --write"


def test_the_page_has_every_section_and_what_keys_take() -> None:
    text = reference()
    for section in ("scheduler", "scheduler.exclude.0", "partitions.NAME", "net.vars.0", "env.overrides.0", "ray"):
        assert f"## `{section}`\n" in text
    assert "| `gpu_memory` | a size such as `16GiB` |" in text
